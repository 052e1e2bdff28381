// SPDX-License-Identifier: Apache-2.0
#include "runner/drafts/suffix_search.h"

#include "base/check.h"

#include <algorithm>

namespace warprow {
namespace {

// Which of kKeyLens is the longest that fits.
size_t key_of(int32_t len) {
  size_t key = 0;
  while (OutputIndex::kKeyLens[key] > len) {
    ++key;
  }
  return key;
}

}  // namespace

SuffixSearch::SuffixSearch(const KnownText& text,
                           const SuffixSettings& settings,
                           int32_t max_drafts)
    : text_(text),
      settings_(settings),
      max_drafts_(max_drafts),
      longest_(std::min(text.len, settings.max_tree_depth) - 1) {
  WR_DCHECK(max_drafts <= kMaxDrafts && settings.max_tree_depth <= kMaxSuffixDepth);
}

void SuffixSearch::forget_found() {
  num_found_ = longest_found_ = 0;
  num_of_key_.fill(0);
  found_from_ = kMaxSuffixDepth;
}

void SuffixSearch::search_row() {
  if (longest_ < 1) {
    return;
  }
  forget_found();
  find_in_row();
  for (int32_t len = longest_found_; len >= 1; --len) {
    follow(len, 1, [this](uint32_t& at, int32_t& token) {
      if (at >= static_cast<uint32_t>(text_.len)) {
        return false;
      }
      token = text_.at(static_cast<int32_t>(at++));
      return true;
    });
  }
}

void SuffixSearch::search_outputs(const OutputIndex& outputs) {
  forget_found();
  int32_t len = longest_;
  for (size_t key = 0; key < kNumKeys; ++key) {
    const int32_t least = OutputIndex::kKeyLens[key];
    int32_t most = 0;  // drafts of any match of these lengths
    for (int32_t l = least; l <= len; ++l) {
      most = std::max(most, most_drafts(l));
    }
    if (static_cast<float>(most) > score_) {
      find_in_outputs(outputs, key);
      for (int32_t l = std::min(len, longest_found_); l >= least; --l) {
        follow(l, 0, [&outputs](uint32_t& at, int32_t& token) {
          at = outputs.next(at);
          if (at == OutputIndex::kNone) {
            return false;
          }
          token = outputs.token(at);
          return true;
        });
      }
    }
    len = std::min(len, least - 1);
  }
}

// The most drafts of a match of this length. Their score is no larger: it sums one probability a draft.
int32_t SuffixSearch::most_drafts(int32_t match_len) const {
  const double by_match = match_len * settings_.max_spec_factor + 1e-6;
  const int32_t most = std::min(max_drafts_, settings_.max_tree_depth - match_len);
  return by_match < most ? static_cast<int32_t>(by_match) : most;
}

// How many tokens in front of `end` equal those at the row's end.
int32_t SuffixSearch::common_len(int32_t end) const {
  const int32_t most = std::min(longest_, end);
  int32_t len = 0;
  while (len < most && text_.at(end - 1 - len) == text_.at(text_.len - 1 - len)) {
    ++len;
  }
  return len;
}

int32_t SuffixSearch::common_len(const OutputIndex& outputs, OutputIndex::Place place) const {
  int32_t len = 0;
  while (place != OutputIndex::kNone && len < longest_ &&
         outputs.token(place) == text_.at(text_.len - 1 - len)) {
    ++len;
    place = outputs.previous(place);
  }
  return len;
}

// Adds an occurrence, unless there are kMostOccurrences with about as many tokens in common.
void SuffixSearch::keep(uint32_t at, int32_t len) {
  int32_t& num = num_of_key_[key_of(len)];
  if (num < kMostOccurrences) {
    ++num;
    found_[static_cast<size_t>(num_found_++)] = {at, len};
    longest_found_ = std::max(longest_found_, len);
  }
}

// Scans the row from its end, in stretches of positions that are contiguous in memory.
void SuffixSearch::find_in_row() {
  const int32_t last = text_.at(text_.len - 1);
  const int32_t page_mask = (1 << text_.known.page_shift) - 1;
  for (int32_t end = text_.len - 1; end > 0;) {
    const bool in_prefill = end <= text_.prefill_len;
    const int32_t page = (end - 1) & ~page_mask;
    const int32_t first = in_prefill ? page : std::max(page, text_.prefill_len);
    const int32_t* tokens =
        (in_prefill ? text_.known.prefill : text_.known.later) + text_.known.cell(text_.row, first);
    for (; end > first; --end) {
      if (tokens[end - 1 - first] == last) {
        keep(static_cast<uint32_t>(end), common_len(end));
      }
    }
  }
}

void SuffixSearch::find_in_outputs(const OutputIndex& outputs, size_t key) {
  const int32_t key_len = OutputIndex::kKeyLens[key];
  if (key_len > longest_) {
    return;
  }
  uint32_t hash = 0;
  for (int32_t i = 1; i <= key_len; ++i) {
    hash = OutputIndex::mix(hash, text_.at(text_.len - i));
  }
  int32_t num_visited = 0;
  for (OutputIndex::Place place = outputs.latest(key, hash);
       place != OutputIndex::kNone && num_visited < kMostVisited;
       place = outputs.before(key, place), ++num_visited) {
    const int32_t len = outputs.counts(place) ? common_len(outputs, place) : 0;
    if (len >= key_len && len < found_from_) {
      keep(place, len);
    }
  }
  found_from_ = key_len;
}

template <typename Step>
void SuffixSearch::follow(int32_t match_len, int32_t num_ends, const Step& step) {
  const int32_t most = most_drafts(match_len);
  if (static_cast<float>(most) <= score_) {
    return;
  }
  int32_t num_active = 0;
  for (int32_t i = 0; i < num_found_; ++i) {
    const Occurrence& o = found_[static_cast<size_t>(i)];
    if (o.len >= match_len) {
      active_[static_cast<size_t>(num_active++)].at = o.at;
    }
  }
  int32_t count = num_active + num_ends;
  std::array<int32_t, kMaxDrafts> path{};
  int32_t path_len = 0;
  float prob = 1;
  float score = 0;
  while (path_len < most) {
    const Choice choice = move_on(num_active, step);
    if (choice.count == 0) {
      break;
    }
    prob *= static_cast<float>(choice.count) / static_cast<float>(count);
    if (prob < static_cast<float>(settings_.min_token_prob)) {
      break;
    }
    path[static_cast<size_t>(path_len++)] = choice.token;
    score += prob;
    count = num_active = choice.count;
  }
  if (score > score_) {
    score_ = score;
    num_drafts_ = path_len;
    drafts_ = path;
  }
}

// Moves the active occurrences on, and keeps those with the most frequent token, of equally frequent ones the first.
template <typename Step>
SuffixSearch::Choice SuffixSearch::move_on(int32_t num_active, const Step& step) {
  ++round_;
  int32_t num = 0;
  Choice best;
  for (int32_t i = 0; i < num_active; ++i) {
    Active moved = active_[static_cast<size_t>(i)];
    if (step(moved.at, moved.token)) {
      active_[static_cast<size_t>(num++)] = moved;
      best.count = std::max(best.count, ++vote_of(moved.token).count);
    }
  }
  int32_t num_kept = 0;
  for (int32_t i = 0; i < num; ++i) {
    const Active& a = active_[static_cast<size_t>(i)];
    if (num_kept == 0 ? vote_of(a.token).count == best.count : a.token == best.token) {
      best.token = a.token;
      active_[static_cast<size_t>(num_kept++)] = a;
    }
  }
  return best;
}

SuffixSearch::Vote& SuffixSearch::vote_of(int32_t token) {
  uint32_t slot = OutputIndex::mix(0, token) % kVoteSlots;
  while (votes_[slot].round == round_ && votes_[slot].token != token) {
    slot = (slot + 1) % kVoteSlots;
  }
  Vote& vote = votes_[slot];
  if (vote.round != round_) {
    vote = {round_, token, 0};
  }
  return vote;
}

void propose_suffix(const KnownText& text,
                    const OutputIndex& outputs,
                    const SuffixSettings& settings,
                    std::span<int32_t> drafts) {
  SuffixSearch search(text, settings, static_cast<int32_t>(drafts.size()));
  search.search_row();
  if (outputs.is_on()) {
    search.search_outputs(outputs);
  }
  const auto rest = std::ranges::copy(search.drafts(), drafts.begin()).out;
  std::fill(rest, drafts.end(), -1);
}

}  // namespace warprow
