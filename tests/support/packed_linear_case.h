// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/linear/cpu/pack.h"
#include "kernels/linear/linear.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

namespace warprow::testing {

inline PackedWeight shape_of(PackedKind kind, int32_t n, int32_t k) {
  PackedWeight w;
  w.kind = kind;
  w.n = n;
  w.k = k;
  return w;
}

// A float32 that is no half: small, positive or negative.
inline float random_factor(std::mt19937& rng) {
  return (static_cast<float>(rng() % 20001) - 10000.5F) * 1e-6F;
}

// The f32 value of a random half: small, positive or negative.
inline float random_half(std::mt19937& rng) {
  return f16_to_f32(static_cast<uint16_t>(((rng() & 1U) << 15) | (0x2000U + rng() % 0x800U)));
}

inline int stored_bits(PackedKind kind) {
  switch (kind) {
    case PackedKind::kQ2:
      return 2;
    case PackedKind::kQ4:
    case PackedKind::kMxfp4:
    case PackedKind::kTable:
    case PackedKind::kTable16:
      return 4;
    case PackedKind::kQ5:
      return 5;
    case PackedKind::kQ6:
      return 6;
    default:
      return 8;
  }
}

// Tables of numbers: one with the largest s8, one with few numbers.
inline constexpr int8_t kWideTable[] = {
    -128, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 127};
inline constexpr int8_t kNarrowTable[] = {8, 25, 43, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

// Twice the numbers of MXFP4.
inline constexpr int8_t kTwiceE2m1[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Random scales (or biases): a half for each kSplitInputs inputs, an s8 for each group.
struct RandomFactors {
  RandomFactors(std::mt19937& rng, const PackedWeight& w)
      : groups(static_cast<size_t>(kSplitInputs / w.group)) {
    if (w.scales == ScaleForm::kSplit) {
      half.resize(static_cast<size_t>(w.n) * static_cast<size_t>(w.k / kSplitInputs));
      for (uint16_t& h : half) {
        h = static_cast<uint16_t>(0x1000U + (rng() & 0x83ffU));
      }
      factor.resize(half.size() * groups);
      for (int8_t& f : factor) {
        f = static_cast<int8_t>(rng() % 256);
      }
    }
  }
  [[nodiscard]] float value(size_t g) const {
    return f16_to_f32(half[g / groups]) * static_cast<float>(factor[g]);
  }
  size_t groups;
  std::vector<uint16_t> half;
  std::vector<int8_t> factor;
};
struct RandomSplit {
  RandomSplit(std::mt19937& rng, const PackedWeight& w) : scale(rng, w), bias(rng, w) {}
  [[nodiscard]] cpu::SplitRows rows() const {
    return {scale.half.data(), scale.factor.data(), bias.half.data(), bias.factor.data()};
  }
  RandomFactors scale;
  RandomFactors bias;
};

inline std::vector<float> fill_quantised(std::mt19937& rng, const PackedWeight& w, std::byte* dst) {
  const int64_t num_groups = w.k / w.group;
  const int low = w.kind == PackedKind::kQ8 ? -128 : -w.zero_point;
  const int range = 1 << stored_bits(w.kind);
  std::vector<float> values(static_cast<size_t>(w.n) * static_cast<size_t>(w.k));
  std::vector<int8_t> q(values.size());
  std::vector<float> scale(static_cast<size_t>(w.n * num_groups));
  std::vector<float> bias(scale.size(), 0.0F);
  RandomSplit split(rng, w);
  for (size_t g = 0; g < scale.size(); ++g) {
    const bool whole = w.scales == ScaleForm::kF16;
    scale[g] = w.scales == ScaleForm::kE8M0  ? std::ldexp(1.0F, static_cast<int>(rng() % 9) - 9)
               : w.scales == ScaleForm::kF32 ? random_factor(rng)
               : whole                       ? random_half(rng)
                                             : split.scale.value(g);
    scale[g] *= w.scale_unit;
    if (w.has_bias) {
      bias[g] = whole ? random_half(rng) * 4.0F : split.bias.value(g);
    }
  }
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<int8_t>(low + static_cast<int>(rng() % static_cast<uint32_t>(range)));
    if (w.kind == PackedKind::kMxfp4) {
      q[i] = kTwiceE2m1[rng() % 16];
    }
    if (w.numbers != nullptr) {
      q[i] = w.numbers[rng() % 16];
    }
    const size_t g = i / static_cast<size_t>(w.group);
    values[i] = scale[g] * static_cast<float>(q[i]) + bias[g];
  }
  cpu::pack_groups(
      w, dst, 0, w.n, {q.data(), scale.data(), w.has_bias ? bias.data() : nullptr, split.rows()});
  return values;
}

inline std::vector<float> fill_plain(std::mt19937& rng, const PackedWeight& w, std::byte* dst) {
  std::vector<float> values(static_cast<size_t>(w.n) * static_cast<size_t>(w.k));
  std::uniform_real_distribution<float> uniform(-0.1F, 0.1F);
  std::generate(values.begin(), values.end(), [&] { return uniform(rng); });
  if (w.kind == PackedKind::kF32) {
    cpu::pack_values(w, dst, 0, w.n, values.data());
    return values;
  }
  std::vector<uint16_t> raw(values.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    if (w.kind == PackedKind::kBF16) {
      raw[i] = f32_to_bf16(values[i]);
      values[i] = bf16_to_f32(raw[i]);
    } else {
      raw[i] = static_cast<uint16_t>(((rng() & 1U) << 15) | (rng() % 0x3000U));
      values[i] = f16_to_f32(raw[i]);
    }
  }
  cpu::pack_values(w, dst, 0, w.n, raw.data());
  return values;
}

// Packs a random matrix into dst (cpu::packed_bytes(w)) and returns its dequantised values [n, k].
inline std::vector<float> fill_packed(std::mt19937& rng, const PackedWeight& w, std::byte* dst) {
  return w.kind >= PackedKind::kQ4 ? fill_quantised(rng, w, dst) : fill_plain(rng, w, dst);
}

// A matrix kind and the parameters that select its code path.
struct KindCase {
  const char* name;
  PackedKind kind;
  int32_t group = 32;
  int32_t zero_point = 0;
  bool has_bias = false;
  ScaleForm scales = ScaleForm::kF16;
  const int8_t* numbers = nullptr;
  float scale_unit = 1.0F;

  [[nodiscard]] bool quantised() const { return kind >= PackedKind::kQ4; }
  // k must be a multiple of this.
  [[nodiscard]] int32_t unit() const {
    return !quantised() ? 1 : scales == ScaleForm::kSplit ? kSplitInputs : group;
  }
  [[nodiscard]] PackedWeight shape(int32_t n, int32_t k) const {
    PackedWeight w = shape_of(kind, n, k);
    w.group = group;
    w.zero_point = zero_point;
    w.has_bias = has_bias;
    w.scales = scales;
    w.numbers = numbers;
    w.scale_unit = scale_unit;
    return w;
  }
};

inline constexpr KindCase kKindCases[] = {
    {"f32", PackedKind::kF32},
    {"f16", PackedKind::kF16},
    {"bf16", PackedKind::kBF16},
    {"q4_0", PackedKind::kQ4, 32, 8},
    {"q4_1", PackedKind::kQ4, 32, 0, true},
    {"q8_0", PackedKind::kQ8},
    {"q5_0", PackedKind::kQ5, 32, 16},
    {"q5_1", PackedKind::kQ5, 32, 0, true},
    {"q4_k", PackedKind::kQ4, 32, 0, true, ScaleForm::kSplit},
    {"q5_k", PackedKind::kQ5, 32, 0, true, ScaleForm::kSplit},
    {"q6_k", PackedKind::kQ6, 16, 32, false, ScaleForm::kSplit},
    {"mxfp4", PackedKind::kMxfp4, 32, kMxfp4Zero, false, ScaleForm::kE8M0},
    {"q2_k", PackedKind::kQ2, 16, 0, true, ScaleForm::kSplit},
    {"iq4_nl", PackedKind::kTable, 32, 0, false, ScaleForm::kF16, kWideTable},
    {"iq4_xs", PackedKind::kTable, 32, 0, false, ScaleForm::kSplit, kWideTable},
    {"iq2_xxs", PackedKind::kTable, 32, 0, false, ScaleForm::kSplit, kNarrowTable, 0.125F},
    {"iq2_xs", PackedKind::kTable16, 16, 0, false, ScaleForm::kSplit, kNarrowTable, 0.125F},
    {"table16", PackedKind::kTable16, 16, 0, true, ScaleForm::kSplit, kWideTable},
    {"q4_f32", PackedKind::kQ4, 32, 8, false, ScaleForm::kF32},
    {"q8_wide", PackedKind::kQ8, 128},
    {"q8_wide_f32", PackedKind::kQ8, 128, 0, false, ScaleForm::kF32},
};

inline const KindCase& kind_case(std::string_view name) {
  for (const KindCase& kind : kKindCases) {
    if (kind.name == name) {
      return kind;
    }
  }
  WR_CHECK(false, "no kind {}", name);
}

// linear with packed weights on the CPU: segments of the same k, whose outputs are adjacent in y.
struct PackedLinearCase {
  std::vector<PackedWeight> segments{};

  [[nodiscard]] int64_t k() const { return segments.front().k; }
  [[nodiscard]] int64_t outputs() const {
    int64_t n = 0;
    for (const PackedWeight& w : segments) {
      n += w.n;
    }
    return n;
  }
  [[nodiscard]] double weight_bytes() const {
    double bytes = 0;
    for (const PackedWeight& w : segments) {
      bytes += static_cast<double>(cpu::packed_bytes(w));
    }
    return bytes;
  }
  // Multiply-adds, counted as two.
  [[nodiscard]] double flops(int64_t num_toks) const {
    return 2.0 * static_cast<double>(num_toks * outputs() * k());
  }

  // x [num_toks, k], y [num_toks, outputs].
  [[nodiscard]] LinearArgs args(
      const float* x, int64_t num_toks, float* y, ActFormat act, std::byte* scratch) const {
    LinearArgs args;
    args.x = make_view(x, num_toks, k());
    args.y = make_view(y, num_toks, outputs());
    int64_t column = 0;
    for (const PackedWeight& w : segments) {
      args.segments[args.num_segments++] = {w, nullptr, column};
      column += w.n;
    }
    args.act = act;
    args.scratch = scratch;
    return args;
  }
};

}  // namespace warprow::testing
