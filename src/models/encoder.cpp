// SPDX-License-Identifier: Apache-2.0
#include "models/encoder.h"

#include "base/check.h"
#include "kernels/activation/act_and_mul.h"
#include "kernels/activation/gelu.h"
#include "kernels/cast/cast_rows.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/place_embedding.h"
#include "kernels/heads/resize_heads.h"
#include "kernels/norm/layer_norm.h"
#include "kernels/rope/rope_table.h"
#include "layers/buffer_part.h"
#include "models/layer_parts.h"
#include "models/tensor_split.h"
#include "models/weight_names.h"

#include <algorithm>
#include <string>
#include <utility>

namespace warprow {
namespace {

StageFacts encoder_facts_of(const DecoderSpec& spec, const DecoderOptions& options) {
  value_or_throw(check_decoder_spec(spec));
  StageFacts facts;
  facts.hidden_size = spec.hidden_size;
  facts.vocab_size = spec.vocab_size;
  facts.vocab = vocab_part(spec.vocab_size, options.tensor.place);
  facts.act_dtype = options.act_dtype;
  facts.layers = {0, spec.num_layers};
  for (const LayerSpec& layer : spec.layers) {
    facts.mixers.push_back(layer.attention);
  }
  return facts;
}

// A table of embeddings, as float32 on the device.
View<const float, 2> load_table(ParameterLoader& loader,
                                const std::string& name,
                                int64_t rows,
                                int64_t width) {
  if (rows == 0) {
    return {};
  }
  std::vector<float> values;
  for (int64_t row = 0; row < rows; ++row) {
    TensorSpec one{name, 1, width};
    one.slice = {rows, width, row, 0};
    const std::vector<float> read = loader.read_vector(one);
    values.insert(values.end(), read.begin(), read.end());
  }
  return make_view(loader.constants(std::move(values)).data, rows, width);
}

// The bias that goes with a norm's weights, by its name in newer or older checkpoints.
std::string norm_bias_name(const std::string& weight) {
  const size_t dot = weight.rfind('.') + 1;
  return weight.substr(0, dot) + (weight.substr(dot) == "gamma" ? "beta" : "bias");
}

}  // namespace

Encoder::Encoder(const DecoderSpec& spec,
                 const KvPlan& kv,
                 const DecoderOptions& options,
                 ParameterLoader& loader,
                 Arena& workspace)
    : Model(encoder_facts_of(spec, options)),
      spec_(spec),
      options_(options),
      device_(loader.device()) {
  const EncoderSpec& encoder = *spec.encoder;
  embedding_ =
      load_vocab(loader, spec.vocab_size, facts().vocab, spec.names.embed, spec.hidden_size);
  positions_ = load_table(loader, encoder.positions, encoder.num_positions, spec.hidden_size);
  segments_ = load_table(loader, encoder.segments, encoder.num_segments, spec.hidden_size);
  embed_norm_ = load_norm(loader, encoder.embed_norm);
  for (int32_t i = 0; i < spec.num_layers; ++i) {
    layers_.push_back(load_layer(loader, i, kv));
  }
  if (!encoder.norms_behind) {
    final_norm_ = load_norm(loader, spec.names.final_norm);
  }
  for (const RopeSpec& rope : spec.ropes) {
    ropes_.push_back({loader.constants(rope_inv_freq(rope))});
  }
  allocate_buffers(workspace);
}

Encoder::Norm Encoder::load_norm(ParameterLoader& loader, const std::string& name) const {
  std::string weight = name;
  if (!loader.provides(weight)) {
    weight = name.substr(0, name.rfind('.') + 1) + "gamma";
  }
  Norm out;
  out.weight = loader.vector({loader.provides(weight) ? weight : name, 1, spec_.hidden_size});
  if (spec_.encoder->norm_biases) {
    out.bias = loader.vector({norm_bias_name(weight), 1, spec_.hidden_size});
  }
  return out;
}

Encoder::Layer Encoder::load_layer(ParameterLoader& loader, int32_t index, const KvPlan& kv) const {
  const LayerLoader in(loader, spec_, index, options_.tensor, options_.linear);
  const DecoderWeightNames& names = spec_.names;
  const AttentionSpec& spec = in.whole().attention;
  const FfnSpec& ffn = in.whole().ffn;
  Layer out;
  if (index > 0 || spec_.encoder->norms_behind || spec_.encoder->first_norm) {
    out.attention_norm = load_norm(loader, in.name(names.input_norm));
  }
  out.qkv = in.linear(qkv_parts(spec_, index, in.shards()));
  out.attention.layer = index;
  out.attention.group = kv.layers[static_cast<size_t>(index)].group;
  out.attention.num_heads = spec.num_heads;
  out.attention.num_kv_heads = spec.num_kv_heads;
  out.attention.head_dim =
      kv.groups[static_cast<size_t>(out.attention.group)].head_dim_k;  // or more than spec.head_dim
  out.attention.params.scale = spec.scale;
  out.attention.params.window = spec.window;
  out.attention.params.causal = false;
  out.rope = spec.rope;
  if (spec.rope != kNoRope) {
    const RopeSpec& rope = spec_.ropes[static_cast<size_t>(spec.rope)];
    out.attention.rot_dim = rope.rot_dim;
    out.attention.interleaved = rope.interleaved;
  }
  out.attention_out =
      in.linear({in.part(names.o, spec_.hidden_size, spec.out_size(), {}, spec_.o_bias)});
  out.ffn_norm = load_norm(loader, in.name(names.ffn_norm));
  out.ffn = ffn;
  out.ffn_in = in.linear(
      ffn.gated ? gate_up_parts(spec_, index, in.shards())
                : std::vector<LinearPart>{in.part(
                      names.up, ffn.intermediate_size, spec_.hidden_size, {}, spec_.mlp_bias)});
  out.ffn_out = in.linear(
      {in.part(names.down, spec_.hidden_size, ffn.intermediate_size, {}, spec_.mlp_bias)});
  return out;
}

void Encoder::allocate_buffers(Arena& workspace) {
  const int64_t toks = options_.max_num_toks;
  const int64_t hidden_size = spec_.hidden_size;
  int64_t qkv = 0;
  int64_t attention = 0;
  int64_t intermediate = 0;
  bool gated = false;
  for (const LayerSpec& layer : spec_.layers) {
    qkv = std::max<int64_t>(qkv, layer.attention.qkv_size());
    attention = std::max<int64_t>(attention, layer.attention.out_size());
    intermediate = std::max<int64_t>(intermediate, layer.ffn.intermediate_size);
    gated = gated || layer.ffn.gated;
  }
  const auto activations = [&](int64_t width) {
    const size_t bytes = static_cast<size_t>(toks * width) * dtype_bytes(options_.act_dtype);
    return ActView(options_.act_dtype, workspace.alloc_bytes(bytes), toks, width);
  };
  if (widens()) {
    const AttentionLayer& first = layers_.front().attention;
    const int64_t wide = int64_t{first.num_heads} * first.head_dim;
    buffers_.wide_qkv = activations(3 * wide);
    buffers_.wide_attention = activations(wide);
  }
  const int64_t inner = gated ? 2 * intermediate : intermediate;
  buffers_.residual = workspace.alloc<float>(toks * hidden_size);
  buffers_.hidden = activations(hidden_size);
  buffers_.qkv = activations(qkv);
  buffers_.attention = activations(attention);
  buffers_.inner = activations(inner);
  if (gated) {
    buffers_.activated = activations(intermediate);
  }
  buffers_.linear.product = activations(std::max(inner, hidden_size));
  for (Rope& rope : ropes_) {
    rope.cos = workspace.alloc<float>(toks * rope.inv_freq.shape[0]);
    rope.sin = workspace.alloc<float>(toks * rope.inv_freq.shape[0]);
  }
  const int64_t widest = std::max({hidden_size, attention, intermediate});
  buffers_.linear.scratch = workspace.alloc_bytes(linear_scratch_bytes(device_, toks, widest));
}

void Encoder::prepare_kernels() const {
  std::vector<LinearShape> shapes;  // distinct
  const auto add = [&shapes](const LinearShape& shape) {
    if (std::ranges::find(shapes, shape) == shapes.end()) {
      shapes.push_back(shape);
    }
  };
  const bool behind = spec_.encoder->norms_behind;
  const DType joined = behind ? options_.act_dtype : DType::kF32;
  const LinearEpilogue join = behind ? LinearEpilogue::kStore : LinearEpilogue::kAdd;
  for (const Layer& layer : layers_) {
    add(layer.qkv.shape(options_.act_dtype, LinearEpilogue::kStore));
    add(layer.attention_out.shape(joined, join));
    add(layer.ffn_in.shape(options_.act_dtype, in_epilogue(layer)));
    add(layer.ffn_out.shape(joined, join));
  }
  prepare_linear(device_, shapes, options_.max_num_toks, true);
}

View<float, 2> Encoder::residual_room(int64_t num_toks) const {
  return make_view(buffers_.residual, num_toks, spec_.hidden_size);
}

ActView Encoder::hidden(int64_t toks) const {
  return part_of(buffers_.hidden, toks, spec_.hidden_size);
}

LinearEpilogue Encoder::in_epilogue(const Layer& layer) const {
  return layer.ffn.gated && layer.ffn.activation == Activation::kSilu ? LinearEpilogue::kSwiGlu
                                                                      : LinearEpilogue::kStore;
}

void Encoder::norm(Stream& stream,
                   const Norm& norm,
                   const ConstActView& x,
                   const ConstActView& add,
                   const ActView& out) const {
  layer_norm(stream, {x, add, norm.weight, norm.bias, out, spec_.rms_eps});
}

void Encoder::embed_input(Stream& stream, const ModelInput& in) const {
  const int64_t toks = in.positions.shape[1];
  const View<float, 2> residual = residual_room(toks);
  EmbeddingArgs ids{in.input_ids, embedding_, residual};
  ids.id_mask = kIdBits;
  embedding(stream, ids);
  if (!positions_.empty() || !segments_.empty()) {
    place_embedding(stream,
                    {in.input_ids,
                     make_view(in.positions.data, toks),
                     positions_,
                     segments_,
                     residual,
                     spec_.encoder->first_position});
  }
  if (spec_.encoder->norms_behind) {
    norm(stream, embed_norm_, residual, {}, hidden(toks));
  } else {
    norm(stream, embed_norm_, residual, {}, residual);
  }
}

void Encoder::join(Stream& stream,
                   const Linear& linear,
                   const Norm& behind,
                   const ActView& x) const {
  const int64_t toks = x.shape[0];
  if (!spec_.encoder->norms_behind) {
    linear.forward(stream, {x}, residual_room(toks), LinearEpilogue::kAdd, buffers_.linear);
    return;
  }
  const ActView product = part_of(buffers_.linear.product, toks, spec_.hidden_size);
  linear.forward(stream, {x}, product, LinearEpilogue::kStore, buffers_.linear);
  norm(stream, behind, hidden(toks), product, hidden(toks));
}

void Encoder::mix(Stream& stream,
                  const Layer& layer,
                  const ActView& qkv,
                  const ActView& out) const {
  const AttentionLayer& attention = layer.attention;
  const int64_t toks = qkv.shape[0];
  View<const float, 2> cos;
  View<const float, 2> sin;
  if (layer.rope != kNoRope) {
    const Rope& rope = ropes_[static_cast<size_t>(layer.rope)];
    cos = make_view<const float>(rope.cos, toks, rope.inv_freq.shape[0]);
    sin = make_view<const float>(rope.sin, toks, rope.inv_freq.shape[0]);
  }
  if (!widens()) {
    attention.forward(stream, qkv, cos, sin, out);
    return;
  }
  const int64_t width = int64_t{attention.num_heads} * attention.head_dim;
  const ActView wide_qkv = part_of(buffers_.wide_qkv, toks, 3 * width);
  const ActView wide_out = part_of(buffers_.wide_attention, toks, width);
  resize_heads(stream, {qkv, wide_qkv, 3 * attention.num_heads});
  attention.forward(stream, wide_qkv, cos, sin, wide_out);
  resize_heads(stream, {wide_out, out, attention.num_heads});
}

void Encoder::attend(Stream& stream, const Layer& layer, int64_t toks) const {
  const ActView qkv = part_of(buffers_.qkv, toks, layer.qkv.num_outputs());
  const ActView attended = part_of(buffers_.attention, toks, layer.qkv.num_outputs() / 3);
  if (!spec_.encoder->norms_behind) {
    if (layer.attention_norm.weight.empty()) {
      cast_rows(stream, {residual_room(toks), hidden(toks)});
    } else {
      norm(stream, layer.attention_norm, residual_room(toks), {}, hidden(toks));
    }
  }
  layer.qkv.forward(stream, {hidden(toks)}, qkv, LinearEpilogue::kStore, buffers_.linear);
  mix(stream, layer, qkv, attended);
  join(stream, layer.attention_out, layer.attention_norm, attended);
}

void Encoder::feed_forward(Stream& stream, const Layer& layer, int64_t toks) const {
  const int64_t width = layer.ffn.intermediate_size;
  if (!spec_.encoder->norms_behind) {
    norm(stream, layer.ffn_norm, residual_room(toks), {}, hidden(toks));
  }
  const LinearEpilogue epilogue = in_epilogue(layer);
  const bool exact = layer.ffn.activation == Activation::kGelu;
  ActView activated = part_of(buffers_.activated, toks, width);
  if (epilogue != LinearEpilogue::kStore) {
    layer.ffn_in.forward(stream, {hidden(toks)}, activated, epilogue, buffers_.linear);
  } else {
    const ActView inner = part_of(buffers_.inner, toks, layer.ffn_in.num_outputs());
    layer.ffn_in.forward(stream, {hidden(toks)}, inner, epilogue, buffers_.linear);
    if (layer.ffn.gated) {
      gelu_and_mul(stream, {inner, activated, exact});
    } else {
      gelu(stream, {inner, exact});
      activated = inner;
    }
  }
  join(stream, layer.ffn_out, layer.ffn_norm, activated);
}

ModelOutput Encoder::forward(Stream& stream, const ModelInput& in) {
  WR_CHECK(in.positions.shape[0] == 1, "{} rows of positions, 1 wanted", in.positions.shape[0]);
  WR_CHECK(in.embeddings.empty() && in.residual.empty(), "an encoder takes ids");
  const int64_t toks = in.positions.shape[1];
  for (const Rope& rope : ropes_) {
    const int64_t pairs = rope.inv_freq.shape[0];
    rope_table(stream,
               {make_view(in.positions.data, toks),
                rope.inv_freq,
                make_view(rope.cos, toks, pairs),
                make_view(rope.sin, toks, pairs),
                1.0F});
  }
  embed_input(stream, in);
  for (const Layer& layer : layers_) {
    attend(stream, layer, toks);
    feed_forward(stream, layer, toks);
  }
  if (!spec_.encoder->norms_behind) {
    norm(stream, final_norm_, residual_room(toks), {}, hidden(toks));
  }
  ModelOutput out;
  out.residual = residual_room(toks);
  out.hidden = hidden(toks);
  return out;
}

void Encoder::compute_logits(Stream& stream, ConstActView /*hidden*/, View<float, 2> logits) {
  WR_CHECK_EQ(logits.stride[0], logits.shape[1]);
  stream.fill(
      logits.data, 0, static_cast<size_t>(logits.shape[0] * logits.shape[1]) * sizeof(float));
}

}  // namespace warprow
