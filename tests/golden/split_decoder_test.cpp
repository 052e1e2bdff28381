// SPDX-License-Identifier: Apache-2.0
// Ranks that divide a decoder: their parts of the logits, side by side, are the logits of one rank. The layers have all
// biases, more ranks than key-value heads, norms behind both blocks, and a vocabulary that no number of ranks divides.
#include "models/weight_names.h"
#include "tests/support/forward_rig.h"
#include "tests/support/rank_group.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::CommCounts;
using test::ForwardRig;

constexpr int32_t kSplitHidden = 48;
constexpr int32_t kToks = 20;

DecoderSpec split_spec() {
  LayerSpec plain;
  plain.attention = plain_attention(4, 2, 16);
  plain.attention.sinks = true;
  plain.ffn.intermediate_size = 56;
  LayerSpec normed = plain;
  normed.attention = plain_attention(8, 4, 8);
  normed.attention.sinks = true;
  normed.attention.qk_norm = true;
  normed.attention.rope = 1;
  normed.ffn = {64, Activation::kGeluTanh};
  normed.post_norms = true;
  normed.residual_scale = 0.5F;
  DecoderSpec spec;
  spec.num_layers = 3;
  spec.hidden_size = kSplitHidden;
  spec.max_position = 128;
  spec.embed_scale = 1.5F;
  spec.qkv_bias = spec.o_bias = spec.mlp_bias = true;
  spec.permuted_qk = true;
  spec.ropes = {{16, 10000.0F}, {8, 100.0F}};
  spec.layers = {plain, normed, plain};
  spec.names = hf_weight_names();
  const std::string layer = "model.layers.{}.";
  spec.names.sinks = layer + "self_attn.sinks";
  spec.names.attention_post_norm = layer + "post_attention_layernorm.weight";
  spec.names.ffn_norm = layer + "pre_feedforward_layernorm.weight";
  spec.names.ffn_post_norm = layer + "post_feedforward_layernorm.weight";
  return spec;
}

// Every tensor that the spec names, in float32.
test::Bytes random_tensors(const DecoderSpec& spec) {
  std::mt19937 random(3);
  test::SafetensorsWriter writer;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, float mean) {
    std::normal_distribution<float> normal(mean, 0.2F);
    size_t n = 1;
    for (const int64_t extent : shape) {
      n *= static_cast<size_t>(extent);
    }
    std::vector<float> values(n);
    for (float& value : values) {
      value = normal(random);
    }
    writer.add_f32(name, shape, values);
  };
  const DecoderWeightNames& names = spec.names;
  add(names.embed, {spec.vocab_size, kSplitHidden}, 0.0F);
  add(names.head, {spec.vocab_size, kSplitHidden}, 0.0F);
  add(names.final_norm, {kSplitHidden}, 1.0F);
  for (int32_t i = 0; i < spec.num_layers; ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    const AttentionSpec& attention = layer.attention;
    const int64_t inner = layer.ffn.intermediate_size;
    const auto matrix = [&](const std::string& pattern, int64_t rows, int64_t cols) {
      const std::string name = layer_name(pattern, i);
      add(name, {rows, cols}, 0.0F);
      add(bias_name(name), {rows}, 0.0F);
    };
    const auto norm = [&](const std::string& pattern, int64_t width) {
      add(layer_name(pattern, i), {width}, 1.0F);
    };
    matrix(names.q, attention.q_size(), kSplitHidden);
    matrix(names.k, attention.k_size(), kSplitHidden);
    matrix(names.v, attention.v_size(), kSplitHidden);
    matrix(names.o, kSplitHidden, attention.out_size());
    matrix(names.gate, inner, kSplitHidden);
    matrix(names.up, inner, kSplitHidden);
    matrix(names.down, kSplitHidden, inner);
    add(layer_name(names.sinks, i), {attention.num_heads}, 0.0F);
    norm(names.input_norm, kSplitHidden);
    norm(names.ffn_norm, kSplitHidden);
    if (attention.qk_norm) {
      norm(names.q_norm, attention.head_dim);
      norm(names.k_norm, attention.head_dim);
    }
    if (layer.post_norms) {
      norm(names.attention_post_norm, kSplitHidden);
      norm(names.ffn_post_norm, kSplitHidden);
    }
  }
  return writer.bytes();
}

class SplitDecoder : public ::testing::Test {
 protected:
  SplitDecoder() : embeddings_(static_cast<size_t>(kToks * kSplitHidden)) {
    use_vocab(50);  // of four ranks 16, 16, 16 and 2
    for (size_t i = 0; i < embeddings_.size(); ++i) {
      embeddings_[i] = std::sin(static_cast<float>(i));
    }
  }

  void use_vocab(int32_t vocab_size) {
    spec_.vocab_size = vocab_size;
    checkpoint_.reset();
    dir_.write("config.json", R"({"architectures": ["Hand"]})");
    dir_.write("model.safetensors", random_tensors(spec_));
    checkpoint_ = std::make_unique<Checkpoint>(
        value_or_throw(Checkpoint::open(value_or_throw(resolve_model(dir_.path().string())))));
    ids_.clear();
    for (int32_t i = 0; i < kToks; ++i) {
      ids_.push_back(i % 7 == 3 ? -1 : (i * i * 7 + i * 5) % vocab_size);
    }
  }

  struct Part {
    std::vector<float> logits;  // [kToks, vocab.width]
    std::vector<float> residual;
    VocabPart vocab;
  };

  // One rank's forward.
  Part run(const RankGroup& ranks) const {
    DecoderOptions options;
    options.tensor = ranks;
    ForwardRig rig(spec_, *checkpoint_, {options});
    const ModelOutput out =
        rig.forward(ids_, make_view<const float>(embeddings_.data(), kToks, kSplitHidden));
    return {rig.logits(out),
            {out.residual.data, out.residual.data + kToks * kSplitHidden},
            vocab_part(spec_.vocab_size, ranks.place)};
  }

  void expect_equal(const Part& alone, int32_t size, const test::ThreadGroup& group) const {
    std::vector<Part> parts(static_cast<size_t>(size));
    test::on_threads(size, [&](int32_t rank) {
      parts[static_cast<size_t>(rank)] = run({{rank, size}, &group.comm(rank)});
    });
    int32_t num_compared = 0;
    for (const Part& part : parts) {
      EXPECT_EQ(part.residual, parts.front().residual) << "ranks differ";
      for (int32_t t = 0; t < kToks; ++t) {
        for (int32_t id = 0; id < part.vocab.count; ++id) {
          ASSERT_NEAR(
              part.logits[static_cast<size_t>(t * part.vocab.width + id)],
              alone.logits[static_cast<size_t>(t * spec_.vocab_size + part.vocab.first + id)],
              1e-4)
              << "token " << t << ", id " << part.vocab.first + id << " of " << size << " ranks";
          ++num_compared;
        }
      }
    }
    EXPECT_EQ(num_compared, kToks * spec_.vocab_size);
  }

  test::TempDir dir_;
  DecoderSpec spec_ = split_spec();
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<int32_t> ids_;
  std::vector<float> embeddings_;
};

TEST_F(SplitDecoder, LogitsEqualThoseOfOneRank) {
  for (const bool tied : {false, true}) {
    spec_.tied_head = tied;
    const Part alone = run({});
    for (const int32_t size : {2, 4}) {
      const test::ThreadGroup group(size);
      expect_equal(alone, size, group);
      // Two sums in each layer, and one behind the embedding.
      EXPECT_EQ(group.comm(size - 1).counts(), (CommCounts{.all_reduces = 2 * 3 + 1}));
    }
  }
}

TEST_F(SplitDecoder, APartOfTheVocabularyMayBeEmpty) {
  use_vocab(17);  // of four ranks 16, 1, 0 and 0
  spec_.tied_head = true;
  expect_equal(run({}), 4, test::ThreadGroup(4));
}

}  // namespace
}  // namespace warprow
