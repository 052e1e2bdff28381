// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/sample/cuda/sample_row.cuh"
#include "kernels/sample/rules/gumbel.h"

#include <cstdint>

namespace warprow::cuda {

// A Gumbel-max draw without a double logarithm for every token. -ln(u) is at least the Gumbel noise of u, and
// close to it where the noise is large. So float bounds rule out nearly all tokens, and only the others get
// their exact score. Bounds are in units of ln 2 and omit the noise's constant 32.
struct GumbelDraw {
  RandomKey key;
  float divisor;
  float scale;  // log2(e) / divisor

  __device__ GumbelDraw(const RandomKey& k, float d) : key(k), divisor(d), scale(kLog2e / d) {}

  // The random bits of tokens 4 * block .. 4 * block + 3.
  __device__ PhiloxBlock bits(int32_t block) const {
    return philox4x32_10(
        {{key.position, static_cast<uint32_t>(key.purpose), static_cast<uint32_t>(block), 0}},
        static_cast<uint32_t>(key.seed),
        static_cast<uint32_t>(key.seed >> 32));
  }

  // Upper bounds of the noise of a word, and of all tokens 4 * block .. 4 * block + 3.
  __device__ static float noise_of(uint32_t word) {
    return -log2_fast(static_cast<float>(word) + 0.5F);
  }
  __device__ float noise_of_four(int32_t block) const {
    const PhiloxBlock b = bits(block);
    return noise_of(min(min(b.word[0], b.word[1]), min(b.word[2], b.word[3])));
  }
  // Upper bound of the score of a token with at most this logit and noise, within the margin of `beatable`.
  __device__ float bound(float x, float noise) const { return fmaf(x, scale, noise); }

  // A token whose bound is at most this cannot beat the score.
  __device__ static float beatable(double score) {
    const double in_log2 = score * 1.4426950408889634 - 32.0;
    return static_cast<float>(in_log2 - 2e-3 - 2e-6 * fabs(in_log2 + 32.0));
  }

  // The score with an error of at most a thousandth.
  __device__ float rough_score(float x, uint32_t word) const {
    const float u = (static_cast<float>(word) + 0.5F) * 2.3283064365386962890625e-10F;
    // -ln(1 - u), by a series where 1 - u would lose the digits of u.
    const float t = u < 0.01F ? u * (1.0F + u * (0.5F + u * (1.0F / 3)))
                              : -log2_fast(fmaxf(1.0F - u, 1e-10F)) * 0.693147181F;
    return (x * scale - log2_fast(t)) * 0.693147181F;
  }

  // The score of a logit; divides it by the temperature.
  __device__ double score(float x, int32_t token) const { return score_of(x, divisor, key, token); }

 private:
  // Not inlined: its registers would slow down loops that rarely call it.
  __device__ __noinline__ static double score_of(float x,
                                                 float divisor,
                                                 RandomKey key,
                                                 int32_t token) {
    return gumbel_score(divisor == 1.0F ? x : x / divisor, key, token);
  }
};

// The best score and its token; the lowest id at ties.
struct Drawn {
  double score = -kInfinity;
  int32_t token = INT32_MAX;  // none

  __device__ void offer(double s, int32_t id) {
    if (s > score || (s == score && id < token)) {
      score = s;
      token = id;
    }
  }
};

// The best of the lanes' draws, in every lane.
__device__ inline Drawn best_of_warp(Drawn mine) {
#pragma unroll
  for (int32_t step = 16; step > 0; step /= 2) {
    const double score = __shfl_xor_sync(~0U, mine.score, step);
    mine.offer(score, __shfl_xor_sync(~0U, mine.token, step));
  }
  return mine;
}

// One warp: visits tiles in descending order of their winners' scores.
struct BestTiles {
  uint64_t passed = 0;

  // The next tile, or -1 after the last. winner_of(tile) returns its Drawn.
  template <typename WinnerOf>
  __device__ int32_t next(int32_t tiles, const WinnerOf& winner_of) {
    Drawn mine;
    int32_t my_tile = -1;
    for (int32_t tile = static_cast<int32_t>(threadIdx.x % 32); tile < tiles; tile += 32) {
      const Drawn winner = winner_of(tile);
      if ((passed >> tile & 1) == 0 && winner.token != INT32_MAX) {
        mine.offer(winner.score, winner.token);
        my_tile = mine.token == winner.token ? tile : my_tile;
      }
    }
    const Drawn best = best_of_warp(mine);
    const uint32_t owner = __ballot_sync(~0U, mine.token == best.token && mine.token != INT32_MAX);
    if (owner == 0) {
      return -1;
    }
    const int32_t tile = __shfl_sync(~0U, my_tile, __ffs(static_cast<int>(owner)) - 1);
    passed |= uint64_t{1} << tile;
    return tile;
  }
};

// Shared memory for a CTA's reduction to the best draw.
struct DrawShared {
  unsigned long long best;  // ordered score
  int32_t token;

  __device__ void clear() {
    best = 0;
    token = INT32_MAX;
  }
};

// The best of all threads' `mine`, in every thread. `shared` must be cleared before an earlier barrier.
__device__ inline Drawn best_of_block(DrawShared& shared, const Drawn& mine) {
  const unsigned long long v = ordered(mine.score);
  if (mine.token != INT32_MAX) {
    atomicMax(&shared.best, v);
  }
  __syncthreads();
  if (mine.token != INT32_MAX && shared.best == v) {
    atomicMin(&shared.token, mine.token);
  }
  __syncthreads();
  Drawn best;
  best.score = from_ordered(shared.best);
  best.token = shared.token;
  return best;
}

}  // namespace warprow::cuda
