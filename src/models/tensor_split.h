// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "layers/tensor_spec.h"
#include "models/decoder_spec.h"
#include "models/vocab_part.h"

#include <cstdint>

namespace warprow {

// How the ranks of a tensor-parallel group divide a decoder. A layer's matrices are cut twice: Q, K, V, gate and up by
// rows, so that a rank computes its own heads and its own part of the feed-forward; O and down by columns, so that each
// rank has a part of every sum, and the sums over ranks are the products. Embedding and head are cut by the
// vocabulary. Norms, and biases of O and down, are not cut.

// Indices of a layer's heads that a rank has. With fewer key-value heads than ranks, several ranks have a copy of the
// same one.
IndexRange query_heads(const AttentionSpec& attention, const GroupPlace& place);
IndexRange kv_heads(const AttentionSpec& attention, const GroupPlace& place);

// Key heads of a gated delta net that a rank has, with their value heads.
IndexRange delta_key_heads(const DeltaSpec& delta, const GroupPlace& place);

VocabPart vocab_part(int32_t vocab_size, const GroupPlace& place);

// Errors: a size of the model that the ranks cannot divide, with its name in config.json, its value and the ranks.
Result<void> check_tensor_split(const DecoderSpec& spec, int32_t num_ranks, DeviceKind device);

// What a rank computes of a layer: its own heads, and its part of the feed-forward.
LayerSpec rank_layer(const LayerSpec& layer, const GroupPlace& place);
// The same for all layers. Sizes that are not cut, and tensors' names, stay as they are.
DecoderSpec rank_spec(const DecoderSpec& spec, const GroupPlace& place);

// Which part of a layer's matrices a rank holds.
struct LayerShards {
  ShardRule q;
  ShardRule kv;
  ShardRule o;
  ShardRule sinks;
  ShardRule delta_out;  // by value heads
  ShardRule ffn_in;     // gate, up
  ShardRule ffn_out;    // down
};
LayerShards layer_shards(const LayerSpec& layer, const GroupPlace& place);

}  // namespace warprow
