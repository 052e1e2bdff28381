// SPDX-License-Identifier: Apache-2.0
// A decoder whose layers differ in every field of a LayerSpec, against an oracle in doubles. Also tests embeddings as
// input, stages of layers, and hidden states between layers.
#include "models/weight_names.h"
#include "tests/support/decoder_oracle.h"
#include "tests/support/forward_rig.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/temp_dir.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Doubles;
using test::ForwardRig;
using test::TempDir;

constexpr int32_t kVocab = 96;
constexpr int32_t kHidden = 48;

// Three kinds of layer, each twice. Per kind: heads, KV heads, head size.
test::OracleModel oracle_model() {
  test::OracleLayer full;
  full.num_heads = 6;
  full.num_kv_heads = 2;
  full.head_dim = full.rot_dim = 8;
  full.theta = 10000.0;
  full.scale = 1.0 / std::sqrt(8.0);
  full.intermediate = 56;
  test::OracleLayer sliding;  // rope rotates a part of each head
  sliding.num_heads = 2;
  sliding.num_kv_heads = 1;
  sliding.head_dim = 24;
  sliding.rot_dim = 8;
  sliding.theta = 100.0;
  sliding.window = 12;
  sliding.scale = 0.3;
  sliding.intermediate = 40;
  sliding.gelu = true;
  sliding.residual_scale = 0.5;
  test::OracleLayer capped;  // without rope
  capped.num_heads = 4;
  capped.num_kv_heads = 4;
  capped.head_dim = 16;
  capped.scale = 0.25;
  capped.soft_cap = 2.0;
  capped.intermediate = 64;
  test::OracleModel model;
  model.hidden = kHidden;
  model.vocab = kVocab;
  model.eps = 1e-5;
  model.layers = {full, sliding, capped, full, sliding, capped};
  return model;
}

bool is_sliding(int layer) { return layer % 3 == 1; }
bool is_capped(int layer) { return layer % 3 == 2; }

// The same model as a DecoderSpec.
DecoderSpec decoder_spec() {
  LayerSpec full;
  full.attention = plain_attention(6, 2, 8);
  full.ffn.intermediate_size = 56;
  LayerSpec sliding;
  sliding.attention = plain_attention(2, 1, 24);
  sliding.attention.window = 12;
  sliding.attention.rope = 1;
  sliding.attention.scale = 0.3F;
  sliding.attention.qk_norm = true;
  sliding.ffn = {40, Activation::kGeluTanh};
  sliding.post_norms = true;
  sliding.residual_scale = 0.5F;
  LayerSpec capped;
  capped.attention = plain_attention(4, 4, 16);
  capped.attention.rope = kNoRope;
  capped.attention.soft_cap = 2.0F;
  capped.attention.sinks = true;
  capped.ffn.intermediate_size = 64;
  DecoderSpec spec;
  spec.num_layers = 6;
  spec.hidden_size = kHidden;
  spec.vocab_size = kVocab;
  spec.max_position = 128;
  spec.rms_eps = 1e-5F;
  spec.ropes = {{8, 10000.0F}, {8, 100.0F}};
  spec.layers = {full, sliding, capped, full, sliding, capped};
  spec.names = hf_weight_names();
  spec.names.sinks = "model.layers.{}.self_attn.sinks";
  const std::string layer = "model.layers.{}.";
  spec.names.attention_post_norm = layer + "post_attention_layernorm.weight";
  spec.names.ffn_norm = layer + "pre_feedforward_layernorm.weight";
  spec.names.ffn_post_norm = layer + "post_feedforward_layernorm.weight";
  return spec;
}

class DescribedLayers : public ::testing::Test {
 protected:
  DescribedLayers() : model_(oracle_model()), oracle_(model_) {
    test::RandomCheckpoint tensors(model_, 5);
    tensors.add_ends(false);
    for (int i = 0; i < 6; ++i) {
      tensors.add_layer(
          i,
          {.qk = is_sliding(i), .post = is_sliding(i), .ffn = "pre_feedforward_layernorm"},
          is_capped(i));
    }
    dir_.write("config.json", R"({"architectures": ["Hand"]})");
    dir_.write("model.safetensors", tensors.bytes());
    checkpoint_ = std::make_unique<Checkpoint>(
        value_or_throw(Checkpoint::open(value_or_throw(resolve_model(dir_.path().string())))));
    for (int i = 0; i < 60; ++i) {
      ids_.push_back((i * i * 7 + i * 5) % kVocab);
    }
  }

  [[nodiscard]] std::unique_ptr<ForwardRig> rig(const std::vector<DecoderOptions>& stages = {
                                                    DecoderOptions()}) const {
    return std::make_unique<ForwardRig>(spec_, *checkpoint_, stages);
  }
  [[nodiscard]] std::vector<int32_t> ids(size_t begin, size_t end) const {
    return {ids_.begin() + static_cast<int64_t>(begin), ids_.begin() + static_cast<int64_t>(end)};
  }
  static std::vector<float> values(const View<float, 2>& rows) {
    std::vector<float> out;
    for (int64_t t = 0; t < rows.shape[0]; ++t) {
      const float* row = rows.data + t * rows.stride[0];
      out.insert(out.end(), row, row + rows.shape[1]);
    }
    return out;
  }
  // Logits of the first 40 tokens, prefilled in two chunks.
  static std::vector<float> logits_of_chunks(ForwardRig& rig,
                                             const std::vector<int32_t>& first,
                                             const std::vector<int32_t>& second) {
    std::vector<float> all = rig.logits(rig.forward(first));
    const std::vector<float> more = rig.logits(rig.forward(second));
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  TempDir dir_;
  test::OracleModel model_;
  test::DecoderOracle oracle_;
  DecoderSpec spec_ = decoder_spec();
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<int32_t> ids_;
};

TEST_F(DescribedLayers, EqualTheOracle) {
  const auto model = rig();
  ASSERT_EQ(model->kv().groups.size(), 3U);
  EXPECT_EQ(model->kv().groups[0].head_dim_k, 8);
  EXPECT_EQ(model->kv().groups[1].head_dim_k, 24);
  EXPECT_EQ(model->kv().groups[2].num_kv_heads, 4);
  EXPECT_EQ(model->kv().num_heads, (std::vector<int32_t>{6, 2, 4}));
  const std::vector<Doubles> want = oracle_.logits(ids_);
  size_t at = 0;
  for (const size_t chunk : {7U, 33U, 1U, 1U, 17U, 1U}) {
    const std::vector<float> got = model->logits(model->forward(ids(at, at + chunk)));
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[at + i / kVocab][i % kVocab], 1e-4) << "token " << at + i / kVocab;
    }
    at += chunk;
  }
  EXPECT_EQ(at, ids_.size());
}

// Two stages give the same bits as one model. The second stage takes the first one's hidden states.
TEST_F(DescribedLayers, StagesEqualTheWhole) {
  DecoderOptions first;
  first.layers = {0, 2};
  DecoderOptions second;
  second.layers = {2, 6};
  const auto whole = rig();
  const auto parts = rig({first, second});
  EXPECT_EQ(logits_of_chunks(*whole, ids(0, 23), ids(23, 40)),
            logits_of_chunks(*parts, ids(0, 23), ids(23, 40)));
  const auto front = rig({first});
  const ModelOutput out = front->forward(ids(0, 23));
  EXPECT_TRUE(out.hidden.empty());
  EXPECT_EQ(out.residual.shape[0], 23);
}

TEST_F(DescribedLayers, HiddenStatesOfChosenLayers) {
  DecoderOptions chosen;
  chosen.aux_layers = {1, 5};
  DecoderOptions first;
  first.layers = {0, 2};
  const auto model = rig({chosen});
  const auto front = rig({first});
  const auto plain = rig();
  const ModelOutput out = model->forward(ids(0, 23));
  const ActView aux = model->model().aux_states(23);
  ASSERT_EQ(aux.shape[1], 2 * kHidden);
  EXPECT_EQ(values(aux.columns(0, kHidden).f32()), values(front->forward(ids(0, 23)).residual));
  EXPECT_EQ(values(aux.columns(kHidden, kHidden).f32()), values(out.residual));
  const ModelOutput without = plain->forward(ids(0, 23));
  EXPECT_TRUE(plain->model().aux_states(23).empty());
  EXPECT_EQ(values(out.residual), values(without.residual));
}

// Embedding rows replace some of the ids.
TEST_F(DescribedLayers, EmbeddingsStandInForIds) {
  const auto by_ids = rig();
  const auto mixed = rig();
  std::vector<int32_t> some = ids(0, 23);
  std::vector<float> rows(some.size() * kHidden, std::nanf(""));
  for (const size_t t : {0U, 5U, 6U, 22U}) {
    for (size_t i = 0; i < kHidden; ++i) {
      const auto row = static_cast<size_t>(some[t]) * kHidden;
      rows[t * kHidden + i] = static_cast<float>(model_.embed[row + i]);
    }
    some[t] = -1;
  }
  EXPECT_EQ(
      values(by_ids->forward(ids(0, 23)).residual),
      values(mixed->forward(some, make_view<const float>(rows.data(), 23, kHidden)).residual));
}

TEST_F(DescribedLayers, AnOddRangeIsRefused) {
  const auto error_of = [&](LayerRange layers, std::vector<int32_t> aux) -> std::string {
    DecoderOptions options;
    options.layers = layers;
    options.aux_layers = std::move(aux);
    try {
      const auto refused = rig({options});
    } catch (const StartupError& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(error_of({2, 7}, {}), "layers 2 to 7 of 6");
  EXPECT_EQ(error_of({3, 3}, {}), "layers 3 to 3 of 6");
  EXPECT_EQ(error_of({0, 2}, {2}), "hidden states of layer 2, which is not among 0 to 1");
}

}  // namespace
}  // namespace warprow
