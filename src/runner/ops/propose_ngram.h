// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/row_tokens.h"
#include "runner/ops/combine_tokens.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// Drafts from a row's own tokens. Of all earlier occurrences of the row's last n tokens, min_n <= n <= max_n, the one with
// the largest n is taken, and of equal ones the latest. The drafts are the tokens after it. Where these reach the row's
// end they go on with the drafts themselves, as if the row went on repeating itself. Without an occurrence all drafts
// are -1, which no token equals. A row that yielded nothing in the step keeps its drafts: it computes them again. One
// team per batch_idx, whose lanes share the positions and look at the latest first.
//
// Reads a row's known tokens once. A prompt is in host memory, which a GPU reads slowly. So at the row's first proposal
// its prompt is copied into the cells of `later` at the same places, which are otherwise unused.
struct ProposeNgram {
  StepRows step;
  const int32_t* num_sampled = nullptr;  // dev i32 [max_num_seqs] by batch_idx
  RowTokens known;
  DraftTokens drafts;
  int32_t min_n = 1;
  int32_t max_n = 1;

  template <typename Team>
  WR_HD void operator()(int64_t batch_idx, const Team& team) const {
    const int32_t row = step.idx_mapping[batch_idx];
    if (row < 0 || num_sampled[batch_idx] == 0) {
      return;
    }
    const RowState& state = step.rows[row];
    const Tokens tokens{known, row, state.total_len, first_proposal_end(state, batch_idx)};
    team.for_each(tokens.num_on_host, [&](int64_t i) {
      const int64_t cell = known.cell(row, static_cast<int32_t>(i));
      known.later[cell] = known.prefill[cell];
    });
    const int32_t from = find(tokens, team);
    int32_t* out = drafts.tokens + row * drafts.max_drafts;
    team.for_each(drafts.max_drafts, [&](int64_t i) {
      const auto behind = static_cast<int32_t>(i);
      out[i] = from < 0 ? -1 : tokens.at(from + behind % (tokens.len - from));
    });
  }

 private:
  // A row's known tokens.
  struct Tokens {
    const RowTokens& known;
    int32_t row;
    int32_t len;
    int32_t num_on_host;  // the first ones, which are not copied yet
    [[nodiscard]] WR_HD int32_t at(int32_t position) const {
      const int64_t cell = known.cell(row, position);
      return position < num_on_host ? known.prefill[cell] : known.later[cell];
    }
  };

  // The tokens to copy: all of the prefill if this step was the first that yielded tokens.
  [[nodiscard]] WR_HD int32_t first_proposal_end(const RowState& state, int64_t batch_idx) const {
    return state.total_len - num_sampled[batch_idx] == state.prefill_len ? state.prefill_len : 0;
  }

  // The position after the occurrence; -1 if there is none.
  template <typename Team>
  [[nodiscard]] WR_HD int32_t find(const Tokens& tokens, const Team& team) const {
    const int32_t last = tokens.at(tokens.len - 1);
    const int64_t best =
        team.max_of(tokens.len - min_n, int64_t{max_n} << 32, [&](int64_t i) -> int64_t {
          const int32_t end = tokens.len - 1 - static_cast<int32_t>(i);
          if (tokens.at(end - 1) != last) {
            return 0;
          }
          const int32_t n = common_len(tokens, end);
          return n < min_n ? 0 : (int64_t{n} << 32) + end;
        });
    return best == 0 ? -1 : static_cast<int32_t>(best & 0x7fffffff);
  }

  // How many tokens before `end` equal those at the row's end, at most max_n. The first of them is known to.
  [[nodiscard]] WR_HD int32_t common_len(const Tokens& tokens, int32_t end) const {
    const int32_t most = end < max_n ? end : max_n;
    int32_t n = 1;
    while (n < most && tokens.at(end - 1 - n) == tokens.at(tokens.len - 1 - n)) {
      ++n;
    }
    return n;
  }
};

}  // namespace warprow
