// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta/gated_delta_loops.h"
#include "kernels/simd/norm_row.inl"

namespace warprow::cpu {
namespace {

constexpr int kMaxLen = 8;  // of the convolution

inline VecF silu(VecF x) { return x / (1.0F + exp(-x)); }

// The channels [channel, channel + n) of all tokens; n <= kLanes.
inline void conv_lane_group(const ConvLoop& a, int64_t num_toks, int channel, int n) {
  const auto get = [n](const float* p) { return n == kLanes ? load(p) : load_n(p, n, 0.0F); };
  const auto put = [n](float* p, VecF v) {
    if (n == kLanes) {
      store(p, v);
    } else {
      store_n(p, v, n);
    }
  };
  VecF weight[kMaxLen];
  VecF seen[kMaxLen];
  const int last = a.conv_len - 1;
  for (int j = 0; j <= last; ++j) {
    weight[j] = get(a.weight + j * a.weight_stride + channel);
  }
  for (int j = 0; j < last; ++j) {
    seen[j] = get(a.window + static_cast<int64_t>(j) * a.num_channels + channel);
  }
  for (int64_t t = 0; t < num_toks; ++t) {
    float* x = a.x + t * a.x_stride + channel;
    seen[last] = get(x);
    VecF sum = weight[0] * seen[0];
    for (int j = 1; j <= last; ++j) {
      sum = fma(weight[j], seen[j], sum);
    }
    for (int j = 0; j < last; ++j) {
      seen[j] = seen[j + 1];
    }
    put(x, silu(sum));
  }
  for (int j = 0; j < last; ++j) {
    put(a.window + static_cast<int64_t>(j) * a.num_channels + channel, seen[j]);
  }
}

// The first n lanes; Whole: n is kLanes.
template <bool Whole>
inline VecF get(const float* p, int n) {
  if constexpr (Whole) {
    return load(p);
  }
  return load_n(p, n, 0.0F);
}
template <bool Whole>
inline void put(float* p, VecF v, int n) {
  if constexpr (Whole) {
    store(p, v);
  } else {
    store_n(p, v, n);
  }
}

// W vectors of a head's values from `first` on, of n lanes each, all tokens: columns of the state, which do not depend on
// each other.
template <int W, bool Whole>
inline void delta_columns(const DeltaLoop& a, int64_t num_toks, int first, int n) {
  for (int64_t t = 0; t < num_toks; ++t) {
    const float* q = a.q + t * a.stride;
    const float* k = a.k + t * a.stride;
    const float* v = a.v + t * a.stride + first;
    const VecF decay = splat(a.decay[t * a.gate_stride]);
    const VecF beta = splat(a.beta[t * a.gate_stride]);
    VecF known[W] = {};
    for (int i = 0; i < a.key_dim; ++i) {
      const float* row = a.state + static_cast<int64_t>(i) * a.value_dim + first;
      const VecF key = splat(k[i]);
      WR_UNROLL
      for (int w = 0; w < W; ++w) {
        known[w] = fma(get<Whole>(row + w * kLanes, n) * decay, key, known[w]);
      }
    }
    VecF change[W];
    VecF out[W] = {};
    WR_UNROLL
    for (int w = 0; w < W; ++w) {
      change[w] = (get<Whole>(v + w * kLanes, n) - known[w]) * beta;
    }
    for (int i = 0; i < a.key_dim; ++i) {
      float* row = a.state + static_cast<int64_t>(i) * a.value_dim + first;
      const VecF key = splat(k[i]);
      const VecF query = splat(q[i]);
      WR_UNROLL
      for (int w = 0; w < W; ++w) {
        const VecF s = fma(key, change[w], get<Whole>(row + w * kLanes, n) * decay);
        put<Whole>(row + w * kLanes, s, n);
        out[w] = fma(s, query, out[w]);
      }
    }
    WR_UNROLL
    for (int w = 0; w < W; ++w) {
      put<Whole>(a.out + t * a.out_stride + first + w * kLanes, out[w], n);
    }
  }
}

// Calls f(place, lanes) for all n, a vector at a time.
template <typename F>
inline void for_lanes(int n, const F& f) {
  for (int i = 0; i < n; i += kLanes) {
    f(i, n - i < kLanes ? n - i : kLanes);
  }
}

}  // namespace

void WR_ISA_NAME(conv_tokens)(const ConvLoop& a, int64_t num_toks) {
  for (int c = 0; c < a.num_channels; c += kLanes) {
    const int left = a.num_channels - c;
    conv_lane_group(a, num_toks, c, left < kLanes ? left : kLanes);
  }
}

void WR_ISA_NAME(delta_tokens)(const DeltaLoop& a, int64_t num_toks) {
  int first = 0;
  for (; first + 4 * kLanes <= a.value_dim; first += 4 * kLanes) {
    delta_columns<4, true>(a, num_toks, first, kLanes);
  }
  for (; first + kLanes <= a.value_dim; first += kLanes) {
    delta_columns<1, true>(a, num_toks, first, kLanes);
  }
  if (first < a.value_dim) {
    delta_columns<1, false>(a, num_toks, first, a.value_dim - first);
  }
}

void WR_ISA_NAME(l2_normalise)(float* x, int32_t n, float eps, float scale) {
  const float factor = scale / __builtin_sqrtf(sum_of_squares(x, n) + eps);
  for_lanes(n, [&](int i, int lanes) {
    if (lanes == kLanes) {
      store(x + i, load(x + i) * factor);
    } else {
      store_n(x + i, load_n(x + i, lanes, 0.0F) * factor, lanes);
    }
  });
}

void WR_ISA_NAME(gated_norm)(
    float* x, const float* weight, const float* gate, int32_t n, float eps) {
  norm_row(x, weight, eps, n, x);
  for_lanes(n, [&](int i, int lanes) {
    if (lanes == kLanes) {
      store(x + i, load(x + i) * silu(load(gate + i)));
    } else {
      const VecF y = load_n(x + i, lanes, 0.0F) * silu(load_n(gate + i, lanes, 0.0F));
      store_n(x + i, y, lanes);
    }
  });
}

}  // namespace warprow::cpu
