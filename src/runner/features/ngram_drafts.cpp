// SPDX-License-Identifier: Apache-2.0
#include "runner/features/ngram_drafts.h"

#include "runner/ops/runner_ops.h"
#include "runner/rows.h"
#include "runner/sample/sampler.h"

namespace warprow {
namespace {

class NgramDrafts final : public RunnerFeature {
 public:
  NgramDrafts(const RunnerParts& parts, const Speculation& speculation)
      : rows_(*parts.rows),
        sampler_(*parts.sampler),
        ops_(*parts.ops),
        max_num_seqs_(parts.limits.max_num_seqs),
        speculation_(speculation) {}

  // Recorded with the sampling part, so it covers all rows that the runner has.
  void after_rows(Stream& stream, const InputBatch& batch) override {
    ops_.propose_ngram(stream,
                       {batch.device,
                        sampler_.arrays().num_sampled,
                        rows_.store().tokens(),
                        rows_.drafts(),
                        speculation_.prompt_lookup_min,
                        speculation_.prompt_lookup_max},
                       max_num_seqs_);
  }

 private:
  const RequestRows& rows_;
  const Sampler& sampler_;
  RunnerOps& ops_;
  int32_t max_num_seqs_;
  Speculation speculation_;
};

}  // namespace

std::unique_ptr<RunnerFeature> make_ngram_drafts(const RunnerParts& parts,
                                                 const Speculation& speculation) {
  return std::make_unique<NgramDrafts>(parts, speculation);
}

}  // namespace warprow
