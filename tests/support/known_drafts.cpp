// SPDX-License-Identifier: Apache-2.0
#include "tests/support/known_drafts.h"

#include "base/check.h"
#include "device/cpu/cpu_stream.h"
#include "models/model.h"
#include "runner/rows.h"
#include "runner/step_upload.h"

#include <algorithm>
#include <utility>

namespace warprow::test {

class KnownDraftsFeature final : public RunnerFeature {
 public:
  KnownDraftsFeature(const KnownDrafts& known, const RunnerParts& parts)
      : known_(known), parts_(parts), stride_(1 + parts.limits.max_model_len) {
    answers_ = parts.arenas.state->alloc<int32_t>(parts.limits.max_num_seqs * stride_);
    table_ = parts.staged_tables->add(
        answers_, stride_, parts.limits.max_num_seqs, parts.limits.max_num_seqs * stride_);
  }

  void on_row_added(const NewRow& row, const SchedulerOutput& step, StagedWrites& staged) override {
    const auto first = step.token_ids.begin() + row.tokens.begin;
    const auto found = known_.answers_.find(
        {row.params.seed, std::vector<TokenId>(first, first + row.prompt_len)});
    // Warm-up rows belong to no request and have no known answer.
    const std::vector<TokenId> answer =
        found != known_.answers_.end() ? found->second : std::vector<TokenId>();
    const auto count = static_cast<int32_t>(answer.size());
    const std::span<int32_t> cells = staged.stage(table_, row.row, 0, 1 + count);
    cells[0] = count;
    std::copy(answer.begin(), answer.end(), cells.begin() + 1);
  }

  void after_rows(Stream& stream, const InputBatch& batch) override {
    ProposeKnown op;
    op.step = batch.device;
    op.answers = answers_;
    op.stride = stride_;
    op.drafts = parts_.rows->drafts().tokens;
    op.max_drafts = parts_.limits.max_drafts;
    op.vocab = parts_.model->facts().vocab_size;
    op.kind = known_.kind_;
    op.seed = known_.seed_;
    // The launch may be captured into a graph, so it covers the largest number of rows.
    known_.launch_(stream, op, parts_.limits.max_num_seqs);
  }

 private:
  const KnownDrafts& known_;
  RunnerParts parts_;
  int64_t stride_;
  int32_t* answers_ = nullptr;  // dev i32 [max_num_seqs, stride]
  int32_t table_ = -1;
};

void launch_propose_on_cpu(Stream& stream, const ProposeKnown& op, int64_t num_items) {
  if (stream.device().shape_only()) {
    return;
  }
  cpu::as_cpu(stream).launch("propose_known", [op, num_items](cpu::ComputePool&) {
    for (int64_t i = 0; i < num_items; ++i) {
      op(i);
    }
  });
}

void KnownDrafts::expect(const Request& request, std::vector<TokenId> answer) {
  const Key key{request.params.seed, request.prompt};
  WR_CHECK(answers_.emplace(key, std::move(answer)).second, "two requests look alike");
}

FeatureFactory KnownDrafts::factory() const {
  return [this](const RunnerParts& parts) {
    return std::make_unique<KnownDraftsFeature>(*this, parts);
  };
}

}  // namespace warprow::test
