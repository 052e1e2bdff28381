// SPDX-License-Identifier: Apache-2.0
#include "models/tensor_split.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {

bool operator==(const IndexRange& a, const IndexRange& b) {
  return a.begin == b.begin && a.count == b.count;
}
void PrintTo(const IndexRange& range, std::ostream* out) {
  *out << "[" << range.begin << ", +" << range.count << ")";
}

namespace {

DecoderSpec spec_with(int32_t num_heads, int32_t num_kv_heads, int32_t intermediate_size) {
  DecoderSpec spec;
  spec.num_layers = 2;
  LayerSpec layer;
  layer.attention = plain_attention(num_heads, num_kv_heads, 64);
  layer.ffn.intermediate_size = intermediate_size;
  set_uniform_layers(spec, layer);
  return spec;
}

std::string split_refusal(const DecoderSpec& spec,
                          int32_t num_ranks,
                          DeviceKind device = DeviceKind::kCpu) {
  const Result<void> result = check_tensor_split(spec, num_ranks, device);
  return result ? "" : result.error().message;
}

TEST(TensorSplit, ThirtyTwoHeadsOverFourRanks) {
  const AttentionSpec attention = plain_attention(32, 8, 128);
  EXPECT_EQ(query_heads(attention, {0, 4}), (IndexRange{0, 8}));  // 0-7
  EXPECT_EQ(query_heads(attention, {1, 4}), (IndexRange{8, 8}));  // 8-15
  EXPECT_EQ(query_heads(attention, {2, 4}), (IndexRange{16, 8}));
  EXPECT_EQ(query_heads(attention, {3, 4}), (IndexRange{24, 8}));
  EXPECT_EQ(kv_heads(attention, {0, 4}), (IndexRange{0, 2}));
  EXPECT_EQ(kv_heads(attention, {3, 4}), (IndexRange{6, 2}));
}

TEST(TensorSplit, RanksShareAKeyValueHeadIfThereAreFewer) {
  const AttentionSpec attention = plain_attention(8, 2, 64);
  EXPECT_EQ(kv_heads(attention, {0, 4}), (IndexRange{0, 1}));
  EXPECT_EQ(kv_heads(attention, {1, 4}), (IndexRange{0, 1}));
  EXPECT_EQ(kv_heads(attention, {2, 4}), (IndexRange{1, 1}));
  EXPECT_EQ(kv_heads(attention, {3, 4}), (IndexRange{1, 1}));
  EXPECT_EQ(kv_heads(plain_attention(8, 1, 64), {5, 8}), (IndexRange{0, 1}));
}

// Every query head finds the key-value head that it has in the whole model.
TEST(TensorSplit, EveryRankHasTheKeyValueHeadsOfItsQueries) {
  for (const auto& [num_heads, num_kv_heads] : std::vector<std::pair<int32_t, int32_t>>{
           {32, 8}, {8, 2}, {8, 1}, {9, 3}, {16, 16}, {24, 8}}) {
    const AttentionSpec attention = plain_attention(num_heads, num_kv_heads, 64);
    for (const int32_t size : {1, 2, 3, 4, 8}) {
      DecoderSpec spec = spec_with(num_heads, num_kv_heads, 768);
      if (!check_tensor_split(spec, size, DeviceKind::kCpu)) {
        continue;
      }
      for (int32_t rank = 0; rank < size; ++rank) {
        const AttentionSpec mine = rank_layer(spec.layers[0], {rank, size}).attention;
        const IndexRange queries = query_heads(attention, {rank, size});
        const IndexRange keys = kv_heads(attention, {rank, size});
        ASSERT_EQ(queries.count, mine.num_heads);
        ASSERT_EQ(keys.count, mine.num_kv_heads);
        for (int64_t head = 0; head < queries.count; ++head) {
          EXPECT_EQ(keys.begin + head / (mine.num_heads / mine.num_kv_heads),
                    (queries.begin + head) / (num_heads / num_kv_heads))
              << num_heads << " heads, rank " << rank << " of " << size;
        }
      }
    }
  }
}

TEST(TensorSplit, ExpertsAreCutInWholePanels) {
  DecoderSpec spec = spec_with(8, 4, 96);
  spec.hidden_size = 48;
  EXPECT_EQ(split_refusal(spec, 4), "");
  for (LayerSpec& layer : spec.layers) {
    layer.ffn.num_experts = 8;
    layer.ffn.experts_per_token = 2;
  }
  EXPECT_EQ(split_refusal(spec, 2), "");
  EXPECT_EQ(rank_layer(spec.layers[0], {1, 2}).ffn.intermediate_size, 48);
  EXPECT_EQ(split_refusal(spec, 4),
            "layer 0: the intermediate size 96 of experts is no multiple of tensor-parallel-size 4 "
            "times 16");
  EXPECT_EQ(split_refusal(spec, 4, DeviceKind::kCuda), "");
  EXPECT_EQ(split_refusal(spec, 8, DeviceKind::kCuda),
            "layer 0: the intermediate size 96 of experts is no multiple of tensor-parallel-size 8 "
            "times 8");
  for (LayerSpec& layer : spec.layers) {
    layer.ffn.shared_size = 57;
  }
  EXPECT_EQ(split_refusal(spec, 2),
            "layer 0: the intermediate size 57 of the shared expert is no multiple of "
            "tensor-parallel-size 2 times 1");
  spec.hidden_size = 40;
  EXPECT_EQ(split_refusal(spec, 1),
            "layer 0: hidden_size 40 of a model with experts is no multiple of 16");
}

// A rank has key heads with all of their value heads.
TEST(TensorSplit, StatesAreCutByKeyHeads) {
  DecoderSpec spec = spec_with(8, 2, 128);
  DeltaSpec& delta = spec.layers[1].delta;
  delta.num_key_heads = 4;
  delta.num_value_heads = 8;
  delta.key_dim = delta.value_dim = 16;
  delta.conv_len = 4;
  EXPECT_EQ(split_refusal(spec, 1), "");
  EXPECT_EQ(split_refusal(spec, 4), "");
  EXPECT_EQ(split_refusal(spec, 8),
            "layer 1: linear_num_key_heads 4 is no multiple of tensor-parallel-size 8");
  EXPECT_EQ(split_refusal(spec, 1, DeviceKind::kCuda), "");
  DecoderSpec large = spec;
  large.layers[1].delta.value_dim = 132;
  EXPECT_EQ(split_refusal(large, 1), "");
  EXPECT_EQ(split_refusal(large, 1, DeviceKind::kCuda),
            "layer 1: a gated delta net with linear_key_head_dim 16, linear_value_head_dim 132 and "
            "linear_conv_kernel_dim 4 is not supported on CUDA (multiples of 4 up to 128; 2 to 4)");
  EXPECT_EQ(delta_key_heads(delta, {1, 2}), (IndexRange{2, 2}));
  const LayerSpec mine = rank_layer(spec.layers[1], {1, 2});
  EXPECT_EQ(mine.delta.num_key_heads, 2);
  EXPECT_EQ(mine.delta.num_value_heads, 4);
  EXPECT_EQ(layer_shards(spec.layers[1], {1, 2}).delta_out.unit, 16);
}

TEST(TensorSplit, PartsOfAVocabularyAreEquallyWide) {
  EXPECT_EQ(vocab_part(49152, {2, 3}), (VocabPart{32768, 16384, 16384}));
  EXPECT_EQ(vocab_part(50257, {0, 1}), (VocabPart{0, 50257, 50257}));
  EXPECT_EQ(vocab_part(50257, {0, 2}), (VocabPart{0, 25136, 25136}));
  EXPECT_EQ(vocab_part(50257, {1, 2}), (VocabPart{25136, 25121, 25136}));
  EXPECT_EQ(vocab_part(17, {1, 4}), (VocabPart{16, 1, 16}));
  EXPECT_EQ(vocab_part(17, {3, 4}), (VocabPart{17, 0, 16}));
}

TEST(TensorSplit, WhatCannotBeDividedIsNamed) {
  EXPECT_EQ(split_refusal(spec_with(32, 8, 1024), 4), "");
  EXPECT_EQ(split_refusal(spec_with(32, 8, 1024), 16), "");
  EXPECT_EQ(split_refusal(spec_with(9, 3, 1536), 2),
            "layer 0: num_attention_heads 9 is no multiple of tensor-parallel-size 2");
  EXPECT_EQ(split_refusal(spec_with(12, 3, 1536), 2),
            "layer 0: num_key_value_heads 3 is neither a multiple nor a divisor of "
            "tensor-parallel-size 2");
  EXPECT_EQ(split_refusal(spec_with(8, 8, 99), 2),
            "layer 0: intermediate_size 99 is no multiple of tensor-parallel-size 2 times 1");
  EXPECT_EQ(split_refusal(spec_with(8, 8, 100), 2), "");
  DecoderSpec spec = spec_with(8, 8, 1024);
  spec.layers[1].ffn.intermediate_size = 1032;
  EXPECT_EQ(split_refusal(spec, 2, DeviceKind::kCuda),
            "layer 1: intermediate_size 1032 is no multiple of tensor-parallel-size 2 times 8");
  spec.layers[0].attention.wide_qk_norm = true;
  EXPECT_EQ(split_refusal(spec, 1), "");
  EXPECT_EQ(split_refusal(spec, 2), "layer 0: norms over all heads cannot be divided among ranks");
}

TEST(TensorSplit, MatricesAreCutByHeadsAndByTheFeedForward) {
  LayerSpec layer;
  layer.attention = plain_attention(8, 2, 64);
  layer.ffn.intermediate_size = 256;
  const LayerShards shards = layer_shards(layer, {3, 4});
  TensorSpec q{"q", 512, 256};
  q.shard = shards.q;
  EXPECT_EQ(value_or_throw(shard_rows(q, {})), (IndexRange{384, 128}));
  TensorSpec k{"k", 128, 256};
  k.shard = shards.kv;
  EXPECT_EQ(value_or_throw(shard_rows(k, {})), (IndexRange{64, 64}));
  TensorSpec o{"o", 256, 512};
  o.shard = shards.o;
  EXPECT_EQ(value_or_throw(shard_cols(o, {})), (IndexRange{384, 128}));
  TensorSpec up{"up", 256, 256};
  up.shard = shards.ffn_in;
  EXPECT_EQ(value_or_throw(shard_rows(up, {})), (IndexRange{192, 64}));
  TensorSpec down{"down", 256, 256};
  down.shard = shards.ffn_out;
  EXPECT_EQ(value_or_throw(shard_cols(down, {})), (IndexRange{192, 64}));
  const LayerSpec mine = rank_layer(layer, {3, 4});
  EXPECT_EQ(mine.attention.num_heads, 2);
  EXPECT_EQ(mine.attention.num_kv_heads, 1);
  EXPECT_EQ(mine.ffn.intermediate_size, 64);
}

}  // namespace
}  // namespace warprow
