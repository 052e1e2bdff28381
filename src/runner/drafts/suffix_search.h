// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/speculation.h"
#include "kernels/row_tokens.h"
#include "runner/drafts/output_index.h"

#include <array>
#include <cstdint>
#include <span>

namespace warprow {

// A row's known tokens. On a CPU the prompt is read where it lies.
struct KnownText {
  const RowTokens& known;
  int32_t row = 0;
  int32_t prefill_len = 0;
  int32_t len = 0;

  [[nodiscard]] int32_t at(int32_t position) const {
    return (position < prefill_len ? known.prefill : known.later)[known.cell(row, position)];
  }
};

// Suffix decoding (Oliaro et al., "SuffixDecoding", arXiv 2411.04975, with the scores of its implementation in
// ArcticInference). For every length m, the row's last m tokens are looked up in a text. The tokens behind their
// occurrences form a tree, in which each node has the number of occurrences that go through it. The drafts for m are
// the path with the largest counts. The probability of a draft is the product of the count ratios up to it. The path
// ends before a draft below min_token_prob, and after m * max_spec_factor drafts at most. The score of m is the sum of
// the probabilities. The drafts with the largest score are taken; of equal scores, those of the longest match. Drafts
// from the outputs of all requests are taken only if their score is larger than that of the row's own text. The row's
// end counts as an occurrence with nothing behind it.
//
// Of tokens with equal counts, the path takes the one that comes first in the list of occurrences, which begins with
// the latest. No tree is stored: occurrences are found by a scan of the row, and through an OutputIndex. There are four
// classes of occurrences: with 1, 2 to 3, 4 to 7, and 8 or more tokens in common. The latest kMostOccurrences of each
// are used.
//
// Owns: all memory that a search needs; some 30 KB, on the stack.
class SuffixSearch {
 public:
  static constexpr int32_t kMostOccurrences = 128;

  // At most max_drafts <= kMaxDrafts drafts.
  SuffixSearch(const KnownText& text, const SuffixSettings& settings, int32_t max_drafts);

  void search_row();
  void search_outputs(const OutputIndex& outputs);

  [[nodiscard]] std::span<const int32_t> drafts() const {
    return {drafts_.data(), static_cast<size_t>(num_drafts_)};
  }
  [[nodiscard]] float score() const { return score_; }

 private:
  static constexpr size_t kNumKeys = OutputIndex::kKeyLens.size();
  static constexpr int32_t kMostFound = kMostOccurrences * static_cast<int32_t>(kNumKeys);
  static constexpr int32_t kMostVisited = 4 * kMostOccurrences;  // of the places of one hash
  static constexpr uint32_t kVoteSlots = 1024;
  static_assert(kVoteSlots >= 2 * kMostFound);

  struct Occurrence {
    uint32_t at = 0;  // in the row: the position behind it; in the outputs: its last place
    int32_t len = 0;  // tokens in common with the row's end, at most those of the longest match
  };
  struct Vote {
    uint32_t round = 0;
    int32_t token = 0;
    int32_t count = 0;
  };

  struct Active {  // an occurrence of the match of follow()
    uint32_t at = 0;
    int32_t token = 0;  // the last one it moved over
  };
  struct Choice {
    int32_t token = 0;
    int32_t count = 0;  // 0: no token follows
  };

  void forget_found();
  [[nodiscard]] int32_t most_drafts(int32_t match_len) const;
  [[nodiscard]] int32_t common_len(int32_t end) const;
  [[nodiscard]] int32_t common_len(const OutputIndex& outputs, OutputIndex::Place place) const;
  void keep(uint32_t at, int32_t len);
  void find_in_row();
  void find_in_outputs(const OutputIndex& outputs, size_t key);
  // Takes the drafts of a match of match_len if their score is larger. step: moves an occurrence on by a token and gives
  // that, or says that there is none.
  template <typename Step>
  void follow(int32_t match_len, int32_t num_ends, const Step& step);
  template <typename Step>
  Choice move_on(int32_t num_active, const Step& step);
  Vote& vote_of(int32_t token);

  KnownText text_;
  SuffixSettings settings_;
  int32_t max_drafts_;
  int32_t longest_;  // match that is looked for
  int32_t num_drafts_ = 0;
  float score_ = 0;
  std::array<int32_t, kMaxDrafts> drafts_{};
  std::array<Occurrence, kMostFound> found_{};
  int32_t num_found_ = 0;
  int32_t longest_found_ = 0;
  int32_t found_from_ = 0;  // all with so many tokens in common were looked for
  std::array<int32_t, kNumKeys> num_of_key_{};
  std::array<Active, kMostFound> active_{};
  std::array<Vote, kVoteSlots> votes_{};
  uint32_t round_ = 0;
};

// The drafts of a row that yielded tokens, with its outputs already in the index. -1 fills what is not found.
void propose_suffix(const KnownText& text,
                    const OutputIndex& outputs,
                    const SuffixSettings& settings,
                    std::span<int32_t> drafts);

}  // namespace warprow
