// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope/rope_kv_write.h"

#include "tests/kernels/cpu_harness.h"
#include "tests/support/rope_case.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::as_floats;
using testing::CpuHarness;
using testing::first_mismatch;
using testing::floats_of;
using testing::HostMemory;
using testing::random_floats;
using testing::RopeCase;

// A layer with 4 query heads and 2 KV heads of size 24, blocks of 4 tokens, and padding after each row.
struct Layer {
  int32_t hq = 4;
  int32_t hkv = 2;
  int32_t dim = 24;
  int32_t rot = 16;
  int32_t block = 4;
  int32_t blocks = 3;
  int64_t tokens = 5;
  int64_t stride = 24 * 8 + 3;
  std::vector<int64_t> slots{6, -1, 0, 11, 3};
  std::vector<float> qkv = random_floats(static_cast<size_t>(tokens * stride), 21);
  std::vector<float> cos = random_floats(static_cast<size_t>(tokens * rot / 2), 22);
  std::vector<float> sin = random_floats(static_cast<size_t>(tokens * rot / 2), 23);
  std::vector<float> q_norm = random_floats(static_cast<size_t>(dim), 24);
  std::vector<float> k_norm = random_floats(static_cast<size_t>(dim), 25);

  [[nodiscard]] size_t cache_elements() const {
    return static_cast<size_t>(blocks * block * hkv * dim);
  }

  RopeKvWriteArgs args(
      std::vector<float>& rows, std::byte* k, std::byte* v, DType dtype, bool nhd) {
    RopeKvWriteArgs a;
    a.qkv = make_strided(rows.data(), tokens, int64_t{hq + 2 * hkv} * dim, stride);
    a.cos = make_view<const float>(cos.data(), tokens, rot / 2);
    a.sin = make_view<const float>(sin.data(), tokens, rot / 2);
    a.slot_mapping = make_view<const int64_t>(slots.data(), tokens);
    a.kv = {k,
            v,
            dtype,
            block,
            hkv,
            dim,
            dim,
            int64_t{block} * hkv * dim,
            nhd ? dim : int64_t{block} * dim,
            nhd ? int64_t{hkv} * dim : dim};
    a.num_q_heads = hq;
    a.rot_dim = rot;
    return a;
  }
};

class RopeKvWrite : public ::testing::TestWithParam<std::tuple<bool, bool, bool>> {};

TEST_P(RopeKvWrite, RotatesAndWritesF32) {
  const auto [pairs, with_norm, heads_first] = GetParam();
  CpuHarness cpu;
  RopeCase c{.q_heads = 4,
             .kv_heads = 2,
             .dim_k = 24,
             .dim_v = 24,
             .rot_dim = 16,
             .gap = 3,
             .tokens = 5,
             .num_blocks = 3};
  c.interleaved = pairs;
  c.norm = with_norm;
  c.heads_first = heads_first;
  const RopeCase::Reference expected = c.reference();
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    HostMemory memory;
    const RopeKvWriteArgs args = c.args(memory);
    rope_kv_write(*cpu.stream, args);
    constexpr testing::Tolerance kTolerance{1e-6, 3e-6};
    EXPECT_EQ(first_mismatch(floats_of(args.qkv, c.qkv_matrix()), expected.qkv, kTolerance), -1);
    EXPECT_EQ(
        first_mismatch(as_floats(c.type, args.kv.k, c.cache_size()), expected.keys, kTolerance),
        -1);
    EXPECT_EQ(first_mismatch(as_floats(c.type, args.kv.v, c.cache_size()), expected.values, {}),
              -1);
  }
}

TEST_P(RopeKvWrite, QuantisesForAnEightBitCache) {
  const auto [pairs, with_norm, heads_first] = GetParam();
  CpuHarness cpu;
  for (const DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
    RopeCase c{.q_heads = 4,
               .kv_heads = 2,
               .dim_k = 36,
               .dim_v = 36,
               .rot_dim = 16,
               .gap = 3,
               .tokens = 50,
               .num_blocks = 4};
    c.interleaved = pairs;
    c.norm = c.v_norm = with_norm;
    c.heads_first = heads_first;
    c.f8 = type;
    const RopeCase::Reference expected = c.reference();
    for (const CpuIsa isa : testing::runnable_isas()) {
      const ScopedCpuIsa scope(isa);
      HostMemory memory;
      const RopeKvWriteArgs args = c.args(memory);
      rope_kv_write(*cpu.stream, args);
      const auto bytes_of = [&](const std::byte* data) {
        const auto* first = reinterpret_cast<const uint8_t*>(data);
        return std::vector<uint8_t>(first, first + c.cache_size());
      };
      EXPECT_EQ(c.first_wrong_f8(expected.keys, bytes_of(args.kv.k), 0), -1) << dtype_name(type);
      EXPECT_EQ(c.first_wrong_f8(expected.values, bytes_of(args.kv.v), 1), -1) << dtype_name(type);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms,
                         RopeKvWrite,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Bool(),
                                            ::testing::Bool()));

// A value head (3, 4, 0, ...) of 24 has a root mean square of 5 / sqrt(24); queries and keys pass unchanged.
TEST(RopeKvWriteForms, NormsOfValuesAlone) {
  CpuHarness cpu;
  Layer layer;
  layer.rot = 0;
  const std::vector<float> ones(static_cast<size_t>(layer.dim), 1.0F);
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    auto rows = layer.qkv;
    const int64_t values = int64_t{layer.hq + layer.hkv} * layer.dim;
    std::fill_n(rows.begin() + values, layer.dim, 0.0F);
    rows[values] = 3.0F;
    rows[values + 1] = 4.0F;
    const auto source = rows;
    std::vector<float> k(layer.cache_elements());
    std::vector<float> v(layer.cache_elements());
    auto args = layer.args(rows,
                           reinterpret_cast<std::byte*>(k.data()),
                           reinterpret_cast<std::byte*>(v.data()),
                           DType::kF32,
                           false);
    args.v_norm = make_view(ones.data(), int64_t{layer.dim});
    args.norm_eps = 0.0F;
    rope_kv_write(*cpu.stream, args);
    const int64_t at = 1 * args.kv.block_stride + 2 * args.kv.token_stride;  // slot 6, head 0
    EXPECT_NEAR(v[at], 0.6F * std::sqrt(24.0F), 1e-5F);
    EXPECT_NEAR(v[at + 1], 0.8F * std::sqrt(24.0F), 1e-5F);
    EXPECT_EQ(v[at + 2], 0.0F);
    EXPECT_EQ(k[at], source[layer.hq * layer.dim]);
    EXPECT_EQ(rows[0], source[0]);
  }
}

// Every kind of number: all those of the type, the middles between them, beyond the largest, NaN.
TEST(RopeKvWriteForms, RoundsToEightBitsAsDefined) {
  CpuHarness cpu;
  for (const DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
    const int most = type == DType::kF8E4M3 ? 0x7e : 0x7b;
    std::vector<float> numbers;
    for (int i = 0; i < most; ++i) {
      const float low = testing::f8_value(type, static_cast<uint8_t>(i));
      const float high = testing::f8_value(type, static_cast<uint8_t>(i + 1));
      const float middle = (low + high) / 2.0F;
      for (const float v :
           {low, middle, std::nextafter(middle, low), std::nextafter(middle, high), high}) {
        numbers.push_back(v);
        numbers.push_back(-v);
      }
    }
    for (const float v : {465.0F, 480.0F, 6e4F, 7e4F, 1e30F, 1e-30F, 0.0F, -0.0F}) {
      numbers.push_back(v);
    }
    numbers.push_back(std::numeric_limits<float>::infinity());
    numbers.push_back(std::numeric_limits<float>::quiet_NaN());
    numbers.resize((numbers.size() + 7) / 8 * 8, 1.0F);
    const auto width = static_cast<int32_t>(numbers.size());
    const std::vector<float> ones(1, 1.0F);
    const std::vector<int64_t> slots{0};
    for (const CpuIsa isa : testing::runnable_isas()) {
      const ScopedCpuIsa scope(isa);
      std::vector<float> row = numbers;
      row.insert(row.end(), numbers.begin(), numbers.end());
      std::vector<uint8_t> k(numbers.size());
      std::vector<uint8_t> v(numbers.size());
      RopeKvWriteArgs args;
      args.qkv = make_view(row.data(), 1, int64_t{2} * width);
      args.slot_mapping = make_view<const int64_t>(slots.data(), 1);
      args.kv = {reinterpret_cast<std::byte*>(k.data()),
                 reinterpret_cast<std::byte*>(v.data()),
                 type,
                 1,
                 1,
                 width,
                 width,
                 width,
                 width,
                 width,
                 ones.data(),
                 ones.data()};
      rope_kv_write(*cpu.stream, args);
      for (size_t i = 0; i < numbers.size(); ++i) {
        ASSERT_EQ(int{k[i]}, int{testing::f8_bits(type, numbers[i])})
            << dtype_name(type) << " of " << numbers[i] << ", " << cpu_isa_name(isa);
      }
      EXPECT_EQ(k, v);
    }
  }
}

// A layer that reads another's cache has queries alone: they rotate, and the cache stays as it is.
TEST(RopeKvWriteForms, QueriesAlone) {
  CpuHarness cpu;
  Layer layer;
  std::vector<float> k(layer.cache_elements(), 7.0F);
  std::vector<float> v(layer.cache_elements(), 7.0F);
  const auto run = [&](std::vector<float>& rows, bool alone) {
    std::vector<float> own_k(layer.cache_elements());
    std::vector<float> own_v(layer.cache_elements());
    auto args = layer.args(rows,
                           reinterpret_cast<std::byte*>((alone ? k : own_k).data()),
                           reinterpret_cast<std::byte*>((alone ? v : own_v).data()),
                           DType::kF32,
                           false);
    if (alone) {
      args.qkv.shape[1] = int64_t{layer.hq} * layer.dim;
      args.kv.num_kv_heads = 0;
    }
    rope_kv_write(*cpu.stream, args);
  };
  auto all = layer.qkv;
  run(all, false);
  auto queries = layer.qkv;
  run(queries, true);
  for (int64_t t = 0; t < layer.tokens; ++t) {
    for (int64_t i = 0; i < int64_t{layer.hq} * layer.dim; ++i) {
      ASSERT_EQ(queries[t * layer.stride + i], all[t * layer.stride + i]);
    }
    EXPECT_EQ(queries[t * layer.stride + layer.hq * layer.dim],
              layer.qkv[t * layer.stride + layer.hq * layer.dim]);
  }
  EXPECT_EQ(k, std::vector<float>(layer.cache_elements(), 7.0F));
  EXPECT_EQ(v, k);
}

TEST(RopeKvWriteBf16, RoundsToNearestEven) {
  CpuHarness cpu;
  Layer layer;
  layer.rot = 0;  // keys pass unchanged
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    auto rows = layer.qkv;
    rows[layer.hq * layer.dim] = std::nanf("");
    rows[layer.hq * layer.dim + 1] = 1.00390625F;  // a tie, rounds down to even
    rows[layer.hq * layer.dim + 2] = 1.01171875F;  // a tie, rounds up to even
    const auto source = rows;
    std::vector<uint16_t> k(layer.cache_elements());
    std::vector<uint16_t> v(layer.cache_elements());
    auto args = layer.args(rows,
                           reinterpret_cast<std::byte*>(k.data()),
                           reinterpret_cast<std::byte*>(v.data()),
                           DType::kBF16,
                           false);
    rope_kv_write(*cpu.stream, args);
    const int64_t at = 1 * args.kv.block_stride + 2 * args.kv.token_stride;  // slot 6, head 0
    for (int i = 0; i < layer.dim; ++i) {
      EXPECT_EQ(k[at + i], f32_to_bf16(source[layer.hq * layer.dim + i])) << i;
      EXPECT_EQ(v[at + i], f32_to_bf16(source[(layer.hq + layer.hkv) * layer.dim + i])) << i;
    }
  }
}

TEST(RopeKvWriteBatch, TokenDoesNotDependOnItsNeighbours) {
  Layer layer;
  CpuHarness two(2);
  CpuHarness one(1);
  std::vector<float> k(layer.cache_elements());
  std::vector<float> v(layer.cache_elements());
  auto* k_bytes = reinterpret_cast<std::byte*>(k.data());
  auto* v_bytes = reinterpret_cast<std::byte*>(v.data());
  auto together = layer.qkv;
  rope_kv_write(*two.stream, layer.args(together, k_bytes, v_bytes, DType::kF32, false));
  const auto k_together = k;
  auto alone = layer.qkv;
  for (int64_t t = layer.tokens - 1; t >= 0; --t) {
    auto args = layer.args(alone, k_bytes, v_bytes, DType::kF32, false);
    args.qkv = make_strided(&alone[t * layer.stride], 1, args.qkv.shape[1], layer.stride);
    args.cos = make_view(args.cos.row(t), 1, layer.rot / 2);
    args.sin = make_view(args.sin.row(t), 1, layer.rot / 2);
    args.slot_mapping = make_view<const int64_t>(&layer.slots[t], 1);
    rope_kv_write(*one.stream, args);
  }
  EXPECT_EQ(together, alone);
  EXPECT_EQ(k_together, k);
}

}  // namespace
}  // namespace warprow
