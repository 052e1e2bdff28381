// SPDX-License-Identifier: Apache-2.0
#include "runner/features/grammar_masks.h"

#include "base/check.h"
#include "device/device.h"
#include "kernels/sample/grammar_mask.h"

#include <algorithm>
#include <vector>

namespace warprow {
namespace {

// Owns: a ring of pinned entries, one for each step in flight. An entry is written again only when
// the output of the step that used it was taken, as with the output ring, whose entry numbers it
// shares.
class GrammarMasks final : public RunnerFeature {
 public:
  explicit GrammarMasks(const FeatureSetup& setup)
      : vocab_(setup.vocab_size),
        max_rows_(setup.max_num_seqs),
        entry_(setup.output_entry),
        inputs_(setup.inputs),
        ring_(setup.device->make_pinned(
            static_cast<size_t>(setup.num_entries * mask_entry_words(max_rows_, vocab_)) *
            sizeof(int32_t))),
        mask_of_row_(static_cast<size_t>(max_rows_), kNoMask) {}

  void stage(const SchedulerOutput& step) override { active_ = !step.grammar_rows.empty(); }

  [[nodiscard]] uint32_t sample_key() const override { return active_ ? 1 : 0; }

  void prepare_sample(const InputBatch& batch,
                      const GrammarOutput* grammar,
                      int32_t entry) override {
    if (!active_) {
      WR_CHECK(grammar == nullptr || grammar->masked_rows.empty(),
               "masks for a step without grammars");
      return;
    }
    int32_t* list = ring_.as<int32_t>() + entry * mask_entry_words(max_rows_, vocab_);
    std::fill_n(list, max_rows_, kNoMask);
    if (grammar == nullptr) {
      return;
    }
    WR_CHECK_LE(grammar->masked_rows.size(), static_cast<size_t>(max_rows_));
    WR_CHECK_EQ(grammar->bitmask.size(),
                grammar->masked_rows.size() * static_cast<size_t>(mask_words(vocab_)));
    std::copy(grammar->bitmask.begin(),
              grammar->bitmask.end(),
              reinterpret_cast<uint32_t*>(list + max_rows_));
    for (size_t i = 0; i < grammar->masked_rows.size(); ++i) {
      WR_CHECK_EQ(grammar->masked_rows[i].num_masks, 1);
      mask_of(grammar->masked_rows[i].row) = static_cast<int32_t>(i);
    }
    for (const RowId row : grammar->withheld_rows) {
      mask_of(row) = kWithheldRow;
    }
    for (size_t i = 0; i < batch.rows.size(); ++i) {  // one logits row each
      std::swap(list[i], mask_of(batch.rows[i].row));
    }
  }

  void before_sample(Stream& stream, View<float, 2> logits) override {
    if (active_) {
      grammar_mask(stream,
                   {logits,
                    make_view(inputs_->logit_row, logits.shape[0]),
                    entry_,
                    ring_.as<int32_t>(),
                    max_rows_});
    }
  }

 private:
  int32_t& mask_of(RowId row) { return mask_of_row_[static_cast<size_t>(index_of(row))]; }

  int64_t vocab_;
  int64_t max_rows_;
  const int32_t* entry_;  // dev i32 [1]  the step's entry of the ring
  const InputBuffers* inputs_;
  PinnedBuffer ring_;
  std::vector<int32_t> mask_of_row_;  // [max_num_seqs]  all kNoMask between steps
  bool active_ = false;
};

}  // namespace

std::unique_ptr<RunnerFeature> make_grammar_masks(const FeatureSetup& setup) {
  return std::make_unique<GrammarMasks>(setup);
}

}  // namespace warprow
