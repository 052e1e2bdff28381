// SPDX-License-Identifier: Apache-2.0
#include "runner/features/suffix_drafts.h"

#include "device/cpu/cpu_stream.h"
#include "runner/drafts/output_index.h"
#include "runner/drafts/suffix_search.h"
#include "runner/ops/step_views.h"
#include "runner/rows.h"
#include "runner/sample/sampler.h"

#include <span>

namespace warprow {
namespace {

// The work of a step on the device. A row that yielded nothing keeps its drafts: it computes them again.
struct ProposeSuffix {
  StepRows step;
  int32_t max_num_seqs = 0;
  const int32_t* num_sampled = nullptr;  // dev i32 [max_num_seqs] by batch_idx
  RowTokens known;
  DraftTokens drafts;
  OutputIndex outputs;
  SuffixSettings settings;

  void operator()(cpu::ComputePool& pool) const {
    int32_t num_rows = 0;
    while (num_rows < max_num_seqs && step.idx_mapping[num_rows] >= 0) {
      ++num_rows;
    }
    if (outputs.is_on()) {
      for (int32_t i = 0; i < num_rows; ++i) {
        add_outputs(i);
      }
    }
    pool.parallel_for(num_rows, 1, [this](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t i = begin; i < end; ++i) {
        propose(i);
      }
    });
  }

 private:
  [[nodiscard]] KnownText text_of(int64_t batch_idx) const {
    const int32_t row = step.idx_mapping[batch_idx];
    const RowState& state = step.rows[row];
    return {known, row, state.prefill_len, state.total_len};
  }

  void add_outputs(int64_t batch_idx) const {
    const KnownText text = text_of(batch_idx);
    const int32_t first = text.len - num_sampled[batch_idx];
    if (first == text.prefill_len && first < text.len) {
      outputs.begin_request(text.row);
    }
    for (int32_t position = first; position < text.len; ++position) {
      outputs.add(text.row, text.at(position));
    }
  }

  void propose(int64_t batch_idx) const {
    if (num_sampled[batch_idx] > 0) {
      const KnownText text = text_of(batch_idx);
      propose_suffix(
          text,
          outputs,
          settings,
          {drafts.tokens + text.row * drafts.max_drafts, static_cast<size_t>(drafts.max_drafts)});
    }
  }
};

class SuffixDrafts final : public RunnerFeature {
 public:
  SuffixDrafts(const RunnerParts& parts, const SuffixSettings& settings)
      : rows_(*parts.rows),
        sampler_(*parts.sampler),
        max_num_seqs_(parts.limits.max_num_seqs),
        settings_(settings),
        outputs_(*parts.arenas.state,
                 parts.limits.max_num_seqs,
                 settings.max_cached_requests,
                 parts.limits.max_model_len) {}

  // Before the first step.
  void before_forward(Stream& stream, const InputBatch& /*batch*/) override {
    if (outputs_.is_on() && !is_ready_) {
      stream.fill(outputs_.counters(), 0, sizeof(OutputIndex::Counters));
      is_ready_ = true;
    }
  }

  // Recorded with the sampling part, so it finds the step's rows itself.
  void after_rows(Stream& stream, const InputBatch& batch) override {
    cpu::as_cpu(stream).launch("propose_suffix",
                               ProposeSuffix{batch.device,
                                             max_num_seqs_,
                                             sampler_.arrays().num_sampled,
                                             rows_.store().tokens(),
                                             rows_.drafts(),
                                             outputs_,
                                             settings_});
  }

 private:
  const RequestRows& rows_;
  const Sampler& sampler_;
  int32_t max_num_seqs_;
  SuffixSettings settings_;
  OutputIndex outputs_;
  bool is_ready_ = false;
};

}  // namespace

std::unique_ptr<RunnerFeature> make_suffix_drafts(const RunnerParts& parts,
                                                  const Speculation& speculation) {
  return std::make_unique<SuffixDrafts>(parts, speculation.suffix);
}

}  // namespace warprow
