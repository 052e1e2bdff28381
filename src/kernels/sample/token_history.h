// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/row_tokens.h"

#include <cstdint>

namespace warprow {

// The tokens of all rows, and the lengths of their parts. Empty: no rule may read them.
struct TokenHistory {
  RowTokens tokens;
  // For row 0; row i's are i * state_stride further.
  const int32_t* prompt_len = nullptr;   // tokens that the user sent
  const int32_t* prefill_len = nullptr;  // tokens of the row's prefill; >= prompt_len
  int64_t state_stride = 1;

  [[nodiscard]] WR_HD bool empty() const { return prompt_len == nullptr; }
};

// The tokens of one row before the one to draw: [0, prompt_len) is its prompt, [prompt_len, len) are its
// outputs, including those before a preemption.
struct KnownTokens {
  RowTokens all;
  int64_t row;
  int32_t prompt_len;
  int32_t prefill_len;
  int32_t len;

  [[nodiscard]] WR_HD int32_t num_outputs() const { return len - prompt_len; }
  [[nodiscard]] WR_HD int32_t at(int32_t pos) const {
    const int64_t cell = all.cell(row, pos);
    return pos < prefill_len ? all.prefill[cell] : all.later[cell];
  }

  // Calls f with each token at [begin, len). An id may be outside the vocabulary: a row that failed keeps
  // running until the host sees the error.
  template <typename F>
  WR_HD void for_each_from(int32_t begin, const F& f) const {
    for (int32_t pos = begin; pos < len; ++pos) {
      f(at(pos));
    }
  }
};

// `position` is that of the last token fed in.
WR_HD inline KnownTokens known_tokens(const TokenHistory& history, int32_t row, int32_t position) {
  const int64_t at = row * history.state_stride;
  KnownTokens tokens{};
  tokens.all = history.tokens;
  tokens.row = row;
  tokens.prompt_len = history.prompt_len[at];
  tokens.prefill_len = history.prefill_len[at];
  tokens.len = position + 1;
  return tokens;
}

}  // namespace warprow
