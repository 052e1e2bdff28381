// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/row_tokens.h"
#include "runner/ops/combine_tokens.h"
#include "runner/ops/known_token.h"
#include "runner/ops/slot_mapping.h"
#include "runner/ops/step_views.h"

#include <bit>
#include <cstdint>

namespace warprow {

// The inputs of a forward of a draft model, which makes the `num_made`-th drafts. Rows are in batch order, and each has
// its last `query_len` tokens before that draft. The first forward takes a row's last two known tokens: the step before
// may have accepted all drafts, and no forward has taken the last of these yet. Each later forward takes the draft that
// was made last. Rows that yielded nothing in the step are padding. One item per batch_idx below num_rows.
struct DraftInputs {
  StepRows step;
  const int32_t* num_sampled = nullptr;  // dev i32 [max_num_seqs] by batch_idx
  RowTokens known;
  DraftTokens drafts;
  int32_t num_made = 0;
  int32_t num_rows = 0;
  // Written: the arrays of the forward, as of InputBuffers, and its layout.
  int32_t* idx_mapping = nullptr;
  int32_t* query_start_loc = nullptr;  // [max_num_seqs + 1]
  int32_t* seq_lens = nullptr;
  int32_t* input_ids = nullptr;
  int32_t* positions = nullptr;
  int32_t* logits_indices = nullptr;
  SlotMapping slots;  // without its step

  [[nodiscard]] static WR_HD constexpr int32_t query_len(int32_t num_made) {
    return num_made == 0 ? 2 : 1;
  }

  WR_HD void operator()(int64_t batch_idx) const {
    const auto b = static_cast<int32_t>(batch_idx);
    const int32_t len = query_len(num_made);
    const int32_t row = step.idx_mapping[b];
    const bool drafts_any = row >= 0 && num_sampled[b] > 0;
    const int32_t end = drafts_any ? step.rows[row].total_len + num_made : 0;
    idx_mapping[b] = drafts_any ? row : -1;
    query_start_loc[b] = b * len;
    if (b == num_rows - 1) {
      query_start_loc[num_rows] = num_rows * len;
    }
    seq_lens[b] = end;
    logits_indices[b] = b * len + len - 1;
    for (int32_t i = 0; i < len; ++i) {
      const int32_t at = b * len + i;
      const int32_t position = end - len + i;
      positions[at] = drafts_any ? position : 0;
      input_ids[at] = drafts_any ? token(row, position) : 0;
      for (int32_t g = 0; g < slots.num_groups; ++g) {
        slots.slots[g * slots.slots_stride + at] =
            drafts_any ? slot_of(slots.groups[g], row, position) : -1;
      }
    }
  }

 private:
  [[nodiscard]] WR_HD int32_t token(int32_t row, int32_t position) const {
    return num_made > 0 ? drafts.tokens[row * drafts.max_drafts + num_made - 1]
                        : known_token(known, step.rows[row], row, position);
  }
};

// A draft is the most likely token of the draft model, and of equally likely ones the first. One team per batch_idx.
struct TakeDraft {
  const int32_t* idx_mapping = nullptr;  // DraftInputs'
  const float* logits = nullptr;         // dev f32 [num_rows, vocab]
  int64_t vocab = 0;
  DraftTokens drafts;
  int32_t num_made = 0;
  const int32_t* ids = nullptr;  // dev i32 [vocab]  the tokens' ids; null: 0 to vocab - 1
  int32_t* chosen = nullptr;     // where the tokens go by batch_idx, and not to drafts; may be null

  template <typename Team>
  WR_HD void operator()(int64_t batch_idx, const Team& team) const {
    const int32_t row = idx_mapping[batch_idx];
    if (row < 0) {
      return;
    }
    constexpr int64_t kBitsOfId = 31;
    constexpr int64_t kLastId = (int64_t{1} << kBitsOfId) - 1;
    const float* of_row = logits + batch_idx * vocab;
    const int64_t best = team.max_of(vocab, INT64_MAX, [&](int64_t id) -> int64_t {
      return (in_order(of_row[id]) << kBitsOfId) + (kLastId - id);
    });
    team.for_each(1, [&](int64_t) {
      const auto id = static_cast<int32_t>(kLastId - (best & kLastId));
      int32_t* const to = chosen != nullptr ? chosen + batch_idx
                                            : drafts.tokens + row * drafts.max_drafts + num_made;
      *to = ids == nullptr ? id : ids[id];
    });
  }

 private:
  // A number below 2^32 that grows with the logit.
  [[nodiscard]] static WR_HD int64_t in_order(float logit) {
    const auto bits = std::bit_cast<uint32_t>(logit);
    return int64_t{(bits >> 31) != 0 ? ~bits : bits | 0x80000000U};
  }
};

// With several ranks: stores the drafts that the ranks chose for their shares of the rows. One item per batch_idx.
struct KeepDrafts {
  const int32_t* idx_mapping = nullptr;  // TakeDraft's, as the others
  const int32_t* chosen = nullptr;
  DraftTokens drafts;
  int32_t num_made = 0;

  WR_HD void operator()(int64_t batch_idx) const {
    const int32_t row = idx_mapping[batch_idx];
    if (row >= 0) {
      drafts.tokens[row * drafts.max_drafts + num_made] = chosen[batch_idx];
    }
  }
};

}  // namespace warprow
