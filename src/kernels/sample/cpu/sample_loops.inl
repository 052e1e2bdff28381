// SPDX-License-Identifier: Apache-2.0
#include "base/philox.h"  // for its constants; its functions would be compiled for this instruction set
#include "kernels/sample/cpu/sample_loops.h"
#include "kernels/simd/vec.h"

namespace warprow::cpu {
namespace {

// n lanes from x + i; the other lanes are `fill`.
inline VecF load_part(const float* x, int32_t i, int32_t n, float fill) {
  return i + kLanes <= n ? load(x + i) : load_n(x + i, n > i ? n - i : 0, fill);
}

inline TokenKey token_key(float value, int32_t id) {
  uint32_t bits = 0;
  value += 0.0F;  // -0 equals +0
  __builtin_memcpy(&bits, &value, sizeof(bits));
  const uint32_t ascending = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint32_t>(id);
}

// Multiplies all lanes by a constant, 32 x 32 -> 64 bits, into high and low halves.
inline void multiply(VecU a, uint32_t constant, VecU& high, VecU& low) {
  const VecU m = splat(constant);
  const VecU64 even = mul_even(a, m);
  const VecU64 odd = mul_even(reinterpret_cast<VecU>(reinterpret_cast<VecU64>(a) >> 32), m);
  const VecU64 low_half = VecU64{} + 0xffffffffULL;
  high = reinterpret_cast<VecU>((even >> 32) | (odd & ~low_half));
  low = reinterpret_cast<VecU>((even & low_half) | (odd << 32));
}

// The random bits of tokens 4 * first_block .. + 4 * kLanes - 1, in their order (philox4x32_10 in each lane).
inline void random_tokens(const GumbelDraw& d, uint32_t first_block, VecU (&bits)[4]) {
  VecU w0 = splat(d.position);
  VecU w1 = splat(d.purpose);
  VecU w2 = splat(first_block);
  for (int i = 0; i < kLanes; ++i) {
    w2[i] += static_cast<uint32_t>(i);
  }
  VecU w3 = {};
  auto key0 = static_cast<uint32_t>(d.seed);
  auto key1 = static_cast<uint32_t>(d.seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    VecU high0;
    VecU low0;
    VecU high1;
    VecU low1;
    multiply(w0, kPhiloxMul0, high0, low0);
    multiply(w2, kPhiloxMul1, high1, low1);
    w0 = high1 ^ w1 ^ key0;
    w1 = low1;
    w2 = high0 ^ w3 ^ key1;
    w3 = low0;
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
  const LaneIndices lanes;
  const VecU a = zip_low(w0, w2, lanes);
  const VecU b = zip_low(w1, w3, lanes);
  const VecU c = zip_high(w0, w2, lanes);
  const VecU e = zip_high(w1, w3, lanes);
  bits[0] = zip_low(a, b, lanes);
  bits[1] = zip_high(a, b, lanes);
  bits[2] = zip_low(c, e, lanes);
  bits[3] = zip_high(c, e, lanes);
}

// An upper bound of gumbel_noise(bits), at most 0.07 too high where the noise is large. -log(1 - u) >= u, so
// the noise is at most -ln u. log2 of a float is at least its exponent plus its mantissa's fraction, and that
// is the value of its bits read as an integer. The low 8 bits of u are dropped, which makes u smaller, and a
// constant covers the rounding.
inline VecF gumbel_bound(VecU bits) {
  constexpr float kLn2 = 0.693147180559945309F;
  const VecF u = __builtin_convertvector(reinterpret_cast<VecI>(bits >> 8), VecF);
  const VecF log2_u = __builtin_convertvector(as_int(u), VecF) * (1.0F / 8388608);
  return (151.0F + 1e-3F - log2_u) * kLn2;
}

// Scores that are at most this cannot beat `best`, with a margin for float rounding.
inline float beatable(double best) {
  const double size = best < 0 ? -best : best;
  return static_cast<float>(best - 1e-3 - 1e-6 * size);
}

inline bool survives(const Cut& cut, float x, int32_t id) {
  return x > cut.lower || (x == cut.lower && id <= cut.last_id);
}

}  // namespace

RowFacts WR_ISA_NAME(scan_row)(const float* x, int32_t n, float* group_max) {
  VecI nan = {};
  float row_max = -kInfinity;
  int32_t best_group = 0;
  for (int32_t g = 0; g * kMaxGroup < n; ++g) {
    VecF top = splat(-kInfinity);
    for (int32_t i = g * kMaxGroup; i < (g + 1) * kMaxGroup; i += kLanes) {
      const VecF v = load_part(x, i, n, -kInfinity);
      nan |= v != v;
      top = max(v, top);
    }
    group_max[g] = max_lanes(top);
    if (group_max[g] > row_max) {
      row_max = group_max[g];
      best_group = g;
    }
  }
  if (mask_bits(nan) != 0) {
    return {row_max, -1, true};
  }
  int32_t argmax = best_group * kMaxGroup;
  while (argmax + 1 < n && x[argmax] != row_max) {
    ++argmax;
  }
  return {row_max, argmax, false};
}

void WR_ISA_NAME(divide_row)(const float* x, int32_t n, float divisor, float* out) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, load(x + i) / divisor);
  }
  for (; i < n; ++i) {
    out[i] = x[i] / divisor;
  }
}

double WR_ISA_NAME(exp_row)(const float* x, int32_t n, float max, float* out) {
  double sum = 0.0;
  for (int32_t i = 0; i < n; i += kLanes) {
    const VecF e = exp(load_part(x, i, n, -kInfinity) - max);
    if (i + kLanes <= n) {
      store(out + i, e);
    } else {
      store_n(out + i, e, n - i);
    }
    sum += static_cast<double>(sum_lanes(e));
  }
  return sum;
}

double WR_ISA_NAME(sum_exp)(const float* x, int32_t n, float max, float lower) {
  double sum = 0.0;
  for (int32_t base = 0; base < n; base += 4 * kMaxGroup) {
    VecF part = {};
    for (int32_t i = base; i < base + 4 * kMaxGroup && i < n; i += kLanes) {
      const VecF v = load_part(x, i, n, -kInfinity);
      const VecF e = exp(v - max);
      part += v >= lower ? e : VecF{};
    }
    sum += static_cast<double>(sum_lanes(part));
  }
  return sum;
}

int32_t WR_ISA_NAME(count_at_least)(const float* x, int32_t n, float value) {
  VecI count = {};
  for (int32_t i = 0; i < n; i += kLanes) {
    if (i + kLanes <= n) {
      count -= load(x + i) >= value;
    } else {
      for (int32_t j = i; j < n; ++j) {
        count[0] += x[j] >= value ? 1 : 0;
      }
    }
  }
  int32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) {
    sum += count[i];
  }
  return sum;
}

int32_t WR_ISA_NAME(collect_at_least)(
    const float* x, int32_t n, float lower, const float* group_max, TokenKey* keys) {
  int32_t count = 0;
  for (int32_t g = 0; g * kMaxGroup < n; ++g) {
    if (!(group_max[g] >= lower)) {
      continue;
    }
    for (int32_t i = g * kMaxGroup; i < (g + 1) * kMaxGroup && i < n; i += kLanes) {
      uint32_t hits = mask_bits(load_part(x, i, n, -kInfinity) >= lower);
      for (; hits != 0; hits &= hits - 1) {
        const int32_t id = i + __builtin_ctz(hits);
        if (id < n) {
          keys[count++] = token_key(x[id], id);
        }
      }
    }
  }
  return count;
}

int32_t WR_ISA_NAME(draw_gumbel)(const GumbelDraw& d) {
  int32_t best_id = d.first;
  double best = draw_score(d, d.first);
  float limit = beatable(best);
  for (int32_t base = 0; base < d.n; base += 4 * kLanes) {
    VecU bits[4];
    random_tokens(d, static_cast<uint32_t>(base) / 4, bits);
    for (int part = 0; part < 4; ++part) {
      const int32_t i = base + part * kLanes;
      const VecF x = load_part(d.x, i, d.n, -kInfinity);
      uint32_t hits = mask_bits((x + gumbel_bound(bits[part]) > limit) & (x >= d.cut.lower));
      for (; hits != 0; hits &= hits - 1) {
        const int32_t id = i + __builtin_ctz(hits);
        if (id >= d.n || !survives(d.cut, d.x[id], id)) {
          continue;
        }
        const double score = draw_score(d, id);
        if (score > best || (score == best && id < best_id)) {
          best = score;
          best_id = id;
          limit = beatable(best);
        }
      }
    }
  }
  return best_id;
}

}  // namespace warprow::cpu
