// SPDX-License-Identifier: Apache-2.0
#include "runner/features/synthetic_acceptance.h"

#include "runner/ops/runner_ops.h"
#include "runner/rows.h"

namespace warprow {
namespace {

class SyntheticAcceptance final : public RunnerFeature {
 public:
  SyntheticAcceptance(const RunnerParts& parts, double acceptance)
      : inputs_(*parts.inputs), rows_(*parts.rows), ops_(*parts.ops), acceptance_(acceptance) {}

  void vote(StepVote& vote) override { vote.reads_logits = true; }

  void before_sample(Stream& stream, const LogitsShare& logits) override {
    ops_.decide_drafts(stream,
                       {rows_.states(),
                        inputs_.logit_row,
                        inputs_.logit_pos,
                        rows_.drafts(),
                        logits.rows.data,
                        logits.first,
                        logits.rows.shape[1],
                        acceptance_},
                       logits.rows.shape[0]);
  }

 private:
  const InputBuffers& inputs_;
  const RequestRows& rows_;
  RunnerOps& ops_;
  double acceptance_;
};

}  // namespace

std::unique_ptr<RunnerFeature> make_synthetic_acceptance(const RunnerParts& parts,
                                                         double acceptance) {
  return std::make_unique<SyntheticAcceptance>(parts, acceptance);
}

}  // namespace warprow
