// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "runner/ops/apply_staged_writes.h"
#include "runner/ops/combine_tokens.h"
#include "runner/ops/pad_tail.h"
#include "runner/ops/positions.h"
#include "runner/ops/post_update.h"
#include "runner/ops/prefill_inputs.h"
#include "runner/ops/publish_output.h"
#include "runner/ops/slot_mapping.h"

#include <cstdint>
#include <memory>

namespace warprow {

// The runner's integer steps on the device, in the order in which a step runs them: this is the
// table of contents of a step around the forward. Each is a functor written once for host and
// device; a backend only launches it, in one of two shapes: for_rows (a team of lanes per index, no
// barrier, no exchange) or for_items (one lane per index).
class RunnerOps {
 public:
  virtual ~RunnerOps() = default;
  // Prologue.
  virtual void apply_staged_writes(Stream& stream,
                                   const ApplyStagedWrites& op,
                                   int64_t num_groups) = 0;
  virtual void prefill_inputs(Stream& stream, const PrefillInputs& op, int64_t num_rows) = 0;
  virtual void pos_seq_lens(Stream& stream, const PosSeqLens& op, int64_t num_rows) = 0;
  virtual void combine_tokens(Stream& stream, const CombineTokens& op, int64_t num_rows) = 0;
  virtual void slot_mapping(Stream& stream, const SlotMapping& op, int64_t num_rows) = 0;
  virtual void pad_tail(Stream& stream, const PadTail& op, int64_t num_items) = 0;
  // After sampling.
  virtual void count_sampled(Stream& stream, const CountSampled& op, int64_t num_rows) = 0;
  virtual void post_update(Stream& stream, const PostUpdate& op, int64_t num_rows) = 0;
  virtual void publish_output(Stream& stream, const PublishOutput& op, int64_t num_rows) = 0;
};

// Launcher gives for_rows(stream, name, n, functor) and for_items(stream, name, n, functor).
// Instantiated in exactly one file per backend.
template <typename Launcher>
class RunnerOpsImpl final : public RunnerOps {
 public:
  explicit RunnerOpsImpl(Launcher launcher) : launch_(launcher) {}
  void apply_staged_writes(Stream& s, const ApplyStagedWrites& op, int64_t n) override {
    launch_.for_rows(s, "apply_staged_writes", n, op);
  }
  void prefill_inputs(Stream& s, const PrefillInputs& op, int64_t n) override {
    launch_.for_rows(s, "prefill_inputs", n, op);
  }
  void pos_seq_lens(Stream& s, const PosSeqLens& op, int64_t n) override {
    launch_.for_rows(s, "pos_seq_lens", n, op);
  }
  void combine_tokens(Stream& s, const CombineTokens& op, int64_t n) override {
    launch_.for_rows(s, "combine_tokens", n, op);
  }
  void slot_mapping(Stream& s, const SlotMapping& op, int64_t n) override {
    launch_.for_rows(s, "slot_mapping", n, op);
  }
  void pad_tail(Stream& s, const PadTail& op, int64_t n) override {
    launch_.for_items(s, "pad_tail", n, op);
  }
  void count_sampled(Stream& s, const CountSampled& op, int64_t n) override {
    launch_.for_items(s, "count_sampled", n, op);
  }
  void post_update(Stream& s, const PostUpdate& op, int64_t n) override {
    launch_.for_items(s, "post_update", n, op);
  }
  void publish_output(Stream& s, const PublishOutput& op, int64_t n) override {
    launch_.for_items(s, "publish_output", n, op);
  }

 private:
  Launcher launch_;
};

// The operations of the device's backend.
std::unique_ptr<RunnerOps> make_runner_ops(class Device& device);
std::unique_ptr<RunnerOps> make_cuda_runner_ops(class Device& device);

}  // namespace warprow
