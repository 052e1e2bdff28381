// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/sample/cuda/gumbel.cuh"

#include <cstdint>

namespace warprow::cuda {

// A tile of a row in the registers of a CTA.

// A thread's part: four tokens of each of the tile's kParts parts.
template <int32_t kThreads>
struct Tile {
  static constexpr int32_t kStep = 4 * kThreads;  // tokens of a part
  static constexpr int32_t kParts = kTileTokens / kStep;
  static constexpr int32_t kTokens = 4 * kParts;
  float x[kTokens];
  int32_t first;

  __device__ explicit Tile(int32_t tile)
      : first(tile * kTileTokens + 4 * static_cast<int32_t>(threadIdx.x)) {}

  __device__ int32_t token(int32_t j) const { return first + j / 4 * kStep + j % 4; }

  // four_at(id) gives the logits of tokens id .. id + 3.
  template <typename FourAt>
  __device__ void load(const FourAt& four_at) {
#pragma unroll
    for (int32_t part = 0; part < kParts; ++part) {
      const float4 v = four_at(first + part * kStep);
      x[4 * part] = v.x;
      x[4 * part + 1] = v.y;
      x[4 * part + 2] = v.z;
      x[4 * part + 3] = v.w;
    }
  }
  __device__ void load(const LogitRow& row) {
    if (row.aligned && first + (kParts - 1) * kStep + 4 <= row.vocab) {
      load([&](int32_t id) { return *reinterpret_cast<const float4*>(row.x + id); });
    } else {
      load([&](int32_t id) { return row.four(id); });
    }
  }

  // The maximum of one part, and of all.
  __device__ float max_of(int32_t part) const {
    return max_or_nan(max_or_nan(x[4 * part], x[4 * part + 1]),
                      max_or_nan(x[4 * part + 2], x[4 * part + 3]));
  }
  __device__ float max() const {
    float m = max_of(0);
#pragma unroll
    for (int32_t part = 1; part < kParts; ++part) {
      m = max_or_nan(m, max_of(part));
    }
    return m;
  }

  // The lowest id of this thread's tokens with this value. Precondition: one of them has it.
  __device__ int32_t find(float value) const {
    int32_t j = kTokens - 1;
#pragma unroll
    for (int32_t k = kTokens - 2; k >= 0; --k) {
      j = x[k] == value ? k : j;
    }
    return token(j);
  }
};

// Tokens that need an exact score.
struct DrawList {
  static constexpr int32_t kEntries = 64;
  struct Entry {
    float bound;
    float x;
    int32_t token;
  };
  uint32_t limit;  // ordered bound: only tokens with a larger bound are drawn
  int32_t size;    // may be above kEntries
  Entry entries[kEntries];
  DrawShared rest;  // of the tokens without an entry

  __device__ void clear() {
    limit = 0;  // as a float NaN, which rules out no token
    size = 0;
    rest.clear();
  }
};

// Bounds of the noise of each of a thread's groups of four tokens. They need no logits, so they are computed
// while the logits are being loaded.
template <int32_t kThreads>
struct TileNoise {
  float of[Tile<kThreads>::kParts];

  __device__ void make(const Tile<kThreads>& tile, const GumbelDraw& draw) {
#pragma unroll
    for (int32_t part = 0; part < Tile<kThreads>::kParts; ++part) {
      of[part] = draw.noise_of_four(tile.token(4 * part) / 4);
    }
  }
};

// The best draw of a tile, returned in the first warp. All threads of the CTA call it; `list` must be cleared
// before an earlier barrier. Four tokens have one bound, from the largest of their logits and of their noise.
// In each warp, the four tokens with the largest bound set the limit, by their best rough score. Tokens whose
// own bound exceeds the limit, rarely more than a few, are listed for the first warp.
//
// reread(first) loads four tokens' logits again, which saves the registers for all of them.
template <int32_t kThreads, typename Reread>
__device__ Drawn draw_tile(const Tile<kThreads>& tile,
                           const TileNoise<kThreads>& noise,
                           const GumbelDraw& draw,
                           DrawList& list,
                           const Reread& reread) {
  constexpr int32_t kParts = Tile<kThreads>::kParts;
  float bounds[kParts];
  float bound = -kInfinity;
#pragma unroll
  for (int32_t part = 0; part < kParts; ++part) {
    bounds[part] = draw.bound(tile.max_of(part), noise.of[part]);
    bound = fmaxf(bounds[part], bound);
  }
  bound = max_of_lanes(bound);
  // Calls use(first, x, bits) for the groups of four whose bounds exceed `least`.
  const auto for_each_above = [&](float least, const auto& use) {
    uint32_t parts = 0;
#pragma unroll
    for (int32_t part = 0; part < kParts; ++part) {
      parts |= bounds[part] <= least ? 0U : 1U << part;
    }
#pragma unroll 1
    for (; parts != 0; parts &= parts - 1) {
      const int32_t part = __ffs(static_cast<int>(parts)) - 1;
      const int32_t first = tile.token(0) + part * Tile<kThreads>::kStep;
      const float4 four = reread(first);
      const float x[4] = {four.x, four.y, four.z, four.w};
      use(first, x, draw.bits(first / 4));
    }
  };
  Drawn mine;
  volatile uint32_t* const limit = &list.limit;
  if (bound != -kInfinity && !(bound <= from_ordered(*limit))) {
    for_each_above(bound - 1e-6F * fabsf(bound) - 1e-6F,
                   [&](int32_t, const float(&x)[4], const PhiloxBlock& bits) {
                     float score = -kInfinity;
#pragma unroll
                     for (int32_t c = 0; c < 4; ++c) {
                       score = fmaxf(score, draw.rough_score(x[c], bits.word[c]));
                     }
                     atomicMax(&list.limit, ordered(GumbelDraw::beatable(score)));
                   });
    __syncwarp();
    const float least = from_ordered(*limit);
    for_each_above(least, [&](int32_t first, const float(&x)[4], const PhiloxBlock& bits) {
#pragma unroll
      for (int32_t c = 0; c < 4; ++c) {
        const float b = draw.bound(x[c], GumbelDraw::noise_of(bits.word[c]));
        if (x[c] == -kInfinity || b <= least) {
          continue;
        }
        const int32_t at = atomicAdd(&list.size, 1);
        if (at < DrawList::kEntries) {
          list.entries[at] = {b, x[c], first + c};
        } else {
          mine.offer(draw.score(x[c], first + c), first + c);
        }
      }
    });
  }
  __syncthreads();
  const bool all_listed = list.size <= DrawList::kEntries;
  if (threadIdx.x < 32) {
    const int32_t n = min(list.size, DrawList::kEntries);
    const float least = from_ordered(*limit);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += 32) {
      const DrawList::Entry entry = list.entries[i];
      if (!(entry.bound <= least)) {
        mine.offer(draw.score(entry.x, entry.token), entry.token);
      }
    }
  }
  if (!all_listed) {
    return best_of_block(list.rest, mine);
  }
  return threadIdx.x < 32 ? best_of_warp(mine) : mine;
}

}  // namespace warprow::cuda
