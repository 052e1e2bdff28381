// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.h"

#include "base/check.h"
#include "kernels/activation/act_and_mul.h"
#include "kernels/cast/cast_rows.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gather/gather_rows.h"
#include "kernels/linear/linear.h"
#include "kernels/logits/cap_logits.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/rope_table.h"
#include "models/layer_parts.h"
#include "models/tensor_split.h"
#include "models/weight_names.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace warprow {
namespace {

// A rope's frequencies, divided by the checkpoint's own factors if a GGUF file has them.
std::vector<float> inv_freq_of(const RopeSpec& rope,
                               const std::string& factors_name,
                               const ParameterLoader& loader) {
  std::vector<float> inv_freq = rope_inv_freq(rope);
  if (!factors_name.empty() && loader.has(factors_name)) {
    const std::vector<float> factors =
        loader.read_vector({factors_name, 1, static_cast<int64_t>(inv_freq.size())});
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      inv_freq[i] /= factors[i];
    }
  }
  return inv_freq;
}

StageFacts facts_of(const DecoderSpec& spec, const DecoderOptions& options, DeviceKind device) {
  value_or_throw(check_decoder_spec(spec));
  value_or_throw(check_tensor_split(spec, options.tensor.place.size, device));
  StageFacts facts;
  facts.hidden_size = spec.hidden_size;
  facts.vocab_size = spec.vocab_size;
  facts.vocab = vocab_part(spec.vocab_size, options.tensor.place);
  facts.act_dtype = options.act_dtype;
  facts.layers = options.layers;
  if (facts.layers.last == 0) {
    facts.layers = {0, spec.num_layers};
  }
  const LayerRange mine = facts.layers;
  if (mine.first < 0 || mine.first >= mine.last || mine.last > spec.num_layers) {
    throw StartupError(
        ErrorCode::kInvalidArgument,
        fmt::format("layers {} to {} of {}", mine.first, mine.last, spec.num_layers));
  }
  facts.first_stage = mine.first == 0;
  facts.last_stage = mine.last == spec.num_layers;
  for (const LayerSpec& layer : spec.layers) {
    facts.mixers.push_back(rank_layer(layer, options.tensor.place).attention);
  }
  facts.aux_layers = options.aux_layers;
  for (const int32_t layer : facts.aux_layers) {
    if (layer < mine.first || layer >= mine.last) {
      throw StartupError(ErrorCode::kInvalidArgument,
                         fmt::format("hidden states of layer {}, which is not among {} to {}",
                                     layer,
                                     mine.first,
                                     mine.last - 1));
    }
  }
  return facts;
}

// The first rows of a buffer, with the width that a layer needs.
ActView part_of(const ActView& buffer, int64_t rows, int64_t width) {
  return {buffer.dtype, buffer.data, rows, width};
}

}  // namespace

Decoder::Decoder(const DecoderSpec& spec,
                 const KvPlan& kv,
                 const DecoderOptions& options,
                 ParameterLoader& loader,
                 Arena& workspace)
    : Model(facts_of(spec, options, loader.device_kind())),
      spec_(spec),
      options_(options),
      device_(loader.device()) {
  const bool first = facts().first_stage;
  const bool last = facts().last_stage;
  if (first || (last && spec.tied_head)) {
    embedding_ = load_vocab(loader, spec.names.embed);
  }
  for (int32_t i = facts().layers.first; i < facts().layers.last; ++i) {
    layers_.push_back(load_layer(loader, i, kv.layers[static_cast<size_t>(i)]));
  }
  if (last) {
    final_norm_ = load_norm(loader, spec.names.final_norm, spec.hidden_size);
  }
  for (const RopeSpec& rope : spec.ropes) {
    ropes_.push_back({loader.constants(inv_freq_of(rope, spec.names.rope_factors, loader)),
                      rope.attention_factor});
  }
  if (last) {
    head_ =
        Linear(spec.tied_head ? embedding_ : load_vocab(loader, spec.names.head), options.linear);
  }
  allocate_buffers(workspace);
  lead_joins();
}

PackedWeight Decoder::load_vocab(ParameterLoader& loader, const std::string& name) const {
  const VocabPart& mine = facts().vocab;
  TensorSpec rows{name, mine.count, spec_.hidden_size};
  if (mine.count < spec_.vocab_size) {
    rows.slice = {spec_.vocab_size, spec_.hidden_size, mine.first, 0};
  }
  if (mine.count == 0) {
    PackedWeight none;
    none.kind = PackedKind::kBF16;
    none.k = spec_.hidden_size;
    return none;
  }
  return loader.matrix(rows);
}

View<const float, 1> Decoder::load_norm(ParameterLoader& loader,
                                        const std::string& name,
                                        int64_t width) const {
  if (spec_.norm_offset == 0.0F) {
    return loader.vector({name, 1, width});
  }
  std::vector<float> weights = loader.read_vector({name, 1, width});
  for (float& weight : weights) {
    weight += spec_.norm_offset;
  }
  return loader.constants(std::move(weights));
}

AttentionLayer Decoder::load_attention(ParameterLoader& loader,
                                       int32_t index,
                                       const LayerKvPlace& place) const {
  const LayerSpec& whole = spec_.layers[static_cast<size_t>(index)];
  const AttentionSpec spec = rank_layer(whole, options_.tensor.place).attention;
  const DecoderWeightNames& names = spec_.names;
  AttentionLayer layer;
  layer.layer = index;
  layer.group = place.group;
  layer.num_heads = spec.num_heads;
  layer.num_kv_heads = spec.num_kv_heads;
  layer.head_dim = spec.head_dim;
  layer.rot_dim = spec.rope == kNoRope ? 0 : spec_.ropes[static_cast<size_t>(spec.rope)].rot_dim;
  layer.interleaved =
      spec.rope != kNoRope && spec_.ropes[static_cast<size_t>(spec.rope)].interleaved;
  layer.norm_eps = spec_.rms_eps;
  layer.params.scale = spec.scale;
  layer.params.window = spec.window;
  layer.params.soft_cap = spec.soft_cap;
  if (spec.sinks) {
    TensorSpec sinks{layer_name(names.sinks, index), 1, whole.attention.num_heads};
    sinks.shard = layer_shards(whole, options_.tensor.place).sinks;
    layer.params.sinks = loader.vector(sinks).data;
  }
  if (spec.qk_norm) {
    layer.q_norm = load_norm(loader, layer_name(names.q_norm, index), spec.head_dim);
    layer.k_norm = load_norm(loader, layer_name(names.k_norm, index), spec.head_dim);
  }
  if (spec.wide_qk_norm) {
    layer.wide_q_norm = load_norm(loader, layer_name(names.q_norm, index), spec.q_size());
    layer.wide_k_norm = load_norm(loader, layer_name(names.k_norm, index), spec.k_size());
  }
  return layer;
}

Decoder::Layer Decoder::load_layer(ParameterLoader& loader,
                                   int32_t index,
                                   const LayerKvPlace& place) const {
  const auto name = [index](const std::string& pattern) { return layer_name(pattern, index); };
  const DecoderWeightNames& names = spec_.names;
  const RankGroup& ranks = options_.tensor;
  const LayerSpec& spec = spec_.layers[static_cast<size_t>(index)];  // of all ranks together
  const LayerSpec mine = rank_layer(spec, ranks.place);
  const LayerShards shards = layer_shards(spec, ranks.place);
  const AttentionSpec& attention = spec.attention;
  const int64_t hidden = spec_.hidden_size;
  const int64_t inner = spec.ffn.intermediate_size;
  const auto join = [&](const std::string& weight,
                        int64_t inputs,
                        const ShardRule& shard,
                        bool bias,
                        const auto& norm) {
    // The first rank's part of the sum has the bias.
    const bool mine_has_bias = bias && ranks.place.rank == 0;
    const Linear linear(
        loader, {linear_part(name(weight), hidden, inputs, shard, mine_has_bias)}, options_.linear);
    JoinMode mode;
    mode.ranks = ranks;
    mode.scale = spec.residual_scale;
    mode.norm_eps = spec_.rms_eps;
    if (spec.post_norms) {
      mode.post_norm = load_norm(loader, name(norm), hidden);
    }
    return Join(linear, mode);
  };

  Layer layer;
  layer.qkv_size = mine.attention.qkv_size();
  layer.attention_size = mine.attention.out_size();
  layer.intermediate_size = mine.ffn.intermediate_size;
  layer.rope = attention.rope;
  layer.activation = spec.ffn.activation;
  layer.is_aux = std::ranges::count(options_.aux_layers, index) > 0;
  if (spec.pre_norms) {
    layer.input_norm = load_norm(loader, name(names.input_norm), hidden);
  }
  layer.qkv = Linear(loader, qkv_parts(spec_, index, shards), options_.linear);
  layer.attention = load_attention(loader, index, place);
  layer.attention_join =
      join(names.o, attention.out_size(), shards.o, spec_.o_bias, names.attention_post_norm);
  if (spec.pre_norms) {
    layer.ffn_norm = load_norm(loader, name(names.ffn_norm), hidden);
  }
  layer.gate_up = Linear(loader, gate_up_parts(spec_, index, shards), options_.linear);
  layer.ffn_join = join(names.down, inner, shards.ffn_out, spec_.mlp_bias, names.ffn_post_norm);
  return layer;
}

void Decoder::allocate_buffers(Arena& workspace) {
  const int64_t toks = options_.max_num_toks;
  const int64_t hidden = spec_.hidden_size;
  int64_t qkv = 0;
  int64_t attention = 0;
  int64_t intermediate = 0;
  bool plain = true;
  for (const Layer& layer : layers_) {
    qkv = std::max<int64_t>(qkv, layer.qkv_size);
    attention = std::max<int64_t>(attention, layer.attention_size);
    intermediate = std::max<int64_t>(intermediate, layer.intermediate_size);
    plain = plain && layer.attention_join.is_plain() && layer.ffn_join.is_plain();
  }
  const auto activations = [&](int64_t width) {
    const size_t bytes = static_cast<size_t>(toks * width) * dtype_bytes(options_.act_dtype);
    return ActView(options_.act_dtype, workspace.alloc_bytes(bytes), toks, width);
  };
  buffers_.residual = workspace.alloc<float>(toks * hidden);
  buffers_.hidden = activations(hidden);
  buffers_.qkv = activations(qkv);
  buffers_.attention = activations(attention);
  buffers_.activated = activations(intermediate);
  for (Rope& rope : ropes_) {
    rope.cos = workspace.alloc<float>(toks * rope.inv_freq.shape[0]);
    rope.sin = workspace.alloc<float>(toks * rope.inv_freq.shape[0]);
  }
  // The buffer of the final norm's output is free until the last layer has finished its own norms.
  buffers_.linear.normed = buffers_.hidden;
  buffers_.linear.squares = workspace.alloc<float>(half_norm_squares(toks, hidden));
  buffers_.linear.product = activations(std::max(2 * intermediate, hidden));
  if (!plain) {
    buffers_.linear.joined = make_view(workspace.alloc<float>(toks * hidden), toks, hidden);
  }
  for (size_t i = 0; i < facts().aux_layers.size(); ++i) {
    buffers_.aux.push_back(workspace.alloc<float>(toks * hidden));
  }
  aux_.resize(buffers_.aux.size());
  const int64_t widest = std::max({hidden, attention, intermediate});
  buffers_.linear.scratch = workspace.alloc_bytes(linear_scratch_bytes(device_, toks, widest));
}

LinearShape Decoder::gate_shape(const Layer& layer) const {
  return layer.gate_up.shape(
      options_.act_dtype,
      layer.activation == Activation::kSilu ? LinearEpilogue::kSwiGlu : LinearEpilogue::kStore);
}

// Sets for each join the norm and the product that follow it. The last layer's join is followed by the final norm
// or by another stage, which read the residual stream itself.
void Decoder::lead_joins() {
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    layer.attention_join.lead_to(device_, layer.ffn_norm, gate_shape(layer), buffers_.linear);
    if (i + 1 < layers_.size()) {
      const Layer& next = layers_[i + 1];
      layer.ffn_join.lead_to(device_,
                             next.input_norm,
                             next.qkv.shape(options_.act_dtype, LinearEpilogue::kStore),
                             buffers_.linear);
    }
  }
}

void Decoder::prepare_kernels() const {
  std::vector<LinearShape> shapes;  // distinct
  const auto add = [&shapes](const LinearShape& shape) {
    if (std::ranges::find(shapes, shape) == shapes.end()) {
      shapes.push_back(shape);
    }
  };
  for (const Layer& layer : layers_) {
    add(layer.qkv.shape(options_.act_dtype, LinearEpilogue::kStore));
    add(layer.attention_join.shape());
    add(gate_shape(layer));
    add(layer.ffn_join.shape());
  }
  if (facts().last_stage && facts().vocab.count > 0) {
    add(head_.shape(DType::kF32, LinearEpilogue::kStore));
  }
  prepare_linear(device_, shapes, options_.max_num_toks, true);
}

View<float, 2> Decoder::residual_room(int64_t num_toks) const {
  return make_view(buffers_.residual, num_toks, spec_.hidden_size);
}

// Fills the residual stream from the stage's input.
void Decoder::enter(Stream& stream, const ModelInput& in, const View<float, 2>& residual) {
  if (facts().first_stage) {
    WR_CHECK(!in.input_ids.empty() && in.residual.empty(), "the first stage takes ids");
    WR_CHECK_EQ(in.input_ids.shape[0], residual.shape[0]);
    const RankGroup& ranks = options_.tensor;
    EmbeddingArgs args{in.input_ids, embedding_, residual, in.embeddings, spec_.embed_scale};
    args.first_id = facts().vocab.first;
    if (ranks.place.rank > 0) {  // a row of embeddings is the first rank's part of the sum
      args.given = {};
    }
    embedding(stream, args);
    if (!ranks.alone()) {
      ranks.comm->all_reduce(stream, residual);
    }
    return;
  }
  WR_CHECK(!in.residual.empty() && in.input_ids.empty() && in.embeddings.empty(),
           "a stage behind another takes its residual stream");
  if (in.residual.data != residual.data) {
    gather_rows(stream, {in.residual, {}, residual});
  }
}

LinearInput Decoder::input_of(Stream& stream,
                              const View<float, 2>& residual,
                              const View<const float, 1>& norm,
                              const HalfNorm* begun) const {
  if (!norm.empty()) {
    return {residual, norm, spec_.rms_eps, begun};
  }
  if (options_.act_dtype == DType::kF32) {
    return {residual};
  }
  const ActView rows = part_of(buffers_.linear.normed, residual.shape[0], residual.shape[1]);
  cast_rows(stream, {residual, rows});
  return {rows};
}

void Decoder::feed_forward(Stream& stream,
                           const Layer& layer,
                           const View<float, 2>& residual,
                           const HalfNorm* begun) {
  const int64_t toks = residual.shape[0];
  const LinearWorkspace& workspace = buffers_.linear;
  const LinearInput in = input_of(stream, residual, layer.ffn_norm, begun);
  const ActView activated = part_of(buffers_.activated, toks, layer.intermediate_size);
  if (layer.activation == Activation::kSilu) {
    layer.gate_up.forward(stream, in, activated, LinearEpilogue::kSwiGlu, workspace);
  } else {
    const ActView gate_up = part_of(workspace.product, toks, 2 * int64_t{layer.intermediate_size});
    layer.gate_up.forward(stream, in, gate_up, LinearEpilogue::kStore, workspace);
    gelu_and_mul(stream, {gate_up, activated});
  }
  layer.ffn_join.forward(stream, activated, residual, workspace);
}

ModelOutput Decoder::forward(Stream& stream, const ModelInput& in) {
  WR_CHECK(in.positions.shape[0] == 1, "{} rows of positions, 1 wanted", in.positions.shape[0]);
  const int64_t toks = in.positions.shape[1];
  const float eps = spec_.rms_eps;
  const View<float, 2> residual = residual_room(toks);
  const auto table = [&](float* values, const Rope& rope) {
    return make_view(values, toks, rope.inv_freq.shape[0]);
  };
  enter(stream, in, residual);
  for (const Rope& rope : ropes_) {
    rope_table(stream,
               {make_view(in.positions.data, toks),
                rope.inv_freq,
                table(rope.cos, rope),
                table(rope.sin, rope),
                rope.attention_factor});
  }
  size_t num_aux = 0;
  const HalfNorm* begun = nullptr;  // the norm that the previous join began; null: none
  for (const Layer& layer : layers_) {
    const ActView qkv = part_of(buffers_.qkv, toks, layer.qkv_size);
    const ActView attended = part_of(buffers_.attention, toks, layer.attention_size);
    View<const float, 2> cos;
    View<const float, 2> sin;
    if (layer.rope != kNoRope) {
      const Rope& rope = ropes_[static_cast<size_t>(layer.rope)];
      cos = table(rope.cos, rope);
      sin = table(rope.sin, rope);
    }
    layer.qkv.forward(stream,
                      input_of(stream, residual, layer.input_norm, begun),
                      qkv,
                      LinearEpilogue::kStore,
                      buffers_.linear);
    layer.attention.forward(stream, qkv, cos, sin, attended);
    layer.attention_join.forward(stream, attended, residual, buffers_.linear);
    feed_forward(stream, layer, residual, layer.attention_join.next_norm(toks));
    begun = layer.ffn_join.next_norm(toks);
    if (layer.is_aux) {
      aux_[num_aux] = make_view(buffers_.aux[num_aux], toks, spec_.hidden_size);
      gather_rows(stream, {residual, {}, aux_[num_aux]});
      ++num_aux;
    }
  }
  ModelOutput out;
  out.residual = residual;
  out.aux = aux_;
  if (facts().last_stage) {
    out.hidden = part_of(buffers_.hidden, toks, spec_.hidden_size);
    rms_norm(stream, {residual, final_norm_, out.hidden, eps});
  }
  return out;
}

void Decoder::compute_logits(Stream& stream, ConstActView hidden, View<float, 2> logits) {
  WR_CHECK(facts().last_stage, "logits of a stage without a head");
  const VocabPart& mine = facts().vocab;
  WR_CHECK_EQ(logits.shape[1], mine.width);
  if (mine.count > 0) {
    logits.shape[1] = mine.count;
    head_.forward(stream, {hidden}, logits, LinearEpilogue::kStore, buffers_.linear);
    if (spec_.logits_divisor != 1.0F || spec_.logits_soft_cap > 0.0F) {
      cap_logits(stream, {logits, spec_.logits_divisor, spec_.logits_soft_cap});
    }
  }
}

}  // namespace warprow
