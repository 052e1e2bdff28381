// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/cpu_isa.h"
#include "device/cpu/cpu_device.h"
#include "kernels/linear/cpu/pack.h"
#include "kernels/linear/linear.h"
#include "tests/support/packed_linear_case.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
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

inline std::vector<float> uniform_floats(std::mt19937& rng, int64_t n, float low, float high) {
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& f : v) {
    f = uniform(rng);
  }
  return v;
}

using testing::KindCase;
using testing::kKindCases;
using testing::random_half;
using testing::shape_of;
using testing::stored_bits;

// A random packed matrix of a kind, and its dequantised values.
struct TestWeight {
  PackedWeight w;
  std::vector<float> values;  // [n, k]
  std::unique_ptr<AlignedBytes> storage;
};

inline TestWeight make_weight(std::mt19937& rng, const PackedWeight& shape) {
  TestWeight t;
  t.w = shape;
  t.storage = std::make_unique<AlignedBytes>(cpu::packed_bytes(shape));
  t.values = testing::fill_packed(rng, shape, t.storage->data());
  t.w.data = t.storage->data();
  return t;
}

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
  const testing::PackedLinearCase c{{w}};
  linear(*d.stream, c.args(x.data(), num_toks, y.data(), act, d.scratch.data()));
  return y;
}

}  // namespace warprow::linear_test
