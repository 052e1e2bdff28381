// SPDX-License-Identifier: Apache-2.0
#include "runner/features/ratio_acceptance.h"

#include "models/eagle_head.h"
#include "models/model.h"
#include "runner/features/model_drafts.h"
#include "runner/ops/runner_ops.h"
#include "runner/rows.h"
#include "runner/sample/sampler.h"
#include "runner/step_upload.h"

namespace warprow {
namespace {

DraftProbs probs_of(const RunnerParts& parts, const DraftModel& drafter) {
  DraftProbs drafts;
  drafts.tokens = parts.rows->drafts().tokens;
  const EagleHead* const head = drafter.head;
  drafts.width =
      head != nullptr ? head->spec().draft_vocab_size : drafter.model->facts().vocab_size;
  if (head != nullptr) {
    drafts.ids = head->ids();
    drafts.own_ids = head->own_ids();
    if (drafts.ids != nullptr && drafts.own_ids == nullptr) {
      throw StartupError(ErrorCode::kUnsupported,
                         "--speculative-config: rejection_sample_method: \"ratio\" needs a head "
                         "whose draft ids (tensor d2t) are tokens of their own; two are the same");
    }
  }
  const int64_t places = int64_t{parts.limits.max_num_seqs} * parts.limits.max_drafts;
  drafts.probs = parts.arenas.workspace->alloc<float>(places * drafts.width);
  return drafts;
}

class RatioAcceptance final : public RunnerFeature {
 public:
  RatioAcceptance(const RunnerParts& parts, const DraftModel& drafter)
      : max_num_seqs_(parts.limits.max_num_seqs),
        upload_(*parts.upload),
        inputs_(*parts.inputs),
        rows_(*parts.rows),
        ops_(*parts.ops),
        draft_at_(parts.arenas.workspace->alloc<int32_t>(parts.limits.max_logits())) {
    parts.sampler->verify_by_ratio(draft_at_, probs_of(parts, drafter));
  }

  // Recorded with the sampling part, so it covers all rows that the runner has.
  void before_sample(Stream& stream, const LogitsShare& /*logits*/) override {
    ops_.place_drafts(stream,
                      {{upload_.idx_mapping(),
                        upload_.query_start_loc(),
                        upload_.cu_num_logits(),
                        rows_.states()},
                       inputs_.logit_pos,
                       static_cast<int32_t>(rows_.drafts().max_drafts),
                       draft_at_},
                      max_num_seqs_);
  }

 private:
  int32_t max_num_seqs_;
  const StepUpload& upload_;
  const InputBuffers& inputs_;
  const RequestRows& rows_;
  RunnerOps& ops_;
  int32_t* draft_at_;  // dev i32 [max_logits]
};

}  // namespace

std::unique_ptr<RunnerFeature> make_ratio_acceptance(const RunnerParts& parts,
                                                     const DraftModel& drafter) {
  return std::make_unique<RatioAcceptance>(parts, drafter);
}

}  // namespace warprow
