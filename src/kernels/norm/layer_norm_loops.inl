// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/layer_norm_loops.h"
#include "kernels/simd/vec.h"

namespace warprow::cpu {
namespace {

constexpr int kChains = 4;

// The sum of f(x[i]) over a row, of vectors in four chains and then a tree. The order depends on n alone.
template <typename F>
inline float sum_row(const float* x, int n, const F& f) {
  VecF sum[kChains] = {};
  int i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
    for (int c = 0; c < kChains; ++c) {
      sum[c] = f(load(x + i + c * kLanes), sum[c]);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    sum[0] = f(load(x + i), sum[0]);
  }
  float rest = sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
  for (; i < n; ++i) {
    rest = f(splat(x[i]), splat(rest))[0];
  }
  return rest;
}

inline void layer_norm_row(const LayerNormLoop& a, const float* x, const float* add, float* out) {
  const int n = a.width;
  int i = 0;
  if (add != nullptr) {
    for (; i + kLanes <= n; i += kLanes) {
      store(out + i, load(x + i) + load(add + i));
    }
    for (; i < n; ++i) {
      out[i] = x[i] + add[i];
    }
    x = out;
  }
  const float mean =
      sum_row(x, n, [](VecF v, VecF sum) { return sum + v; }) / static_cast<float>(n);
  const float squares = sum_row(x, n, [mean](VecF v, VecF sum) {
    const VecF apart = v - mean;
    return fma(apart, apart, sum);
  });
  const float factor = 1.0F / __builtin_sqrtf(squares / static_cast<float>(n) + a.eps);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const VecF bias = a.bias == nullptr ? VecF{} : load(a.bias + i);
    store(out + i, fma((load(x + i) - mean) * factor, load(a.weight + i), bias));
  }
  for (; i < n; ++i) {
    const float bias = a.bias == nullptr ? 0.0F : a.bias[i];
    out[i] = fma(splat((x[i] - mean) * factor), splat(a.weight[i]), splat(bias))[0];
  }
}

}  // namespace

void WR_ISA_NAME(layer_norm_rows)(const LayerNormLoop& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    layer_norm_row(a,
                   a.x + t * a.x_stride,
                   a.add == nullptr ? nullptr : a.add + t * a.add_stride,
                   a.out + t * a.out_stride);
  }
}

}  // namespace warprow::cpu
