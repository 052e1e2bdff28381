// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "device/device.h"
#include "runner/ops/publish_output.h"
#include "runner/step_limits.h"
#include "wire/model_runner_output.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace warprow {

// A row of a submitted step, kept for its result.
struct OutputRow {
  RowId row = kNoRow;
  uint32_t generation = 0;
  int32_t num_logprobs = -1;
  int32_t num_logits = 0;
  bool wants_drafts = false;
};

// What the host keeps of a step in flight.
struct PendingStep {
  int64_t step = 0;
  std::vector<OutputRow> rows;  // in batch order
  size_t num_logits = 0;        // of all rows
  bool with_logprobs = false;
  StepStats stats;
};

// Results of the steps in flight: the device writes them into mapped pinned memory, and an event signals that the
// host may read. In order: the oldest step is taken first.
//
// Owns: the mapped arrays and events.
// Thread: the runner's.
// Invariant: at most `size` steps are outstanding.
class OutputRing {
 public:
  OutputRing(Device& device, const StepLimits& limits, int32_t max_top);

  // The entry that the next submitted step fills: the host's notes, and arrays for publish_output.
  PendingStep& pending() { return entries_[head_ % entries_.size()].pending; }
  // For publish_output: entry 0, words from one entry to the next, the entry of the next step.
  [[nodiscard]] const SampledArrays& arrays() const { return entries_.front().arrays; }
  [[nodiscard]] int32_t* drafts() const { return entries_.front().drafts; }
  [[nodiscard]] int64_t entry_stride() const { return entry_words_; }
  [[nodiscard]] int32_t next_entry() const { return static_cast<int32_t>(head_ % entries_.size()); }
  // Records the step's event; from now on the step is outstanding.
  void submit(Stream& stream);

  [[nodiscard]] int32_t num_outstanding() const { return static_cast<int32_t>(head_ - tail_); }
  [[nodiscard]] bool ready() const;
  // Waits for the oldest step and converts its results to wire form.
  void take(ModelRunnerOutput& output);
  // Total time that take() waited.
  [[nodiscard]] int64_t wait_ns() const { return wait_ns_; }

 private:
  struct Entry {
    SampledArrays arrays;
    int32_t* drafts = nullptr;  // pinned i32 [max_num_seqs, max_drafts] by batch_idx
    PendingStep pending;
    std::unique_ptr<Event> done;
  };
  void take_logprobs(const Entry& entry,
                     const OutputRow& row,
                     size_t logit,
                     ModelRunnerOutput& output) const;
  void take_drafts(const Entry& entry, size_t batch_idx, ModelRunnerOutput& output) const;

  int32_t max_top_;
  int32_t max_drafts_;
  int64_t entry_words_;
  PinnedBuffer memory_;
  std::vector<Entry> entries_;
  uint64_t head_ = 0;  // steps submitted
  uint64_t tail_ = 0;  // steps taken
  int64_t wait_ns_ = 0;
};

// The arrays of a step's results inside one buffer of sampled_arrays_bytes().
int64_t sampled_arrays_bytes(int32_t max_num_seqs, int32_t max_logits, int32_t max_top);
SampledArrays sampled_arrays_at(std::byte* base,
                                int32_t max_num_seqs,
                                int32_t max_logits,
                                int32_t max_top);

}  // namespace warprow
