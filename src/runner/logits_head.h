// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rank_place.h"
#include "device/arena.h"
#include "device/stream.h"
#include "device/view.h"
#include "models/model.h"
#include "runner/step_limits.h"

#include <cstdint>

namespace warprow {

// What of a step's logits is computed.
enum class LogitsForm : uint8_t {
  kAll,
  kMaxima  // the largest of each kMaxOutputs adjacent ones: enough where every row takes its largest logit
};

// The logits of n tokens that this rank has. A single rank has all of them. With several ranks each has those of its
// share of the tokens, and no rank has all.
struct LogitsShare {
  View<float, 2>
      rows;  // dev f32 [GroupPlace::share(n), vocab_size]; empty: there are maxima in place of them
  int64_t first = 0;  // index among the n tokens of the first row's token
  int64_t n = 0;
  View<OutputMax, 2> maxima = {};  // dev [n, vocab_size / kMaxOutputs] or empty
};

// The model's head and the only logits buffer: for the tokens that a step samples from, and after sampling for
// prompt tokens whose logprobs are requested, as many at a time as fit.
//
// With several ranks, each computes the logits of its part of the vocabulary for all tokens. One exchange of columns then
// gives each rank the whole vocabulary for its share of the tokens.
//
// Owns: nothing; its buffers lie in the workspace arena.
// Thread: the runner's.
// Invariant: the logits of a call are valid until the next call.
class LogitsHead {
 public:
  // Least size of the buffer. With few rows this lets one read of the head's weights serve several prompt tokens.
  static constexpr int64_t kLeastBytes = int64_t{16} << 20;

  LogitsHead(Model& model, Arena& workspace, const StepLimits& limits, const RankGroup& ranks);

  // Tokens of a call: a step's logits, or more. The same on every rank.
  static int32_t max_rows(int64_t vocab, const StepLimits& limits);
  [[nodiscard]] int32_t max_rows() const { return max_rows_; }

  // Whether a step of n logits may have the form kMaxima: of a single rank.
  [[nodiscard]] bool leaves_maxima(int32_t n) const;

  // Logits of the rows of hidden [T, hidden_size] that index [n <= max_logits] selects.
  LogitsShare of_picked(Stream& stream,
                        const ActView& hidden,
                        View<const int32_t, 1> index,
                        LogitsForm form);
  // Logits of all rows of hidden [n <= max_rows, hidden_size].
  LogitsShare of_all(Stream& stream, const ActView& hidden);
  // Those of the first n tokens of the last call, which was for at least n and of this form.
  [[nodiscard]] LogitsShare last(int32_t n, LogitsForm form) const;

  // Where a drafter's logits of n <= max_logits tokens lie, whose vocabulary is no larger than the model's. Those of the
  // last call are lost.
  [[nodiscard]] LogitsShare share_of(int32_t n, int64_t vocab) const;
  // The same of this rank's columns, f32 [n, width], before they are exchanged. Of several ranks.
  [[nodiscard]] View<float, 2> columns_of(int32_t n, int64_t width) const;

 private:
  Model& model_;
  RankGroup ranks_;
  int32_t max_rows_;
  float* logits_;  // dev f32 [largest share of max_rows, vocab_size]
  float* part_ =
      nullptr;  // dev f32 [max_rows, VocabPart::width]  of several ranks: all tokens, some columns
  ActView picked_;  // dev [max_logits, hidden_size]
};

}  // namespace warprow
