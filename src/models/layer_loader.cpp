// SPDX-License-Identifier: Apache-2.0
#include "models/layer_loader.h"

#include "kernels/linear/cpu/pack.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "models/layer_parts.h"
#include "models/weight_names.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace warprow {
namespace {

// Rows [first, first + rows) of a tensor of all experts.
TensorSpec slice_of(const std::string& name,
                    int64_t tensor_rows,
                    int64_t first,
                    int64_t rows,
                    int64_t cols,
                    const ShardRule& shard) {
  TensorSpec slice{name, rows, cols};
  slice.slice = {tensor_rows, cols, first, 0};
  slice.shard = shard;
  return slice;
}

TensorSpec tensor_of(const std::string& name, int64_t rows, int64_t cols, const ShardRule& shard) {
  TensorSpec tensor{name, rows, cols};
  tensor.shard = shard;
  return tensor;
}

// The specs' matrices as one of float32 panels on a CPU, for parts that end within a panel.
PackedWeight row_by_row(ParameterLoader& loader, const std::vector<TensorSpec>& specs) {
  std::vector<float> values;
  for (const TensorSpec& spec : specs) {
    const IndexRange rows = value_or_throw(shard_rows(spec, {}));
    const int64_t first = spec.slice.first_row + rows.begin;
    for (int64_t row = first; row < first + rows.count; ++row) {
      TensorSpec one{spec.name, 1, spec.cols};
      one.slice = {std::max(spec.slice.tensor_rows, spec.rows), spec.cols, row, 0};
      const std::vector<float> read = loader.read_vector(one);
      values.insert(values.end(), read.begin(), read.end());
    }
  }
  PackedWeight weight;
  weight.k = static_cast<int32_t>(specs.front().cols);
  weight.n = static_cast<int32_t>(std::ssize(values) / weight.k);
  std::vector<float> packed(cpu::packed_bytes(weight) / sizeof(float));
  cpu::pack_values(weight, reinterpret_cast<std::byte*>(packed.data()), 0, weight.n, values.data());
  weight.data = reinterpret_cast<const std::byte*>(loader.constants(std::move(packed)).data);
  return weight;
}

}  // namespace

View<const float, 1> load_norm(ParameterLoader& loader,
                               const DecoderSpec& spec,
                               const std::string& name,
                               int64_t width) {
  if (spec.norm_offset == 0.0F) {
    return loader.vector({name, 1, width});
  }
  std::vector<float> weights = loader.read_vector({name, 1, width});
  for (float& weight : weights) {
    weight += spec.norm_offset;
  }
  return loader.constants(std::move(weights));
}

PackedWeight load_vocab(ParameterLoader& loader,
                        int32_t vocab_size,
                        const VocabPart& part,
                        const std::string& name,
                        int64_t width,
                        VocabUse use) {
  if (part.count == 0) {
    PackedWeight none;
    none.kind = PackedKind::kBF16;
    none.k = static_cast<int32_t>(width);
    return none;
  }
  TensorSpec rows{name, part.count, width};
  rows.of_head = use == VocabUse::kMultiplied;
  rows.of_tied_head = use == VocabUse::kBoth;
  if (part.count < vocab_size) {
    rows.slice = {vocab_size, width, part.first, 0};
  }
  return loader.matrix(rows);
}

LayerLoader::LayerLoader(ParameterLoader& loader,
                         const DecoderSpec& spec,
                         int32_t index,
                         const RankGroup& ranks,
                         const LinearMode& mode)
    : loader_(loader),
      spec_(spec),
      index_(index),
      ranks_(ranks),
      mode_(mode),
      whole_(spec.layers[static_cast<size_t>(index)]),
      mine_(rank_layer(whole_, ranks.place)),
      shards_(layer_shards(whole_, ranks.place)) {}

std::string LayerLoader::name(const std::string& pattern) const {
  return layer_name(pattern, index_);
}

View<const float, 1> LayerLoader::norm(const std::string& pattern, int64_t width) const {
  return load_norm(loader_, spec_, name(pattern), width);
}

LinearPart LayerLoader::part(const std::string& pattern,
                             int64_t rows,
                             int64_t cols,
                             const ShardRule& shard,
                             bool bias) const {
  return linear_part(name(pattern), rows, cols, shard, bias);
}

Linear LayerLoader::linear(const std::vector<LinearPart>& parts) const {
  return {loader_, parts, mode_};
}

Linear LayerLoader::stacked(const std::vector<LinearPart>& parts) const {
  std::vector<TensorSpec> weights;
  weights.reserve(parts.size());
  bool whole_panels = true;
  for (const LinearPart& part : parts) {
    const int64_t rows = value_or_throw(shard_rows(part.weight, {})).count;
    whole_panels = whole_panels && (rows % cpu::kRowsPerPanel == 0 || &part == &parts.back());
    weights.push_back(part.weight);
  }
  return {whole_panels || loader_.stacks(weights) ? loader_.stacked(weights)
                                                  : row_by_row(loader_, weights),
          mode_};
}

JoinMode LayerLoader::join_mode(const std::string& post_norm) const {
  JoinMode mode;
  mode.ranks = ranks_;
  mode.scale = whole_.residual_scale;
  mode.norm_eps = spec_.rms_eps;
  if (whole_.post_norms) {
    mode.post_norm = norm(post_norm, spec_.hidden_size);
  }
  return mode;
}

Join LayerLoader::join(const std::string& weight,
                       int64_t inputs,
                       const ShardRule& shard,
                       bool bias,
                       const std::string& post_norm) const {
  const bool mine_has_bias = bias && ranks_.place.rank == 0;
  const Linear product = linear({part(weight, spec_.hidden_size, inputs, shard, mine_has_bias)});
  return {product, join_mode(post_norm)};
}

ExpertTensors LayerLoader::expert_tensors() const {
  ExpertTensors tensors = plain_expert_tensors();
  const bool whole_tiles =
      mine_.ffn.intermediate_size % kQuantTileRows == 0 && spec_.hidden_size % kQuantTileRows == 0;
  for (std::vector<TensorSpec>* specs : {&tensors.gate_up, &tensors.down}) {
    for (TensorSpec& spec : *specs) {
      spec.of_experts = whole_tiles;
    }
  }
  return tensors;
}

ExpertTensors LayerLoader::plain_expert_tensors() const {
  const DecoderWeightNames& names = spec_.names;
  const int64_t hidden = spec_.hidden_size;
  const int64_t inner = whole_.ffn.intermediate_size;
  const int32_t experts = whole_.ffn.num_experts;
  ExpertTensors tensors;
  tensors.router = tensor_of(name(names.router), experts, hidden, {});
  if (whole_.ffn.choice_bias) {
    tensors.choice_bias = name(names.choice_bias);
  }
  if (whole_.ffn.own_norms) {
    tensors.scales = name(names.expert_scales);
  }
  if (whole_.ffn.expert_biases) {
    tensors.router_bias = bias_name(tensors.router.name);
    add_expert_biases(tensors);
  }
  if (spec_.alternating_gate_up && (loader_.reads_checkpoint() || spec_.mxfp4_experts)) {
    add_alternating_experts(tensors);
    return tensors;
  }
  const bool gates_and_ups =
      !names.experts_gate_up.empty() && loader_.provides(name(names.experts_gate_up));
  if (!gates_and_ups && names.expert_gate.empty() &&
      loader_.keeps_mxfp4_blocks(
          {name(names.experts_gate), name(names.experts_up), name(names.experts_down)})) {
    add_mxfp4_experts(tensors);
    return tensors;
  }
  if (names.expert_gate.empty() || gates_and_ups) {
    tensors.down = {tensor_of(name(names.experts_down), experts * hidden, inner, shards_.ffn_out)};
  }
  if (gates_and_ups && shards_.ffn_in.world == 1) {
    tensors.gate_up = {tensor_of(name(names.experts_gate_up), experts * 2 * inner, hidden, {})};
    return tensors;
  }
  const ShardRule& in = shards_.ffn_in;
  for (int32_t e = 0; e < experts; ++e) {
    if (gates_and_ups) {
      const std::string merged = name(names.experts_gate_up);
      for (const int64_t first : {2 * e * inner, (2 * e + 1) * inner}) {
        tensors.gate_up.push_back(slice_of(merged, experts * 2 * inner, first, inner, hidden, in));
      }
    } else if (names.expert_gate.empty()) {
      for (const std::string* merged : {&names.experts_gate, &names.experts_up}) {
        tensors.gate_up.push_back(
            slice_of(name(*merged), experts * inner, e * inner, inner, hidden, in));
      }
    } else {
      for (const std::string* each : {&names.expert_gate, &names.expert_up}) {
        tensors.gate_up.push_back(tensor_of(expert_name(*each, index_, e), inner, hidden, in));
      }
      tensors.down.push_back(
          tensor_of(expert_name(names.expert_down, index_, e), hidden, inner, shards_.ffn_out));
    }
  }
  return tensors;
}

// As add_alternating_experts, of GGUF, which has gate and up rows in two tensors.
void LayerLoader::add_mxfp4_experts(ExpertTensors& tensors) const {
  const DecoderWeightNames& names = spec_.names;
  const int64_t hidden = spec_.hidden_size;
  const int64_t inner = whole_.ffn.intermediate_size;
  const int32_t experts = whole_.ffn.num_experts;
  for (int32_t e = 0; e < experts; ++e) {
    TensorSpec gate_up = expert_slice(names.experts_gate, e, inner, hidden, shards_.ffn_in);
    gate_up.rows *= 2;
    gate_up.second_half = name(names.experts_up);
    TensorSpec down = expert_slice(names.experts_down, e, hidden, inner, shards_.ffn_out);
    gate_up.format = down.format = &mxfp4_blocks_format();
    tensors.gate_up.push_back(gate_up);
    tensors.down.push_back(down);
  }
}

// One spec for an expert's gate and up rows, and one for its down rows.
void LayerLoader::add_alternating_experts(ExpertTensors& tensors) const {
  const DecoderWeightNames& names = spec_.names;
  const int64_t hidden = spec_.hidden_size;
  const int64_t inner = whole_.ffn.intermediate_size;
  const int32_t experts = whole_.ffn.num_experts;
  for (int32_t e = 0; e < experts; ++e) {
    TensorSpec gate_up = expert_slice(names.experts_gate_up, e, 2 * inner, hidden, shards_.ffn_in);
    gate_up.order = RowOrder::kRopePairs;
    gate_up.head_dim = 2 * mine_.ffn.intermediate_size;
    tensors.gate_up.push_back(gate_up);
    tensors.down.push_back(expert_slice(names.experts_down, e, hidden, inner, shards_.ffn_out));
  }
}

// An expert's matrix in a tensor of all experts.
TensorSpec LayerLoader::expert_slice(const std::string& pattern,
                                     int64_t expert,
                                     int64_t rows,
                                     int64_t cols,
                                     const ShardRule& shard) const {
  const int32_t experts = whole_.ffn.num_experts;
  TensorSpec slice = slice_of(name(pattern), experts * rows, expert * rows, rows, cols, shard);
  if (spec_.mxfp4_experts) {
    slice.format = &mxfp4_pair_format(loader_.device());
  } else if (spec_.transposed_experts) {
    slice.transposed = true;
    slice.slice = {experts * cols, rows, expert * cols, 0};
  }
  return slice;
}

// The first rank's part of the sums has the biases of down.
void LayerLoader::add_expert_biases(ExpertTensors& tensors) const {
  const DecoderWeightNames& names = spec_.names;
  const int32_t experts = whole_.ffn.num_experts;
  const int64_t inner = whole_.ffn.intermediate_size;
  const auto row_of = [&](const std::string& pattern, int64_t expert, int64_t size) {
    TensorSpec row{name(pattern), 1, size};
    row.slice = {experts, size, expert, 0};
    return row;
  };
  ShardRule in = shards_.ffn_in;
  in.axis = ShardRule::Axis::kCols;
  for (int32_t e = 0; e < experts; ++e) {
    if (!names.experts_gate_up_bias.empty()) {
      TensorSpec both = row_of(names.experts_gate_up_bias, e, 2 * inner);
      both.order = RowOrder::kRopePairs;
      both.head_dim = 2 * mine_.ffn.intermediate_size;
      both.shard = in;
      tensors.gate_up_bias.push_back(both);
    } else {
      for (const std::string* pattern : {&names.experts_gate_bias, &names.experts_up_bias}) {
        tensors.gate_up_bias.push_back(row_of(*pattern, e, inner));
        tensors.gate_up_bias.back().shard = in;
      }
    }
    if (ranks_.place.rank == 0) {
      tensors.down_bias.push_back(row_of(names.experts_down_bias, e, spec_.hidden_size));
    }
  }
}

}  // namespace warprow
