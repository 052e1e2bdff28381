// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <span>

namespace warprow {

// How many tokens it pays to draft for a row. The j-th draft is worth its share of the step if the probability that it
// and all before it are right is above its cost, in units of a row's plain token. That probability is a^j, where a is
// the row's own average. The cost grows with the batch: more rows share the time to read the weights, so a draft costs
// nearly as much as a plain token.
//
// Drafts are compared with the outputs whether a step verified them or not, so a row that drafts nothing still learns
// when drafts would be right, at no cost. Nothing here reads a clock: equal outputs give equal lengths.

// The cost of a drafted token among num_rows decoding rows. token_cost: what one more token costs a step, in units of a
// step with one.
[[nodiscard]] double draft_cost_beside(double token_cost, int32_t num_rows);

// The most drafts of a row among num_rows decoding rows, of `most`. A CPU's products take up to 8 tokens in one pass; a
// step of 9 takes twice as long as one of 8, which no draft is worth. Larger batches are past that already.
[[nodiscard]] int32_t most_drafts_beside(int32_t num_rows, int32_t most);

// The time of a step of num_toks tokens on a GPU, in units of a step with few: constant while it reads the weights, and
// in proportion to the tokens far above `knee`.
[[nodiscard]] double gpu_step_time(double knee, double num_toks);

// What drafts cost on a GPU.
struct DraftTimes {
  double knee = 0;     // gpu_step_time's
  double forward = 0;  // of a drafting model's forward, in units of a step with few tokens
};

// One length for all rows of a step, so that a graph of equal rows serves it. It yields the most tokens in a time, as
// estimated from the rows' acceptance. Lengths are 0, 1, half of `most` and `most`: each has graphs of its own. `before`:
// the length of the step before, which stays unless another is clearly better.
// num_rows: decoding rows, also those without drafts. acceptance: of each row that may draft.
[[nodiscard]] int32_t common_drafts(std::span<const double> acceptance,
                                    int32_t num_rows,
                                    const DraftTimes& times,
                                    int32_t most,
                                    int32_t before);

// Whether one draft of each of num_rows rows would pay if most drafts were right. If not, a model need not draft to find
// out whether they are.
[[nodiscard]] bool drafts_may_pay(int32_t num_rows, const DraftTimes& times);

// How many of a request's drafts were right so far.
class DraftRecord {
 public:
  void reset() { *this = {}; }

  // A step yielded `tokens`, of which it verified num_drafted drafts. `proposed`: the drafts for the next tokens; -1:
  // none.
  void take(std::span<const TokenId> tokens,
            int32_t num_drafted,
            std::span<const TokenId> proposed);

  // The number of drafts for the next step, at most `most`. cost: draft_cost_beside. It changes only where that is
  // clearly better, so that rows do not go back and forth.
  int32_t decide(double cost, int32_t most);

  // The average probability that a draft is right if all before it are.
  [[nodiscard]] double acceptance() const { return acceptance_; }
  // Whether enough drafts were counted for that average to be used.
  [[nodiscard]] bool is_tested() const { return num_counted_ >= kTestDrafts; }

 private:
  static constexpr TokenId kUnknown = -2;
  static constexpr int32_t kTestDrafts = 16;

  void count(bool accepted);

  double acceptance_ = 0;
  int32_t num_counted_ = 0;
  TokenId guess_ = kUnknown;  // the first draft for the next token; -1: none was found
  int32_t length_ = 0;
};

}  // namespace warprow
