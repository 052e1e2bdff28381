// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstdint>

namespace warprow {

// Where the tokens of all rows lie. Empty: no rule may look at them.
struct TokenHistory {
  const int32_t* prompts = nullptr;  // i32 [regions, prompt_stride]  a row's first prefill_len
  int64_t prompt_stride = 0;
  const int32_t* history = nullptr;  // i32 [rows, history_stride]    the later ones, by position
  int64_t history_stride = 0;
  // Of row 0; those of row i lie i * state_stride further.
  const int32_t* prompt_len = nullptr;   // tokens that the user sent
  const int32_t* prefill_len = nullptr;  // tokens that lie in prompts; >= prompt_len
  const int32_t* region = nullptr;       // index in prompts
  int64_t state_stride = 1;

  [[nodiscard]] WR_HD bool empty() const { return prompts == nullptr; }
};

// The tokens of one row in front of the one to draw: [0, prompt_len) is its prompt, [prompt_len,
// len) are its outputs, those before a preemption included.
struct KnownTokens {
  const int32_t* prefill;  // by position, below prefill_len
  const int32_t* later;    // by position, from prefill_len on
  int32_t prompt_len;
  int32_t prefill_len;
  int32_t len;

  [[nodiscard]] WR_HD int32_t num_outputs() const { return len - prompt_len; }
  [[nodiscard]] WR_HD int32_t at(int32_t pos) const {
    return pos < prefill_len ? prefill[pos] : later[pos];
  }

  // Calls f with each token at [begin, len). An id may be outside the vocabulary: a row that failed
  // keeps running until the host knows.
  template <typename F>
  WR_HD void for_each_from(int32_t begin, const F& f) const {
    int32_t pos = begin;
    for (; pos < len && pos < prefill_len; ++pos) {
      f(prefill[pos]);
    }
    for (; pos < len; ++pos) {
      f(later[pos]);
    }
  }
};

// `position` is that of the last token fed in.
WR_HD inline KnownTokens known_tokens(const TokenHistory& all, int32_t row, int32_t position) {
  const int64_t at = row * all.state_stride;
  KnownTokens tokens{};
  tokens.prefill = all.prompts + all.region[at] * all.prompt_stride;
  tokens.later = all.history + row * all.history_stride;
  tokens.prompt_len = all.prompt_len[at];
  tokens.prefill_len = all.prefill_len[at];
  // A step beyond the row's end, whose result is dropped, may find the history full.
  const int64_t len = static_cast<int64_t>(position) + 1;
  tokens.len = static_cast<int32_t>(len < all.history_stride ? len : all.history_stride);
  return tokens;
}

}  // namespace warprow
