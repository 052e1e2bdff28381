// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/sample/cuda/tile.cuh"
#include "kernels/sample/cuda/top_k_top_p.cuh"

#include <cstdint>

namespace warprow::cuda {

// The draw from the survivors of a cut, by one CTA.

constexpr int32_t kMaxTiles = num_tiles(kMaxVocab);

// State of a tile's winner, the token with its best score.
enum class Winner : int32_t {
  kOpen,   // not decided yet: its key or a test decides
  kStale,  // does not survive; the tile's best survivor scores less
};

struct FinishShared {
  SearchShared search;
  DrawShared drawn;
  DrawList draws;
  double score[kMaxTiles];
  int32_t token[kMaxTiles];  // INT32_MAX: none left
  Winner winner[kMaxTiles];
  TokenKey limit;           // tokens with larger keys do not survive
  TokenKey sure;            // all tokens with keys up to this survive
  int32_t tested[kTested];  // tile indices
  int32_t redraw;           // tile index, or -1
};

// Draws from shared.search.keys[0, count) and `first`, the argmax: after the division by the temperature, a
// token with a lower id may be sorted before it.
__device__ inline int32_t draw_from_keys(
    FinishShared& shared, const RandomKey& key, int32_t count, float max, int32_t first) {
  const GumbelDraw draw(key, 1.0F);  // the values are already divided
  Drawn mine;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i <= count; i += kFinishThreads) {
    const TokenKey token = i < count ? shared.search.keys[i] : token_key(max, first);
    mine.offer(draw.score(key_value(token), key_id(token)), key_id(token));
  }
  return best_of_block(shared.drawn, mine).token;
}

// Finds a tile's winner among the argmax and the tokens with keys up to shared.limit.
__device__ inline void redraw_tile(FinishShared& shared,
                                   const SearchRow& row,
                                   const RandomKey& random,
                                   int32_t argmax) {
  const int32_t number = shared.redraw;
  const TokenKey limit = shared.limit;
  const auto kept = [&](int32_t first) {
    const float4 four = row.logits.four(first);
    float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      const int32_t id = first + c;
      if (id != argmax && token_key(row.value(x[c]), id) > limit) {
        x[c] = -kInfinity;
      }
    }
    return float4{x[0], x[1], x[2], x[3]};
  };
  Tile<kFinishThreads> tile(number);
  tile.load(kept);
  if (threadIdx.x == 0) {
    shared.draws.clear();
  }
  const GumbelDraw draw(random, row.divisor);
  TileNoise<kFinishThreads> noise;
  noise.make(tile, draw);
  __syncthreads();
  const Drawn drawn = draw_tile(tile, noise, draw, shared.draws, kept);
  if (threadIdx.x == 0) {
    shared.score[number] = drawn.score;
    shared.token[number] = drawn.token;
    shared.winner[number] = Winner::kOpen;
  }
  __syncthreads();
}

// The first warp: visits the tiles in descending order of their winners' scores. Writes the tiles to test to
// shared.tested (-1: no more), or the tile to draw again to shared.redraw, or the token to shared.drawn.
__device__ inline void next_winners(FinishShared& shared, const SearchRow& row, int32_t argmax) {
  const int32_t tiles = row.num_groups / kTileThreads;
  BestTiles best;
  int32_t token = -1;
  int32_t redraw = -1;
  bool more = true;
  for (int32_t t = 0; t < kTested; ++t) {
    int32_t tile = -1;
    if (more) {
      tile =
          best.next(tiles, [&](int32_t at) { return Drawn{shared.score[at], shared.token[at]}; });
    }
    if (tile >= 0) {
      const int32_t id = shared.token[tile];
      const Winner winner = shared.winner[tile];
      const TokenKey key = row.key(id);
      const bool valid = winner == Winner::kOpen && (id == argmax || key <= shared.sure);
      const bool stale = winner == Winner::kStale || (!valid && key > shared.limit);
      if (t == 0) {
        token = valid ? id : -1;
        redraw = stale ? tile : -1;
      }
      if (valid || stale) {  // later tiles need not be decided yet
        tile = -1;
      }
    }
    more = tile >= 0;
    if (threadIdx.x == 0) {
      shared.tested[t] = tile;
    }
  }
  if (threadIdx.x == 0) {
    shared.redraw = redraw;
    shared.drawn.token = token;
  }
}

// One thread: records a test's result for a tile's winner.
__device__ inline void note_test(FinishShared& shared,
                                 const SearchRow& row,
                                 int32_t tile,
                                 bool below_target) {
  const TokenKey key = row.key(shared.token[tile]);
  if (!below_target) {
    shared.limit = min(shared.limit, key - 1);
  }
  if (key <= shared.limit) {
    shared.sure = max(shared.sure, key);
  } else {
    shared.winner[tile] = Winner::kStale;
  }
}

// The first warp: applies the tests of the best winners, which mass_kernel did for all tiles.
__device__ inline void note_masses(FinishShared& shared,
                                   const SearchRow& row,
                                   const TileMasses* masses,
                                   double target) {
  const int32_t tiles = row.num_groups / kTileThreads;
  BestTiles best;
  for (int32_t t = 0; t < kTested; ++t) {
    const int32_t tile =
        best.next(tiles, [&](int32_t at) { return Drawn{shared.score[at], shared.token[at]}; });
    unsigned long long before = 0;
    for (int32_t at = static_cast<int32_t>(threadIdx.x); at < tiles; at += 32) {
      before += masses[at].before[t];
    }
    before = sum_of_lanes(before);
    if (threadIdx.x == 0 && tile >= 0) {
      note_test(shared, row, tile, static_cast<double>(before) < target);
    }
  }
}

// The draw among survivors, from the tiles' winners among all tokens. The winner of a set is also the winner
// of each of its subsets that contain it. Winners are tested in descending order of score. If one fails, no
// token after it in key order survives. Only tiles whose winner failed and scored higher than the result are
// drawn again.
//
// A token survives if its key is at most shared.limit and the mass or number of tokens before it is below
// `target`.
__device__ __noinline__ inline int32_t draw_of_winners(FinishShared& shared,
                                                       const SearchRow& row,
                                                       const RandomKey& random,
                                                       int32_t argmax,
                                                       bool by_mass,
                                                       double target) {
  while (true) {
    __syncthreads();
    if (threadIdx.x < 32) {
      next_winners(shared, row, argmax);
    }
    __syncthreads();
    if (shared.drawn.token >= 0) {
      return shared.drawn.token;
    }
    if (shared.redraw >= 0) {
      redraw_tile(shared, row, random, argmax);
      continue;
    }
    Tested tested;
#pragma unroll
    for (int32_t t = 0; t < kTested; ++t) {
      const int32_t tile = shared.tested[t];
      tested.id[t] = tile < 0 ? 0 : shared.token[tile];
      tested.logit[t] = tile < 0 ? kInfinity : row.logits.x[tested.id[t]];
      tested.before[t] = 0;
    }
    sum_masses_before(shared.search, row, by_mass, tested);
    if (threadIdx.x == 0) {
#pragma unroll
      for (int32_t t = 0; t < kTested; ++t) {
        const int32_t tile = shared.tested[t];
        if (tile >= 0) {
          note_test(shared, row, tile, static_cast<double>(tested.before[t]) < target);
        }
      }
    }
  }
}

// Draws for a random row under min_p, top_k and top_p. `tiles`: the scan's results; their winners are among
// all tokens, unless top_k is listed. `masses`: the tests' sums, for rows that are tested. `total`: the sum
// of e^(value - max) over all tokens, for rows with top_p alone.
__device__ inline int32_t draw_cut(FinishShared& shared,
                                   const SearchRow& row,
                                   const RowPlan& plan,
                                   const RandomKey& random,
                                   const TileResult* tiles,
                                   const TileMasses* masses,
                                   int32_t argmax,
                                   double total) {
  SearchShared& search = shared.search;
  float lower = std::numeric_limits<float>::lowest();  // -inf never survives
  if (plan.min_p > 0.0F) {
    lower = fmaxf(lower, min_p_threshold(row.max, plan.min_p));
  }
  if (threadIdx.x == 0) {
    shared.drawn.clear();
  }
  if (plan.listed()) {
    const float from = fmaxf(lower, value_reached_by(search, row, plan.top_k));
    int32_t count = collect(search, row, from, [](TokenKey) { return true; });
    if (count <= kMaxKeys) {
      sort_keys(search, count);
      count = min(count, plan.top_k);
      if (plan.top_p < 1.0F) {
        count = count_top_p(search, count, plan.top_p, row.max);
      }
      return draw_from_keys(shared, random, count, row.max, argmax);
    }
  }
  const int32_t num_tiles = row.num_groups / kTileThreads;
  for (int32_t t = static_cast<int32_t>(threadIdx.x); t < num_tiles; t += kFinishThreads) {
    // Without winners from the scan, every tile must be drawn again.
    shared.score[t] = plan.listed() ? kInfinity : tiles[t].score;
    shared.token[t] = plan.listed() ? t * kTileTokens : tiles[t].drawn;
    shared.winner[t] = plan.listed() ? Winner::kStale : Winner::kOpen;
  }
  const bool by_mass = plan.top_p < 1.0F;
  TokenKey limit = token_key(lower, row.logits.vocab - 1);
  if (plan.listed() || (plan.top_k > 0 && by_mass)) {
    limit = kth_key(search, row, lower, plan.top_k);
  }
  double target = kInfinity;
  if (by_mass) {
    const double mass = plan.top_p_alone() ? total * kMassUnits
                                           : static_cast<double>(mass_up_to(search, row, limit));
    target = static_cast<double>(plan.top_p) * mass;
  } else if (plan.top_k > 0 && !plan.listed()) {
    target = plan.top_k;
  }
  if (threadIdx.x == 0) {
    shared.limit = limit;
    shared.sure = target == kInfinity ? limit : 0;
  }
  __syncthreads();
  if (plan.tested() && threadIdx.x < 32) {
    note_masses(shared, row, masses, target);
  }
  return draw_of_winners(shared, row, random, argmax, by_mass, target);
}

}  // namespace warprow::cuda
