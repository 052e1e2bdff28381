// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/features/feature.h"
#include "runner/ops/step_views.h"
#include "sched/request.h"

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace warprow::test {

// Which share of the drafts below is right.
enum class DraftKind : int32_t { kRight, kWrong, kMixed };

// Proposes the known next tokens, or wrong ones, for every row of a step. One item per batch_idx.
struct ProposeKnown {
  StepRows step;
  const int32_t* answers = nullptr;  // dev i32 [max_num_seqs, stride] by row: a count, then outputs
  int64_t stride = 0;
  int32_t* drafts = nullptr;  // dev i32 [max_num_seqs, max_drafts] by row
  int32_t max_drafts = 0;
  int32_t vocab = 0;
  DraftKind kind = DraftKind::kRight;
  uint32_t seed = 0;

  WR_HD void operator()(int64_t batch_idx) const {
    const int32_t row = step.idx_mapping[batch_idx];
    if (row < 0) {
      return;
    }
    const RowState state = step.rows[row];
    const int32_t* answer = answers + row * stride;
    for (int32_t i = 0; i < max_drafts; ++i) {
      const int32_t output = state.total_len - state.prompt_len + i;
      const int32_t right = output < answer[0] ? answer[1 + output] : 0;
      drafts[static_cast<int64_t>(row) * max_drafts + i] =
          is_right(state.total_len + i) ? right : (right + 1) % vocab;
    }
  }

 private:
  // Depends on seed and position only, so the drafts of a row are the same under any schedule.
  [[nodiscard]] WR_HD bool is_right(int32_t position) const {
    const uint32_t hash = (static_cast<uint32_t>(position) * 2654435761U) ^ (seed * 40503U);
    return kind == DraftKind::kRight || (kind == DraftKind::kMixed && (hash >> 13) % 3 != 0);
  }
};

// Enqueues the operation for batch rows [0, num_items), on the device that the launcher was written for.
using LaunchPropose = void (*)(Stream& stream, const ProposeKnown& op, int64_t num_items);
void launch_propose_on_cpu(Stream& stream, const ProposeKnown& op, int64_t num_items);

// A proposer for tests. It knows the answers that requests get without drafts. It proposes them, other tokens, or a
// mixture. A request is identified by its prompt and seed.
//
// Owns: the answers, and a device table with the answer of each row.
class KnownDrafts {
 public:
  KnownDrafts(DraftKind kind, uint32_t seed, LaunchPropose launch = &launch_propose_on_cpu)
      : kind_(kind), seed_(seed), launch_(launch) {}

  void expect(const Request& request, std::vector<TokenId> answer);
  // For FeatureOptions::extra. This object must outlive the features that it builds.
  [[nodiscard]] FeatureFactory factory() const;

 private:
  friend class KnownDraftsFeature;
  using Key = std::pair<uint64_t, std::vector<TokenId>>;

  DraftKind kind_;
  uint32_t seed_;
  LaunchPropose launch_;
  std::map<Key, std::vector<TokenId>> answers_;
};

}  // namespace warprow::test
