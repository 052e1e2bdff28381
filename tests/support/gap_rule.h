// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sched/request.h"
#include "tests/support/model_rig.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::test {

// Limits on the difference between two greedy runs whose sums were rounded differently.
struct GapRule {
  float gap = 0.05F;       // another token is allowed only within this logprob gap in the reference
  double mean = 0.02;      // limit on the mean difference of the top tokens' logprobs
  float tolerance = 0.1F;  // limit on each difference
  double flips = 0.05;     // limit on the share of positions with another token
};

struct GapCounts {
  int64_t positions = 0;
  int64_t flips = 0;  // positions with another token, all within the gap
  float worst = 0.0F;
  double mean = 0.0;  // mean absolute difference of logprobs
};

namespace gap_detail {

inline const float* find(const std::vector<std::pair<TokenId, float>>& top, TokenId id) {
  const auto at =
      std::find_if(top.begin(), top.end(), [id](const auto& entry) { return entry.first == id; });
  return at == top.end() ? nullptr : &at->second;
}

}  // namespace gap_detail

// Runs greedy requests with logprobs and compares every position with the reference's. After an allowed different token
// the request is submitted again with the reference's tokens, so every position is compared on the same history.
inline GapCounts expect_follows(ModelRig& rig,
                                const std::vector<Request>& requests,
                                const std::map<uint64_t, RigResult>& reference,
                                const GapRule& rule) {
  struct Open {
    const Request* request;
    size_t done;  // reference tokens compared
  };
  GapCounts counts;
  int64_t num_logprobs = 0;
  std::vector<Open> open;
  for (const Request& request : requests) {
    open.push_back({&request, 0});
  }
  for (uint64_t round = 0; !open.empty(); ++round) {
    const uint64_t first_id = round * 1000;
    for (const Open& o : open) {
      Request request = *o.request;
      const RigResult& want = reference.at(request.id);
      const auto done = static_cast<std::ptrdiff_t>(o.done);
      request.id += first_id;
      request.prompt.insert(request.prompt.end(), want.tokens.begin(), want.tokens.begin() + done);
      request.max_tokens = static_cast<int32_t>(want.tokens.size() - o.done);
      rig.add(request);
    }
    rig.run();
    std::vector<Open> again;
    for (const Open& o : open) {
      const RigResult& want = reference.at(o.request->id);
      const RigResult& got = rig.results().at(o.request->id + first_id);
      for (size_t i = 0; i < got.tokens.size(); ++i) {
        const size_t at = o.done + i;
        SCOPED_TRACE("request " + std::to_string(o.request->id) + ", output " + std::to_string(at));
        ++counts.positions;
        for (const auto& [id, logprob] : want.top[at]) {
          if (const float* other = gap_detail::find(got.top[i], id); other != nullptr) {
            const float error = std::abs(*other - logprob);
            EXPECT_LE(error, rule.tolerance) << "of token " << id;
            counts.worst = std::max(counts.worst, error);
            counts.mean += error;
            ++num_logprobs;
          }
        }
        if (got.tokens[i] != want.tokens[at]) {
          ++counts.flips;
          const float* liked = gap_detail::find(want.top[at], got.tokens[i]);
          EXPECT_NE(liked, nullptr) << got.tokens[i] << " for " << want.tokens[at];
          EXPECT_LT(want.top[at][0].second - (liked != nullptr ? *liked : -1e9F), rule.gap)
              << got.tokens[i] << " for " << want.tokens[at];
          if (at + 1 < want.tokens.size()) {
            again.push_back({o.request, at + 1});
          }
          break;
        }
      }
    }
    open = std::move(again);
  }
  counts.mean /= static_cast<double>(std::max<int64_t>(1, num_logprobs));
  EXPECT_LE(counts.mean, rule.mean);
  EXPECT_LE(static_cast<double>(counts.flips), rule.flips * static_cast<double>(counts.positions))
      << "near-ties should be rare";
  return counts;
}

}  // namespace warprow::test
