// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "engine/engine.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

struct BeamLimits {
  int64_t width = 1;            // sequences that are kept after each token
  int64_t max_tokens = 16;      // of the output, >= 1
  bool ignore_eos = false;      // end tokens are tokens like others
  double length_penalty = 1.0;  // the exponent of the length that divides a score
};

// A sequence of a beam search.
struct Beam {
  std::vector<TokenId> token_ids;  // prompt and output
  // Of the output. Each has as `top` the tokens that it was chosen from.
  std::vector<LogprobEntry> logprobs;
  double cum_logprob = 0;  // of the output
  double score = 0;
  bool has_ended = false;  // by an end token, its last one
};

// The sequences of a beam search and the rule by which they grow: from all next tokens of the live sequences, those
// with the best scores stay, as many as the width; those that end are put aside. The score is cum_logprob / length ^
// length_penalty; the length counts the prompt, and no end token at the end. These are vLLM's rules, which follow
// transformers' older ones. Of equal scores that of the better sequence comes first, then that of the likelier token.
//
// Thread: one. Invariant: live() has at most `width` sequences, each with the same length.
class Beams {
 public:
  // Any of eos_token_ids ends a sequence.
  Beams(std::vector<TokenId> prompt, const BeamLimits& limits, std::vector<TokenId> eos_token_ids);

  // The sequences whose next tokens are needed; none: the search is over.
  [[nodiscard]] std::span<const Beam> live() const;
  // The likeliest next tokens of each live sequence, best first.
  void extend(std::span<const std::vector<TokenLogprob>> likeliest);
  // The best sequences so far, best first, at most as many as the width.
  [[nodiscard]] std::vector<Beam> best() const;

 private:
  [[nodiscard]] bool is_eos(TokenId token) const;
  [[nodiscard]] double score(size_t length, TokenId last, double cum_logprob) const;
  void keep_best(std::vector<Beam>& beams) const;

  BeamLimits limits_;
  std::vector<TokenId> eos_token_ids_;
  std::vector<Beam> live_;   // best first
  std::vector<Beam> ended_;  // best first, at most `width`
  int64_t num_steps_ = 0;
};

}  // namespace warprow
