// SPDX-License-Identifier: Apache-2.0
#include "models/layer_parts.h"

#include "models/weight_names.h"

#include <utility>

namespace warprow {
namespace {

// Makes the parts, whose rows follow each other, slices of one tensor.
void fuse(std::vector<LinearPart>& parts, const std::string& tensor, bool bias) {
  int64_t rows = 0;
  for (const LinearPart& part : parts) {
    rows += part.weight.rows;
  }
  int64_t first = 0;
  for (LinearPart& part : parts) {
    part.weight.name = tensor;
    part.weight.slice = {rows, part.weight.cols, first, 0};
    part.bias = bias ? bias_name(tensor) : std::string();
    first += part.weight.rows;
  }
}

}  // namespace

LinearPart linear_part(
    const std::string& weight, int64_t rows, int64_t cols, const ShardRule& shard, bool bias) {
  LinearPart out{{weight, rows, cols}, bias ? bias_name(weight) : std::string()};
  out.weight.shard = shard;
  out.weight.of_linear = true;
  return out;
}

namespace {

// Appends a part for each of the rank's query heads: its rows in a tensor in which each head's queries and output gates
// follow each other. first: 0 for queries, head_dim for gates.
void add_gated_heads(const DecoderSpec& spec,
                     int32_t layer,
                     const IndexRange& heads,
                     int64_t first,
                     std::vector<LinearPart>& parts) {
  const AttentionSpec& attention = spec.layers[static_cast<size_t>(layer)].attention;
  const int64_t rows = attention.head_dim;
  for (int64_t h = heads.begin; h < heads.begin + heads.count; ++h) {
    LinearPart part =
        linear_part(layer_name(spec.names.q, layer), rows, spec.hidden_size, {}, false);
    part.weight.slice = {
        2 * int64_t{attention.num_heads} * rows, spec.hidden_size, 2 * h * rows + first, 0};
    parts.push_back(std::move(part));
  }
}

}  // namespace

std::vector<LinearPart> gated_qkv_parts(const DecoderSpec& spec,
                                        int32_t layer,
                                        const LayerShards& shards,
                                        const IndexRange& heads) {
  const AttentionSpec& attention = spec.layers[static_cast<size_t>(layer)].attention;
  std::vector<LinearPart> parts;
  add_gated_heads(spec, layer, heads, 0, parts);
  const auto add = [&](const std::string& pattern, int64_t rows) {
    parts.push_back(
        linear_part(layer_name(pattern, layer), rows, spec.hidden_size, shards.kv, false));
  };
  add(spec.names.k, attention.k_size());
  add(spec.names.v, attention.v_size());
  add_gated_heads(spec, layer, heads, attention.head_dim, parts);
  return parts;
}

std::vector<LinearPart> qkv_parts(const DecoderSpec& spec,
                                  int32_t layer,
                                  const LayerShards& shards) {
  const AttentionSpec& attention = spec.layers[static_cast<size_t>(layer)].attention;
  const DecoderWeightNames& names = spec.names;
  const auto part = [&](const std::string& pattern, int64_t rows, const ShardRule& shard) {
    return linear_part(layer_name(pattern, layer), rows, spec.hidden_size, shard, spec.qkv_bias);
  };
  std::vector<LinearPart> parts{part(names.q, attention.q_size(), shards.q)};
  if (!attention.has_own_kv()) {
    return parts;
  }
  parts.push_back(part(names.k, attention.k_size(), shards.kv));
  if (!attention.values_are_keys) {
    parts.push_back(part(names.v, attention.v_size(), shards.kv));
  }
  if (spec.permuted_qk) {
    for (LinearPart* permuted : {&parts[0], &parts[1]}) {
      permuted->weight.order = RowOrder::kRopePairs;
      permuted->weight.head_dim = attention.head_dim;
    }
  }
  if (!names.qkv.empty()) {
    fuse(parts, layer_name(names.qkv, layer), spec.qkv_bias);
  }
  return parts;
}

std::vector<LinearPart> gate_up_parts(const DecoderSpec& spec,
                                      int32_t layer,
                                      const LayerShards& shards) {
  const int64_t inner = spec.layers[static_cast<size_t>(layer)].ffn.intermediate_size;
  const auto part = [&](const std::string& pattern) {
    return linear_part(
        layer_name(pattern, layer), inner, spec.hidden_size, shards.ffn_in, spec.mlp_bias);
  };
  std::vector<LinearPart> parts{part(spec.names.gate), part(spec.names.up)};
  if (!spec.names.gate_up.empty()) {
    fuse(parts, layer_name(spec.names.gate_up, layer), spec.mlp_bias);
  }
  return parts;
}

}  // namespace warprow
