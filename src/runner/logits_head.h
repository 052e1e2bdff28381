// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "device/stream.h"
#include "device/view.h"
#include "models/decoder.h"
#include "runner/step_limits.h"

#include <cstdint>

namespace warprow {

// The model's head and the one place for logits: of the tokens that a step samples from, and then,
// when those are sampled, of prompt tokens whose logprobs are wanted, as many at a time as fit.
//
// Owns: nothing; its buffers lie in the workspace arena.
// Thread: the runner's.
// Invariant: a call's logits hold until the next call.
class LogitsHead {
 public:
  // Where few rows leave little room, prompt tokens get this much, so that a read of the head's
  // weights serves several of them.
  static constexpr int64_t kLeastBytes = int64_t{16} << 20;

  LogitsHead(Decoder& model, Arena& workspace, const StepLimits& limits);

  // Tokens that have room at once: a step's logits, or more.
  static int32_t max_rows(int64_t vocab, const StepLimits& limits);
  [[nodiscard]] int32_t max_rows() const { return max_rows_; }

  // Logits [n, vocab] of the rows of hidden [T, hidden_size] that index [n <= max_logits] picks.
  View<float, 2> of_picked(Stream& stream, const ActView& hidden, View<const int32_t, 1> index);
  // Of all rows of hidden [n <= max_rows, hidden_size].
  View<float, 2> of_all(Stream& stream, const ActView& hidden);
  // The first n rows of what was computed last.
  [[nodiscard]] View<float, 2> last(int32_t n) const;

 private:
  Decoder& model_;
  int32_t max_rows_;
  float* logits_;   // dev f32 [max_rows, vocab_size]
  ActView picked_;  // dev [max_logits, hidden_size]
};

}  // namespace warprow
