// SPDX-License-Identifier: Apache-2.0
#include "runner/features/grammar_masks.h"

#include "base/check.h"
#include "device/device.h"
#include "kernels/sample/grammar_mask.h"
#include "models/model.h"
#include "runner/step_upload.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace warprow {
namespace {

// Owns: a ring of pinned entries, one for each step in flight. An entry is rewritten only after the output of the
// step that used it was taken. Entry numbers are those of the output ring.
class GrammarMasks final : public RunnerFeature {
 public:
  explicit GrammarMasks(const RunnerParts& parts)
      : vocab_(parts.model->facts().vocab_size),
        max_logits_(parts.limits.max_logits()),
        upload_(*parts.upload),
        inputs_(*parts.inputs),
        ring_(parts.device->make_pinned(static_cast<size_t>(parts.limits.max_steps_in_flight *
                                                            mask_entry_words(max_logits_, vocab_)) *
                                        sizeof(int32_t))),
        masks_of_row_(static_cast<size_t>(parts.limits.max_num_seqs)) {}

  void stage(const SchedulerOutput& step, StagedWrites& /*staged*/) override {
    active_ = !step.grammar_rows.empty();
  }
  // The masks are awaited between the two phases.
  void vote(StepVote& vote) override {
    vote.mark_forward |= active_;
    vote.reads_logits |= active_;
  }

  [[nodiscard]] uint64_t graph_key(StepPart part) const override {
    return part == StepPart::kSample && active_ ? 1 : 0;
  }

  void prepare_sample(const InputBatch& batch,
                      const GrammarOutput* grammar,
                      int32_t entry) override {
    if (!active_) {
      WR_CHECK(grammar == nullptr || grammar->masked_rows.empty(),
               "masks for a step without grammars");
      return;
    }
    int32_t* list = ring_.as<int32_t>() + entry * mask_entry_words(max_logits_, vocab_);
    std::fill_n(list, max_logits_, kNoMask);
    if (grammar == nullptr) {
      return;
    }
    const int32_t num_masks = note_masks(*grammar);
    WR_CHECK_LE(num_masks, max_logits_);
    WR_CHECK_EQ(grammar->bitmask.size(), static_cast<size_t>(num_masks * mask_words(vocab_)));
    std::copy(grammar->bitmask.begin(),
              grammar->bitmask.end(),
              reinterpret_cast<uint32_t*>(list + max_logits_));
    int32_t logit = 0;
    for (const ScheduledRow& row : batch.rows) {
      const Masks masks = std::exchange(of(row.row), Masks{});
      // No token is drawn after a row's last mask: the grammar rejects the draft before it, or ends.
      const int32_t behind = masks.withheld || masks.num_masks > 0 ? kWithheldRow : kNoMask;
      for (int32_t i = 0; i < row.num_logits; ++i) {
        list[logit++] = i < masks.num_masks ? masks.first + i : behind;
      }
    }
  }

  // Rows are withheld on every rank, masks are applied where the logits are.
  void before_sample(Stream& stream, const LogitsShare& logits) override {
    if (active_) {
      grammar_mask(stream,
                   {logits.rows,
                    make_view(inputs_.logit_row, logits.n),
                    upload_.output_entry(),
                    ring_.as<int32_t>(),
                    max_logits_,
                    logits.first});
    }
  }

 private:
  // Masks for a row's logits in this step: the step's masks [first, first + num_masks), in order.
  struct Masks {
    int32_t first = 0;
    int32_t num_masks = 0;
    bool withheld = false;
  };

  // Returns the number of masks.
  int32_t note_masks(const GrammarOutput& grammar) {
    int32_t num_masks = 0;
    for (const MaskedRow& row : grammar.masked_rows) {
      of(row.row) = {num_masks, row.num_masks, false};
      num_masks += row.num_masks;
    }
    for (const RowId row : grammar.withheld_rows) {
      of(row).withheld = true;
    }
    return num_masks;
  }
  Masks& of(RowId row) { return masks_of_row_[static_cast<size_t>(index_of(row))]; }

  int64_t vocab_;
  int64_t max_logits_;
  const StepUpload& upload_;
  const InputBuffers& inputs_;
  PinnedBuffer ring_;
  std::vector<Masks> masks_of_row_;  // [max_num_seqs]  empty between steps
  bool active_ = false;
};

}  // namespace

std::unique_ptr<RunnerFeature> make_grammar_masks(const RunnerParts& parts) {
  return std::make_unique<GrammarMasks>(parts);
}

}  // namespace warprow
