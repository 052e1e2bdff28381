// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/gumbel_cuda.cuh"
#include "kernels/sample/top_k_top_p_cuda.cuh"

#include <cstdint>

namespace warprow::cuda {

// The draw from a part of a row, by one block.

struct FinishShared {
  SearchShared search;
  DrawShared drawn;
  uint32_t limit;  // ordered bound that a token must pass
  int32_t rank;
};

// From shared.search.keys[0, count) and `first`, which the temperature's division may have put
// behind a lower id.
__device__ inline int32_t draw_from_keys(
    FinishShared& shared, const RandomKey& key, int32_t count, float max, int32_t first) {
  Drawn mine;
  if (threadIdx.x == 0) {
    mine.offer(gumbel_score(max, key, first), first);
  }
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kFinishThreads) {
    const TokenKey token = shared.search.keys[i];
    mine.offer(gumbel_score(key_value(token), key, key_id(token)), key_id(token));
  }
  return best_of_block(shared.drawn, mine);
}

// From all tokens with keys up to `limit`; `first` is one of them.
__device__ inline int32_t draw_from_row(FinishShared& shared,
                                        const SearchRow& row,
                                        const RandomKey& key,
                                        TokenKey limit,
                                        int32_t first) {
  const GumbelDraw draw(key, 1.0F);  // values are divided already
  Drawn mine;
  if (threadIdx.x == 0) {
    mine.offer(draw.score(row.max, first), first);
    shared.limit = ordered(GumbelDraw::beatable(mine.score));
  }
  __syncthreads();
  const float lower = key_value(limit);
  volatile uint32_t* const pass = &shared.limit;
  for_each_four(row, lower, [&](const float(&values)[4], int32_t id) {
    const PhiloxBlock bits = draw.bits(id / 4);
    const float limit_now = from_ordered(*pass);
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      const bool survives =
          values[c] >= lower && id + c < row.logits.vocab && token_key(values[c], id + c) <= limit;
      if (survives && !(draw.bound(values[c], bits.word[c]) <= limit_now)) {
        const double score = draw.score(values[c], id + c);
        mine.offer(score, id + c);
        atomicMax(&shared.limit, ordered(GumbelDraw::beatable(score)));
      }
    }
  });
  return best_of_block(shared.drawn, mine);
}

// What max - value must stay under for a token to be in a nucleus of p of `total`, counted in
// weights of the largest: tokens under it weigh at most (1 - p) * total together. Half of it leaves
// room for rounding.
__device__ inline float nucleus_span(float p, double total, int32_t vocab) {
  const double spare = 0.5 * (1.0 - static_cast<double>(p)) * total / static_cast<double>(vocab);
  return static_cast<float>(-log(spare));
}

// A random row under min_p, top_k and top_p. `total`: the sum of e^(value - max) over all tokens if
// top_p comes alone.
__device__ inline int32_t draw_cut(FinishShared& shared,
                                   const SearchRow& row,
                                   const RowPlan& plan,
                                   const RandomKey& key,
                                   double total,
                                   int32_t argmax) {
  SearchShared& search = shared.search;
  const int32_t vocab = row.logits.vocab;
  float lower = std::numeric_limits<float>::lowest();  // -inf never survives
  if (plan.min_p > 0.0F) {
    lower = fmaxf(lower, min_p_threshold(row.max, plan.min_p));
  }
  if (plan.top_k == 0 && plan.top_p >= 1.0F) {
    return draw_from_row(shared, row, key, last_key(lower, vocab), argmax);
  }
  const MassWeight mass{row.max};
  const bool few = plan.top_k > 0 ? plan.top_k <= kFinishThreads / 2 : true;
  float from = lower;
  float span = nucleus_span(plan.top_p, 1.0, vocab);
  bool total_known = true;  // from the list of candidates alone
  if (plan.top_k > 0) {
    from = few ? fmaxf(lower, value_reached_by(row, plan.top_k)) : lower;
  } else {
    span = nucleus_span(plan.top_p, total, vocab);
    from = fmaxf(lower, row.max - span);
    total_known = from == lower;
  }
  const bool mass_of_row = !total_known && plan.min_p == 0.0F;
  const bool may_list = few && (total_known || mass_of_row);
  int32_t count = kMaxKeys + 1;
  if (may_list) {
    count = collect(search, row, from, [](float, TokenKey) { return true; });
  }
  if (count <= kMaxKeys) {
    sort_keys(search, count);
    count = plan.top_k > 0 ? min(count, plan.top_k) : count;
    if (plan.top_p < 1.0F) {
      unsigned long long sum = 0;
      if (mass_of_row) {
        sum = __double2ull_rn(total * 17592186044416.0);
      } else {
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kFinishThreads) {
          sum += mass(key_value(search.keys[i]));
        }
        sum = block_sum(search, sum);
      }
      count = count_until(search, count, mass, 0, Target{0, plan.top_p}.of(sum));
    }
    return draw_from_keys(shared, key, count, row.max, argmax);
  }
  TokenKey limit = last_key(lower, vocab);
  if (plan.top_k > 0) {
    constexpr float kSpan = 32.0F;
    const Target target{static_cast<unsigned long long>(plan.top_k), 1.0F};
    limit = last_of(search, row, limit, kSpan, CountWeight{}, target);
  }
  if (plan.top_p < 1.0F) {
    limit = last_of(search, row, limit, span, mass, Target{0, plan.top_p});
  }
  __syncthreads();
  return draw_from_row(shared, row, key, limit, argmax);
}

}  // namespace warprow::cuda
