// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "device/view.h"
#include "runner/input_batch.h"
#include "runner/ops/publish_output.h"
#include "runner/rows.h"

#include <cstdint>

namespace warprow {

// Draws the tokens of a step from its logits. The rules and their order live in kernels/sample;
// parameters are read through each logit's row.
//
// Owns: nothing; its arrays lie in the workspace arena.
// Thread: the runner's.
class Sampler {
 public:
  static constexpr int32_t kMaxTop = 20;  // most likely tokens reported for a position

  Sampler(Device& device, Arena& workspace, int32_t max_num_seqs, int32_t vocab_size);

  // logits [num_logits, vocab]; rules: what any row asks for (SampleRules). Results lie in arrays() when the stream gets there.
  void sample(Stream& stream,
              View<const float, 2> logits,
              const InputBuffers& inputs,
              const RequestRows& rows,
              uint32_t rules);
  [[nodiscard]] const SampledArrays& arrays() const { return arrays_; }

 private:
  SampledArrays arrays_;  // dev [max_num_seqs, ...]
  int32_t* errors_;       // dev i32 [max_num_seqs]
  View<std::byte, 1> scratch_;
};

}  // namespace warprow
