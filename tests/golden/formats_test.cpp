// SPDX-License-Identifier: Apache-2.0
// Every weight format end to end, mixed within one layer as in GGUF files. With float32 activations the answers must
// equal those of the same model with weights dequantised beforehand.
#include "base/check.h"
#include "files/gguf_types.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/model_rig.h"
#include "tests/support/temp_dir.h"
#include "weights/dequantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Bytes;
using test::GgufWriter;
using test::ModelRig;
using test::RigOptions;
using test::RigResult;

constexpr std::array kTypes = {
    GgmlType::kF32,    GgmlType::kF16,     GgmlType::kBF16,  GgmlType::kQ8_0,    GgmlType::kQ4_0,
    GgmlType::kQ4_1,   GgmlType::kQ5_0,    GgmlType::kQ5_1,  GgmlType::kQ4_K,    GgmlType::kQ5_K,
    GgmlType::kQ6_K,   GgmlType::kMXFP4,   GgmlType::kQ2_K,  GgmlType::kQ3_K,    GgmlType::kIQ4_NL,
    GgmlType::kIQ4_XS, GgmlType::kIQ3_XXS, GgmlType::kIQ3_S, GgmlType::kIQ2_XXS, GgmlType::kIQ2_XS,
    GgmlType::kIQ2_S,  GgmlType::kIQ1_S,   GgmlType::kIQ1_M};

void put_half(Bytes& bytes, size_t at, float value) {
  const uint16_t half = test::f32_to_f16(value);
  std::memcpy(bytes.data() + at, &half, sizeof(half));
}

// Random blocks whose scales keep the weights near 0.1.
Bytes random_weights(GgmlType type, int64_t count, std::mt19937& random) {
  const TensorType format = *tensor_type_of(type);
  const TensorTypeTraits& traits = tensor_type_traits(format);
  Bytes bytes(static_cast<size_t>(count / traits.block_elems * traits.block_bytes));
  if (!is_quantised(format)) {
    std::normal_distribution<float> normal(0.0F, 0.1F);
    for (int64_t i = 0; i < count; ++i) {
      const float value = normal(random);
      const uint16_t half =
          format == TensorType::kF16 ? test::f32_to_f16(value) : f32_to_bf16(value);
      std::byte* at = bytes.data() + i * traits.block_bytes;
      std::memcpy(at,
                  format == TensorType::kF32 ? static_cast<const void*>(&value) : &half,
                  static_cast<size_t>(traits.block_bytes));
    }
    return bytes;
  }
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random());
  }
  const auto block_bytes = static_cast<size_t>(traits.block_bytes);
  for (size_t block = 0; block < bytes.size(); block += block_bytes) {
    const float scale = 0.5F + 0.001F * static_cast<float>(random() % 1000);
    switch (format) {
      case TensorType::kMXFP4:
        bytes[block] = static_cast<std::byte>(120 + random() % 3);
        break;
      case TensorType::kQ6_K:
        put_half(bytes, block + 208, scale * 1e-4F);
        break;
      case TensorType::kQ2_K:
        put_half(bytes, block + 80, scale * 0.007F);
        put_half(bytes, block + 82, scale * 0.0105F);
        break;
      case TensorType::kQ3_K:
        put_half(bytes, block + 108, scale * 2e-3F);
        break;
      case TensorType::kIQ4_NL:
        put_half(bytes, block, scale * 1.5e-3F);
        break;
      case TensorType::kIQ4_XS:
        put_half(bytes, block, scale * 8e-5F);
        break;
      case TensorType::kIQ3_XXS:
      case TensorType::kIQ3_S:
        put_half(bytes, block, scale * 6e-4F);
        break;
      case TensorType::kIQ2_XXS:
      case TensorType::kIQ2_XS:
      case TensorType::kIQ2_S:
        put_half(bytes, block, scale * 1.5e-3F);
        break;
      case TensorType::kIQ1_S:
        put_half(bytes, block, scale * 0.013F);
        break;
      case TensorType::kIQ1_M: {
        const auto half = test::f32_to_f16(scale * 0.013F);
        for (size_t i = 0; i < 4; ++i) {
          std::byte& upper = bytes[block + 49 + 2 * i];
          upper = (upper & std::byte{15}) | static_cast<std::byte>((half >> (4 * i) & 15) << 4);
        }
        break;
      }
      case TensorType::kQ4_K:
      case TensorType::kQ5_K:
        put_half(bytes, block, scale * 5e-4F);
        put_half(bytes, block + 2, scale * 3e-3F);
        break;
      case TensorType::kQ4_1:
      case TensorType::kQ5_1:
        put_half(bytes, block, scale * 0.02F);
        put_half(bytes, block + 2, scale * -0.2F);
        break;
      default:
        put_half(bytes, block, scale * (format == TensorType::kQ8_0 ? 0.002F : 0.02F));
    }
  }
  return bytes;
}

// The same model twice: in the given types, and with every matrix as plain f32.
class ModelPair {
 public:
  ModelPair(size_t first_type, uint32_t seed, bool experts = false)
      : random_(seed), type_(first_type) {
    const std::string family = experts ? "qwen3moe" : "qwen3";
    for (GgufWriter* writer : {&as_stored_, &as_float_}) {
      writer->add("general.architecture", family);
      writer->add(family + ".block_count", uint32_t{1});
      writer->add(family + ".context_length", uint32_t{128});
      writer->add(family + ".embedding_length", uint32_t{256});
      writer->add(family + ".feed_forward_length", uint32_t{256});
      writer->add(family + ".attention.head_count", uint32_t{4});
      writer->add(family + ".attention.head_count_kv", uint32_t{2});
      writer->add(family + ".attention.key_length", uint32_t{64});
      writer->add(family + ".attention.layer_norm_rms_epsilon", 1e-6F);
      writer->add(family + ".rope.freq_base", 10000.0F);
      if (experts) {
        writer->add(family + ".expert_count", uint32_t{kExperts});
        writer->add(family + ".expert_used_count", uint32_t{2});
        writer->add(family + ".expert_feed_forward_length", uint32_t{256});
      }
    }
    matrix("token_embd.weight", 100);
    matrix("output.weight", 100);
    ones("output_norm.weight", 256);
    ones("blk.0.attn_norm.weight", 256);
    ones("blk.0.ffn_norm.weight", 256);
    ones("blk.0.attn_q_norm.weight", 64);
    ones("blk.0.attn_k_norm.weight", 64);
    matrix("blk.0.attn_q.weight", 256);
    matrix("blk.0.attn_k.weight", 128);
    matrix("blk.0.attn_v.weight", 128);
    matrix("blk.0.attn_output.weight", 256);
    if (!experts) {
      matrix("blk.0.ffn_gate.weight", 256);
      matrix("blk.0.ffn_up.weight", 256);
      matrix("blk.0.ffn_down.weight", 256);
      return;
    }
    std::vector<float> router(kExperts * 256);
    std::normal_distribution<float> normal;
    std::ranges::generate(router, [&] { return normal(random_); });
    as_stored_.add_f32("blk.0.ffn_gate_inp.weight", {256, kExperts}, router);
    as_float_.add_f32("blk.0.ffn_gate_inp.weight", {256, kExperts}, router);
    matrix("blk.0.ffn_gate_exps.weight", 256, kExperts);
    --type_;  // gates and ups are one matrix
    matrix("blk.0.ffn_up_exps.weight", 256, kExperts);
    matrix("blk.0.ffn_down_exps.weight", 256, kExperts);
  }

  [[nodiscard]] Bytes stored() const { return as_stored_.bytes(); }
  [[nodiscard]] Bytes as_float() const { return as_float_.bytes(); }

 private:
  static constexpr size_t kExperts = 4;

  // With a count, so many matrices, of experts.
  void matrix(const char* name, int64_t rows, size_t count = 0) {
    const GgmlType type = kTypes[type_++ % kTypes.size()];
    std::vector<uint64_t> ne{256, static_cast<uint64_t>(rows)};
    if (count > 0) {
      ne.push_back(count);
      rows *= static_cast<int64_t>(count);
    }
    const Bytes bytes = random_weights(type, rows * 256, random_);
    std::vector<float> values(static_cast<size_t>(rows) * 256);
    dequantize_row(*tensor_type_of(type), bytes.data(), values.data(), rows * 256);
    as_stored_.add_tensor(name, type, ne, bytes);
    as_float_.add_f32(name, ne, values);
  }
  void ones(const char* name, uint64_t n) {
    const std::vector<float> values(n, 1.0F);
    as_stored_.add_f32(name, {n}, values);
    as_float_.add_f32(name, {n}, values);
  }

  std::mt19937 random_;
  size_t type_;
  GgufWriter as_stored_;
  GgufWriter as_float_;
};

RigResult answer_of_files(const std::string& path, const std::string& dtype) {
  RigOptions options;
  options.config.model = path;
  options.config.dtype = dtype;
  options.config.max_num_seqs = 2;
  options.config.max_num_batched_tokens = 16;
  options.config.kv_cache_memory_bytes = 1 << 21;
  options.device.num_threads = 1;
  ModelRig rig(options);
  Request request;
  request.id = 1;
  request.prompt = {5, 17, 42, 99, 3, 64, 8};
  request.max_tokens = 12;
  request.params.num_logprobs = 20;
  rig.add(request);
  return rig.run().at(1);
}

class Formats : public ::testing::TestWithParam<size_t> {};

TEST_P(Formats, Float32EqualsTheDequantisedModel) {
  const ModelPair pair(GetParam(), 77);
  const test::TempDir dir;
  const std::string stored = dir.write("stored.gguf", pair.stored());
  const RigResult exact = answer_of_files(stored, "float32");
  const RigResult plain = answer_of_files(dir.write("float.gguf", pair.as_float()), "float32");
  ASSERT_EQ(exact.tokens, plain.tokens);
  for (size_t step = 0; step < plain.top.size(); ++step) {
    for (size_t i = 0; i < plain.top[step].size(); ++i) {
      EXPECT_EQ(exact.top[step][i].first, plain.top[step][i].first);
      EXPECT_NEAR(exact.top[step][i].second, plain.top[step][i].second, 1e-4);
    }
  }
  // With int8 activations the first step's logprobs, before tokens may diverge, stay within 2 %. Logprobs span about
  // twenty.
  const RigResult fast = answer_of_files(stored, "auto");
  for (const auto& [token, logprob] : plain.top[0]) {
    for (const auto& [fast_token, fast_logprob] : fast.top[0]) {
      if (token == fast_token) {
        EXPECT_NEAR(fast_logprob, logprob, 0.1F + 0.02F * std::abs(logprob));
      }
    }
  }
}

TEST_P(Formats, ExpertsEqualTheDequantisedOnes) {
  const ModelPair pair(GetParam(), 78, true);
  const test::TempDir dir;
  const RigResult exact = answer_of_files(dir.write("stored.gguf", pair.stored()), "float32");
  const RigResult plain = answer_of_files(dir.write("float.gguf", pair.as_float()), "float32");
  ASSERT_EQ(exact.tokens, plain.tokens);
  for (size_t step = 0; step < plain.top.size(); ++step) {
    for (size_t i = 0; i < plain.top[step].size(); ++i) {
      EXPECT_EQ(exact.top[step][i].first, plain.top[step][i].first);
      EXPECT_NEAR(exact.top[step][i].second, plain.top[step][i].second, 1e-4);
    }
  }
}

// Rotating the list puts every format first once, so each format serves every matrix.
INSTANTIATE_TEST_SUITE_P(Rotations, Formats, ::testing::Range<size_t>(0, kTypes.size()));

}  // namespace
}  // namespace warprow
