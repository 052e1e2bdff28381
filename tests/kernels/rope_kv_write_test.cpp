// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope/rope_kv_write.h"

#include "tests/kernels/cpu_harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::random_floats;

// A layer with 4 query heads over 2 KV heads of 24, blocks of 4 tokens, rows with slack behind
// them.
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

// One head in double: optional norm, then rotation.
std::vector<double> reference_head(
    const Layer& layer, const float* x, int64_t token, const float* norm, bool pairs) {
  std::vector<double> h(x, x + layer.dim);
  if (norm != nullptr) {
    double squares = 0.0;
    for (const double e : h) {
      squares += e * e;
    }
    for (int i = 0; i < layer.dim; ++i) {
      h[i] *= static_cast<double>(norm[i]) / std::sqrt(squares / layer.dim + 1e-6);
    }
  }
  const int half = layer.rot / 2;
  for (int i = 0; i < half; ++i) {
    double& a = h[pairs ? 2 * i : i];
    double& b = h[pairs ? 2 * i + 1 : i + half];
    const double c = layer.cos[token * half + i];
    const double s = layer.sin[token * half + i];
    const double rotated = a * c - b * s;
    b = b * c + a * s;
    a = rotated;
  }
  return h;
}

void expect_head(const float* actual, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 3e-6) << i;
  }
}

class RopeKvWrite : public ::testing::TestWithParam<std::tuple<bool, bool, bool>> {};

TEST_P(RopeKvWrite, RotatesAndWritesF32) {
  const auto [pairs, with_norm, nhd] = GetParam();
  CpuHarness cpu;
  Layer layer;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    auto rows = layer.qkv;
    std::vector<float> k(layer.cache_elements(), -9.0F);
    std::vector<float> v(layer.cache_elements(), -9.0F);
    auto args = layer.args(rows,
                           reinterpret_cast<std::byte*>(k.data()),
                           reinterpret_cast<std::byte*>(v.data()),
                           DType::kF32,
                           nhd);
    args.interleaved = pairs;
    if (with_norm) {
      args.q_norm = make_view<const float>(layer.q_norm.data(), layer.dim);
      args.k_norm = make_view<const float>(layer.k_norm.data(), layer.dim);
    }
    rope_kv_write(*cpu.stream, args);
    size_t written = 0;
    for (int64_t t = 0; t < layer.tokens; ++t) {
      const float* in = &layer.qkv[t * layer.stride];
      for (int h = 0; h < layer.hq; ++h) {
        expect_head(
            &rows[t * layer.stride + h * layer.dim],
            reference_head(
                layer, in + h * layer.dim, t, with_norm ? layer.q_norm.data() : nullptr, pairs));
      }
      if (layer.slots[t] < 0) {
        continue;
      }
      for (int h = 0; h < layer.hkv; ++h) {
        const int64_t at = layer.slots[t] / layer.block * args.kv.block_stride +
                           h * args.kv.head_stride +
                           layer.slots[t] % layer.block * args.kv.token_stride;
        const float* key = in + (layer.hq + h) * layer.dim;
        expect_head(
            &k[at],
            reference_head(layer, key, t, with_norm ? layer.k_norm.data() : nullptr, pairs));
        EXPECT_EQ(0, std::memcmp(&v[at], key + layer.hkv * layer.dim, sizeof(float) * layer.dim));
        written += layer.dim;
      }
    }
    EXPECT_EQ(static_cast<size_t>(std::count(k.begin(), k.end(), -9.0F)), k.size() - written);
    EXPECT_EQ(static_cast<size_t>(std::count(v.begin(), v.end(), -9.0F)), v.size() - written);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms,
                         RopeKvWrite,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Bool(),
                                            ::testing::Bool()));

TEST(RopeKvWriteBf16, RoundsToNearestEven) {
  CpuHarness cpu;
  Layer layer;
  layer.rot = 0;  // keys pass unchanged
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    auto rows = layer.qkv;
    rows[layer.hq * layer.dim] = std::nanf("");
    rows[layer.hq * layer.dim + 1] = 1.00390625F;  // half way, down to even
    rows[layer.hq * layer.dim + 2] = 1.01171875F;  // half way, up to even
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
