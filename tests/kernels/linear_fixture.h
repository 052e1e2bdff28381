// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/cpu_isa.h"
#include "base/dtype.h"
#include "device/cpu/cpu_device.h"
#include "kernels/linear/cpu/pack.h"
#include "kernels/linear/linear.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace warprow::linear_test {

// A byte buffer aligned to 64 bytes.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size) : storage_(size + 64) {}
  std::byte* data() {
    void* p = storage_.data();
    size_t space = storage_.size();
    return static_cast<std::byte*>(std::align(64, storage_.size() - 64, p, space));
  }

 private:
  std::vector<std::byte> storage_;
};

inline std::vector<float> random_floats(std::mt19937& rng, int64_t n, float low, float high) {
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& f : v) {
    f = uniform(rng);
  }
  return v;
}

// A random packed matrix of a kind, and its dequantised values.
struct TestWeight {
  PackedWeight w;
  std::vector<float> values;  // [n, k]
  std::unique_ptr<AlignedBytes> storage;
};

inline PackedWeight shape_of(PackedKind kind, int32_t n, int32_t k) {
  PackedWeight w;
  w.kind = kind;
  w.n = n;
  w.k = k;
  return w;
}

// The f32 value of a random half: small, positive or negative.
inline float random_half(std::mt19937& rng) {
  return f16_to_f32(static_cast<uint16_t>(((rng() & 1U) << 15) | (0x2000U + rng() % 0x800U)));
}

inline int stored_bits(PackedKind kind) {
  return kind == PackedKind::kQ4   ? 4
         : kind == PackedKind::kQ5 ? 5
         : kind == PackedKind::kQ6 ? 6
                                   : 8;
}

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

inline void fill_quantised(std::mt19937& rng, TestWeight& t, std::byte* dst) {
  const PackedWeight& w = t.w;
  const int64_t num_groups = w.k / w.group;
  const int low = w.kind == PackedKind::kQ8 ? -128 : -w.zero_point;
  const int range = 1 << stored_bits(w.kind);
  std::vector<int8_t> q(t.values.size());
  std::vector<float> scale(static_cast<size_t>(w.n * num_groups));
  std::vector<float> bias(scale.size(), 0.0F);
  RandomSplit split(rng, w);
  for (size_t g = 0; g < scale.size(); ++g) {
    const bool whole = w.scales == ScaleForm::kF16;
    scale[g] = whole ? random_half(rng) : split.scale.value(g);
    if (w.has_bias) {
      bias[g] = whole ? random_half(rng) * 4.0F : split.bias.value(g);
    }
  }
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<int8_t>(low + static_cast<int>(rng() % static_cast<uint32_t>(range)));
    const size_t g = i / static_cast<size_t>(w.group);
    t.values[i] = scale[g] * static_cast<float>(q[i]) + bias[g];
  }
  cpu::pack_groups(
      w, dst, 0, w.n, {q.data(), scale.data(), w.has_bias ? bias.data() : nullptr, split.rows()});
}

inline void fill_plain(std::mt19937& rng, TestWeight& t, std::byte* dst) {
  t.values = random_floats(rng, static_cast<int64_t>(t.values.size()), -0.1F, 0.1F);
  if (t.w.kind == PackedKind::kF32) {
    cpu::pack_values(t.w, dst, 0, t.w.n, t.values.data());
    return;
  }
  std::vector<uint16_t> raw(t.values.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    if (t.w.kind == PackedKind::kBF16) {
      raw[i] = f32_to_bf16(t.values[i]);
      t.values[i] = bf16_to_f32(raw[i]);
    } else {
      raw[i] = static_cast<uint16_t>(((rng() & 1U) << 15) | (rng() % 0x3000U));
      t.values[i] = f16_to_f32(raw[i]);
    }
  }
  cpu::pack_values(t.w, dst, 0, t.w.n, raw.data());
}

inline TestWeight make_weight(std::mt19937& rng, const PackedWeight& shape) {
  TestWeight t;
  t.w = shape;
  t.values.resize(static_cast<size_t>(shape.n) * static_cast<size_t>(shape.k));
  t.storage = std::make_unique<AlignedBytes>(cpu::packed_bytes(shape));
  std::byte* dst = t.storage->data();
  if (shape.kind >= PackedKind::kQ4) {
    fill_quantised(rng, t, dst);
  } else {
    fill_plain(rng, t, dst);
  }
  t.w.data = dst;
  return t;
}

// A matrix kind and the parameters that select its code path.
struct KindCase {
  const char* name;
  PackedKind kind;
  int32_t group = 32;
  int32_t zero_point = 0;
  bool has_bias = false;
  ScaleForm scales = ScaleForm::kF16;

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
};

// A CPU device with an inline stream and enough scratch for the tests.
struct InlineDevice {
  explicit InlineDevice(int32_t num_threads)
      : device(cpu::make_cpu_device(
            {.num_threads = num_threads, .mode = cpu::CpuStreamMode::kInline})),
        stream(device->make_stream()),
        scratch(cpu::linear_scratch_bytes(64, 2048)) {}

  std::unique_ptr<cpu::CpuDevice> device;
  std::unique_ptr<Stream> stream;
  AlignedBytes scratch;
};

// Computes y of one matrix for rows x [num_toks, k].
inline std::vector<float> run_linear(InlineDevice& d,
                                     const PackedWeight& w,
                                     const std::vector<float>& x,
                                     ActFormat act) {
  const int64_t num_toks = static_cast<int64_t>(x.size()) / w.k;
  std::vector<float> y(static_cast<size_t>(num_toks * w.n), -777.0F);
  LinearArgs args;
  args.x = make_view(x.data(), num_toks, static_cast<int64_t>(w.k));
  args.y = make_view(y.data(), num_toks, static_cast<int64_t>(w.n));
  args.segments[0].w = w;
  args.num_segments = 1;
  args.act = act;
  args.scratch = d.scratch.data();
  linear(*d.stream, args);
  return y;
}

}  // namespace warprow::linear_test
