// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "device/stream.h"
#include "device/view.h"
#include "models/model.h"
#include "runner/step_limits.h"

#include <cstdint>

namespace warprow {

// The model's head and the only logits buffer: for the tokens that a step samples from, and after sampling for
// prompt tokens whose logprobs are requested, as many at a time as fit.
//
// Owns: nothing; its buffers lie in the workspace arena.
// Thread: the runner's.
// Invariant: the logits of a call are valid until the next call.
class LogitsHead {
 public:
  // Least size of the buffer. With few rows this lets one read of the head's weights serve several prompt tokens.
  static constexpr int64_t kLeastBytes = int64_t{16} << 20;

  LogitsHead(Model& model, Arena& workspace, const StepLimits& limits);

  // Rows that the buffer holds: a step's logits, or more.
  static int32_t max_rows(int64_t vocab, const StepLimits& limits);
  [[nodiscard]] int32_t max_rows() const { return max_rows_; }

  // Logits [n, vocab] of the rows of hidden [T, hidden_size] that index [n <= max_logits] selects.
  View<float, 2> of_picked(Stream& stream, const ActView& hidden, View<const int32_t, 1> index);
  // Logits of all rows of hidden [n <= max_rows, hidden_size].
  View<float, 2> of_all(Stream& stream, const ActView& hidden);
  // The first n rows of the last call's logits.
  [[nodiscard]] View<float, 2> last(int32_t n) const;

 private:
  Model& model_;
  int32_t max_rows_;
  float* logits_;   // dev f32 [max_rows, vocab_size]
  ActView picked_;  // dev [max_logits, hidden_size]
};

}  // namespace warprow
