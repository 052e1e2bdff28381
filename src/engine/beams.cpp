// SPDX-License-Identifier: Apache-2.0
#include "engine/beams.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace warprow {
namespace {

// A live sequence and its next token.
struct Candidate {
  size_t parent = 0;
  size_t place = 0;  // in the parent's list
  double cum_logprob = 0;
  double score = 0;
};

Beam grown(const Beam& parent, const std::vector<TokenLogprob>& likeliest, const Candidate& from) {
  const TokenLogprob& next = likeliest[from.place];
  Beam beam = parent;
  beam.token_ids.push_back(next.token_id);
  beam.logprobs.push_back(
      {next.token_id, next.logprob, static_cast<int32_t>(from.place) + 1, likeliest});
  beam.cum_logprob = from.cum_logprob;
  beam.score = from.score;
  return beam;
}

// The places of the `count` best, best first; of equal scores the earlier one.
template <typename Scored>
std::vector<size_t> best_of(const std::vector<Scored>& all, int64_t count) {
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return all[a].score != all[b].score ? all[a].score > all[b].score : a < b;
  });
  order.resize(std::min(order.size(), static_cast<size_t>(count)));
  return order;
}

}  // namespace

Beams::Beams(std::vector<TokenId> prompt,
             const BeamLimits& limits,
             std::vector<TokenId> eos_token_ids)
    : limits_(limits), eos_token_ids_(std::move(eos_token_ids)) {
  Beam root;
  root.token_ids = std::move(prompt);
  live_.push_back(std::move(root));
}

std::span<const Beam> Beams::live() const {
  return num_steps_ < limits_.max_tokens ? std::span<const Beam>(live_) : std::span<const Beam>();
}

void Beams::extend(std::span<const std::vector<TokenLogprob>> likeliest) {
  WR_CHECK_EQ(likeliest.size(), live_.size());
  std::vector<Candidate> going_on;
  for (size_t i = 0; i < live_.size(); ++i) {
    const Beam& parent = live_[i];
    for (size_t place = 0; place < likeliest[i].size(); ++place) {
      const TokenLogprob& next = likeliest[i][place];
      const double cum_logprob = parent.cum_logprob + double{next.logprob};
      const Candidate candidate{
          i, place, cum_logprob, score(parent.token_ids.size() + 1, next.token_id, cum_logprob)};
      if (!limits_.ignore_eos && is_eos(next.token_id)) {
        ended_.push_back(grown(parent, likeliest[i], candidate));
        ended_.back().has_ended = true;
      } else {
        going_on.push_back(candidate);
      }
    }
  }
  keep_best(ended_);
  std::vector<Beam> next;
  for (const size_t i : best_of(going_on, limits_.width)) {
    const Candidate& candidate = going_on[i];
    next.push_back(grown(live_[candidate.parent], likeliest[candidate.parent], candidate));
  }
  live_ = std::move(next);
  ++num_steps_;
}

std::vector<Beam> Beams::best() const {
  std::vector<Beam> all = ended_;
  all.insert(all.end(), live_.begin(), live_.end());
  keep_best(all);
  return all;
}

bool Beams::is_eos(TokenId token) const { return std::ranges::count(eos_token_ids_, token) > 0; }

double Beams::score(size_t length, TokenId last, double cum_logprob) const {
  const size_t counted = length - (is_eos(last) ? 1 : 0);
  return cum_logprob / std::pow(static_cast<double>(counted), limits_.length_penalty);
}

void Beams::keep_best(std::vector<Beam>& beams) const {
  std::vector<Beam> kept;
  for (const size_t i : best_of(beams, limits_.width)) {
    kept.push_back(std::move(beams[i]));
  }
  beams = std::move(kept);
}

}  // namespace warprow
