// SPDX-License-Identifier: Apache-2.0
#include "kernels/low_rank/low_rank_loops.h"
#include "kernels/simd/vec.h"

namespace warprow::cpu {
namespace {

inline float sum_of(VecF v) {
  float sum = 0.0F;
  for (int i = 0; i < kLanes; ++i) {
    sum += v[i];
  }
  return sum;
}

// The sum of product(load) over all inputs, load(p) being a vector of p's.
template <typename Product>
inline float sum_over(int32_t k, const Product& product) {
  VecF sum = {};
  int32_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    sum = product([i](const float* p) { return load(p + i); }, sum);
  }
  if (i < k) {
    const int rest = k - i;
    sum = product([i, rest](const float* p) { return load_n(p + i, rest, 0.0F); }, sum);
  }
  return sum_of(sum);
}

}  // namespace

void WR_ISA_NAME(low_rank_dots)(
    const float* a, int32_t rank, const float* x, const float* w, int32_t k, float* out) {
  for (int32_t r = 0; r < rank; ++r, a += k) {
    out[r] = w == nullptr
                 ? sum_over(k, [a, x](const auto& at, VecF sum) { return fma(at(a), at(x), sum); })
                 : sum_over(k, [a, x, w](const auto& at, VecF sum) {
                     return fma(at(a), at(x) * at(w), sum);
                   });
  }
}

float WR_ISA_NAME(low_rank_squares)(const float* x, int32_t k) {
  return sum_over(k, [x](const auto& at, VecF sum) {
    const VecF v = at(x);
    return fma(v, v, sum);
  });
}

void WR_ISA_NAME(low_rank_add)(
    const float* b, int64_t stride, const float* s, int32_t rank, int32_t n, float* y) {
  int32_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    VecF sum = {};
    for (int32_t r = 0; r < rank; ++r) {
      sum = fma(splat(s[r]), load(b + r * stride + j), sum);
    }
    store(y + j, load(y + j) + sum);
  }
  if (j < n) {
    const int rest = n - j;
    VecF sum = {};
    for (int32_t r = 0; r < rank; ++r) {
      sum = fma(splat(s[r]), load_n(b + r * stride + j, rest, 0.0F), sum);
    }
    store_n(y + j, load_n(y + j, rest, 0.0F) + sum, rest);
  }
}

}  // namespace warprow::cpu
