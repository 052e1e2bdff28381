// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "device/view.h"
#include "kernels/sample/sample.h"
#include "runner/input_batch.h"
#include "runner/ops/publish_output.h"
#include "runner/rows.h"

#include <cstdint>

namespace warprow {

// Draws the tokens of a step from its logits. kernels/sample implements the rules and their order; parameters are
// read through each logit's row.
//
// Owns: nothing; its arrays lie in the workspace arena.
// Thread: the runner's.
class Sampler {
 public:
  static constexpr int32_t kMaxTop = kMaxLogprobIds;  // tokens reported beside a sampled one
  static constexpr int32_t kMaxPromptTop = 20;        // and beside a prompt token

  struct Sizes {
    int32_t max_num_seqs = 0;
    int32_t max_logits = 0;  // of a step
    int32_t max_rows = 0;    // of a report, >= max_logits
    int32_t vocab_size = 0;
  };
  Sampler(Device& device, Arena& workspace, const Sizes& sizes, LogprobsMode mode);

  // logits [num_logits, vocab]; rules: all that any row needs (SampleRules). Results are in arrays() once the
  // stream has run it.
  void sample(Stream& stream,
              View<const float, 2> logits,
              const InputBuffers& inputs,
              const RequestRows& rows,
              uint32_t rules);
  [[nodiscard]] const SampledArrays& arrays() const { return arrays_; }

  // Draws nothing. Writes raw logprobs of `tokens` [n <= max_rows] in logits [n, vocab], each with the num_top <=
  // kMaxPromptTop most likely tokens, to the arrays of `to`, [n] and [n, kMaxPromptTop].
  void report(Stream& stream,
              View<const float, 2> logits,
              View<const int32_t, 1> tokens,
              int32_t num_top,
              const SampledArrays& to) const;

 private:
  SampledArrays arrays_;  // dev [max_num_seqs, ...]
  int32_t* errors_;       // dev i32 [max_rows]
  View<std::byte, 1> scratch_;
  LogprobsMode mode_;
};

}  // namespace warprow
