// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/cpu_isa.h"
#include "base/dtype.h"
#include "device/cpu/cpu_device.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/pack.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace warprow::linear_test {

// Bytes at a 64-byte boundary.
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

// A random matrix of a kind: packed, and as the floats it stands for.
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

// The f32 of a random half: small, of either sign.
inline float random_half(std::mt19937& rng) {
  return f16_to_f32(static_cast<uint16_t>(((rng() & 1U) << 15) | (0x2000U + rng() % 0x800U)));
}

inline void fill_quantised(std::mt19937& rng, TestWeight& t, std::byte* dst) {
  const PackedWeight& w = t.w;
  const int64_t num_groups = w.k / w.group;
  const int low = w.kind == PackedKind::kQ4 ? -w.zero_point : -128;
  const int range = w.kind == PackedKind::kQ4 ? 16 : 256;
  std::vector<int8_t> q(t.values.size());
  std::vector<float> scale(static_cast<size_t>(w.n * num_groups));
  std::vector<float> bias(scale.size(), 0.0F);
  for (size_t g = 0; g < scale.size(); ++g) {
    scale[g] = random_half(rng) * (w.f16_scales ? 1.0F : 1.0F + 3.0F / 64);
    if (w.has_bias) {
      bias[g] = random_half(rng) * (w.f16_scales ? 4.0F : 4.0F + 5.0F / 64);
    }
  }
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<int8_t>(low + static_cast<int>(rng() % static_cast<uint32_t>(range)));
    const size_t g = i / static_cast<size_t>(w.group);
    t.values[i] = scale[g] * static_cast<float>(q[i]) + bias[g];
  }
  cpu::pack_groups(w, dst, 0, w.n, {q.data(), scale.data(), w.has_bias ? bias.data() : nullptr});
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
  if (shape.kind == PackedKind::kQ4 || shape.kind == PackedKind::kQ8) {
    fill_quantised(rng, t, dst);
  } else {
    fill_plain(rng, t, dst);
  }
  t.w.data = dst;
  return t;
}

// A matrix kind with everything that changes its code path.
struct KindCase {
  const char* name;
  PackedKind kind;
  int32_t group = 32;
  int32_t zero_point = 0;
  bool has_bias = false;
  bool f16_scales = true;

  [[nodiscard]] bool quantised() const {
    return kind == PackedKind::kQ4 || kind == PackedKind::kQ8;
  }
  [[nodiscard]] PackedWeight shape(int32_t n, int32_t k) const {
    PackedWeight w = shape_of(kind, n, k);
    w.group = group;
    w.zero_point = zero_point;
    w.has_bias = has_bias;
    w.f16_scales = quantised() && f16_scales;
    return w;
  }
};

inline constexpr KindCase kKindCases[] = {
    {"f32", PackedKind::kF32},
    {"f16", PackedKind::kF16},
    {"bf16", PackedKind::kBF16},
    {"q4_0", PackedKind::kQ4, 32, 8},
    {"q4_1", PackedKind::kQ4, 32, 0, true},
    {"q4_k", PackedKind::kQ4, 32, 0, true, false},
    {"q4_group16", PackedKind::kQ4, 16, 8, false, false},
    {"q8_0", PackedKind::kQ8},
    {"q5_1", PackedKind::kQ8, 32, 0, true},
    {"q5_k", PackedKind::kQ8, 32, 0, true, false},
    {"q6_k", PackedKind::kQ8, 16, 0, false, false},
};

// A device with an inline stream, and scratch for what the tests need.
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

// y of one matrix; rows of x [num_toks, k].
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
