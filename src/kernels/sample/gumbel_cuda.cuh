// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/gumbel.h"
#include "kernels/sample/sample_row_cuda.cuh"

#include <cstdint>

namespace warprow::cuda {

// The draw without a logarithm in double for every token. -ln(u) is at least the Gumbel noise of u
// and close to it where noise is large, so float bounds rule out nearly all tokens, and those left
// get their exact score. Bounds are in units of ln 2 and lack the noise's constant 32.
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

  // At least the token's score, up to what `beatable` allows.
  __device__ float bound(float x, uint32_t word) const {
    return fmaf(x, scale, -log2_of(static_cast<float>(word) + 0.5F));
  }

  // A bound at or under this cannot beat the score.
  __device__ static float beatable(double score) {
    const double in_log2 = score * 1.4426950408889634 - 32.0;
    return static_cast<float>(in_log2 - 1e-3 - 2e-6 * fabs(in_log2 + 32.0));
  }

  // The score of a logit, which is divided here.
  __device__ __noinline__ double score(float x, int32_t token) const {
    return gumbel_score(divisor == 1.0F ? x : x / divisor, key, token);
  }

 private:
  __device__ static float log2_of(float v) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
  }
};

// The best score and its token, lowest id at ties.
struct Drawn {
  double score = -kInfinity;
  int32_t token = INT32_MAX;

  __device__ void offer(double s, int32_t id) {
    if (s > score || (s == score && id < token)) {
      score = s;
      token = id;
    }
  }
};

// Shared memory in which a block agrees on the best.
struct DrawShared {
  unsigned long long best;  // ordered score, 0 before any
  int32_t token;            // INT32_MAX before any

  __device__ void clear() {
    best = 0;
    token = INT32_MAX;
  }
};

// All threads of a block: the best of their `mine`; `shared` was cleared before a barrier.
__device__ inline int32_t best_of_block(DrawShared& shared, const Drawn& mine) {
  const unsigned long long v = ordered(mine.score);
  if (mine.token != INT32_MAX) {
    atomicMax(&shared.best, v);
  }
  __syncthreads();
  if (mine.token != INT32_MAX && shared.best == v) {
    atomicMin(&shared.token, mine.token);
  }
  __syncthreads();
  return shared.token;
}

}  // namespace warprow::cuda
