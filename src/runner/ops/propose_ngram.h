// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/row_tokens.h"
#include "runner/ops/combine_tokens.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// Drafts from a row's own tokens. Of all earlier occurrences of the row's last n tokens, min_n <= n <= max_n, that with
// the largest n counts, and of equal ones the latest. The drafts are the tokens after it. Where these reach the row's
// end they go on with the drafts themselves, as if the row went on repeating itself. Without an occurrence all drafts
// are -1, which no token equals. A row that yielded nothing in the step keeps its drafts: it computes them again. One
// item per batch_idx.
//
// Reads a row's known tokens once, from the latest back to the first occurrence of max_n tokens.
struct ProposeNgram {
  StepRows step;
  const int32_t* num_sampled = nullptr;  // dev i32 [max_num_seqs] by batch_idx
  RowTokens known;
  DraftTokens drafts;
  int32_t min_n = 1;
  int32_t max_n = 1;

  WR_HD void operator()(int64_t batch_idx) const {
    const int32_t row = step.idx_mapping[batch_idx];
    if (row < 0 || num_sampled[batch_idx] == 0) {
      return;
    }
    const RowState& state = step.rows[row];
    const int32_t from = find(row, state);
    int32_t* out = drafts.tokens + row * drafts.max_drafts;
    for (int32_t i = 0; i < drafts.max_drafts; ++i) {
      const int32_t position = from + i;
      out[i] = from < 0                     ? -1
               : position < state.total_len ? at(row, state, position)
                                            : out[position - state.total_len];
    }
  }

 private:
  [[nodiscard]] WR_HD int32_t at(int32_t row, const RowState& state, int32_t position) const {
    const int64_t cell = known.cell(row, position);
    return position < state.prefill_len ? known.prefill[cell] : known.later[cell];
  }

  // The position after the occurrence; -1 if there is none.
  [[nodiscard]] WR_HD int32_t find(int32_t row, const RowState& state) const {
    const int32_t len = state.total_len;
    const int32_t last = at(row, state, len - 1);
    int32_t best = -1;
    int32_t longest = min_n - 1;
    for (int32_t end = len - 1; end >= min_n && longest < max_n;) {
      // Positions [begin, end) lie in one piece.
      const int32_t page = ((end - 1) >> known.page_shift) << known.page_shift;
      const bool is_prefill = end - 1 < state.prefill_len;
      const int32_t begin = is_prefill || page > state.prefill_len ? page : state.prefill_len;
      const int32_t* tokens = is_prefill ? known.prefill : known.later;
      const int64_t first = known.cell(row, begin) - begin;  // cell of position 0, if it went on so
      for (; end > begin && end >= min_n && longest < max_n; --end) {
        if (tokens[first + end - 1] == last) {
          const int32_t n = common_len(row, state, end);
          best = n > longest ? end : best;
          longest = n > longest ? n : longest;
        }
      }
    }
    return best;
  }

  // How many tokens before `end` equal those at the row's end, at most max_n. The first of them is known to.
  [[nodiscard]] WR_HD int32_t common_len(int32_t row, const RowState& state, int32_t end) const {
    const int32_t most = end < max_n ? end : max_n;
    int32_t n = 1;
    while (n < most && at(row, state, end - 1 - n) == at(row, state, state.total_len - 1 - n)) {
      ++n;
    }
    return n;
  }
};

}  // namespace warprow
