// SPDX-License-Identifier: Apache-2.0
#include "models/eagle_head.h"

#include "base/check.h"
#include "kernels/activation/sigmoid_mul.h"
#include "kernels/cast/cast_rows.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gather/gather_rows.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/rope_table.h"
#include "layers/buffer_part.h"
#include "models/layer_parts.h"
#include "models/tensor_split.h"
#include "models/weight_names.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace warprow {
namespace {

// Integers travel as the bits of floats.
const int32_t* load_ids(ParameterLoader& loader, const std::vector<int32_t>& ids) {
  if (ids.empty()) {
    return nullptr;
  }
  std::vector<float> bits;
  bits.reserve(ids.size());
  for (const int32_t id : ids) {
    bits.push_back(std::bit_cast<float>(id));
  }
  return reinterpret_cast<const int32_t*>(loader.constants(std::move(bits)).data);
}

// The head's ids by the model's; empty if two of the head's are the same.
std::vector<int32_t> inverse_of(const std::vector<int32_t>& ids, int32_t vocab_size) {
  std::vector<int32_t> own(ids.empty() ? 0 : static_cast<size_t>(vocab_size), -1);
  for (size_t i = 0; i < ids.size(); ++i) {
    int32_t& of_token = own[static_cast<size_t>(ids[i])];
    if (of_token >= 0) {
      return {};
    }
    of_token = static_cast<int32_t>(i);
  }
  return own;
}

// The first layer's q, k and v of EAGLE-3 read the embedding, too.
std::vector<LinearPart> widened(std::vector<LinearPart> parts) {
  for (LinearPart& part : parts) {
    part.weight.cols *= 2;
  }
  return parts;
}

}  // namespace

EagleHead::EagleHead(const EagleSpec& spec,
                     const std::vector<int32_t>& ids,
                     const KvPlan& kv,
                     const DecoderOptions& options,
                     Model& target,
                     ParameterLoader& loader,
                     Arena& workspace)
    : spec_(spec),
      options_(options),
      device_(loader.device()),
      target_(target),
      layer_(rank_layer(spec.decoder.layers.front(), options.tensor.place)),
      embed_part_(vocab_part(spec.decoder.vocab_size, options.tensor.place)),
      vocab_(spec.head.empty() ? target.facts().vocab
                               : vocab_part(spec.draft_vocab_size, options.tensor.place)) {
  const int64_t hidden = spec.decoder.hidden_size;
  if (!spec.embed.empty()) {
    embedding_ = load_vocab(loader, spec.decoder.vocab_size, embed_part_, spec.embed, hidden);
  }
  const bool eagle3 = spec.kind == HeadKind::kEagle3;
  const bool mtp = spec.kind == HeadKind::kMtp;
  const int64_t fc_inputs = eagle3 ? spec.states_size() : 2 * hidden;
  fc_ = Linear(loader, {linear_part(spec.fc, hidden, fc_inputs, {}, spec.fc_bias)}, options.linear);
  const auto norm = [&](const std::string& name) {
    return load_norm(loader, spec.decoder, name, hidden);
  };
  if (!spec.states_norm.empty()) {
    states_norm_ = load_norm(loader, spec.decoder, spec.states_norm, spec.states_size());
  }
  if (mtp) {
    embed_norm_ = norm(spec.embed_norm);
  }
  if (eagle3 || mtp) {
    hidden_norm_ = norm(layer_name(spec.hidden_norm, 0));
  }
  const LayerRange layers{0, spec.decoder.num_layers};
  kv_scales_ = RankKvScales(loader, spec.decoder, layers, options.tensor.place, options.kv_scales);
  for (int32_t i = 0; i < spec.decoder.num_layers; ++i) {
    kv_scales_.give_to(layers_.emplace_back(load_layer(loader, i, kv)).attention);
  }
  if (eagle3 || mtp) {
    final_norm_ = norm(spec.decoder.names.final_norm);
  }
  if (!spec.head.empty()) {
    head_ = Linear(
        load_vocab(loader, spec.draft_vocab_size, vocab_, spec.head, hidden, VocabUse::kMultiplied),
        options.linear);
  }
  ids_ = load_ids(loader, ids);
  own_ids_ = load_ids(loader, inverse_of(ids, spec.decoder.vocab_size));
  inv_freq_ = loader.constants(rope_inv_freq(spec.decoder.ropes.front()));
  allocate_buffers(loader.device(), workspace);
  for (Layer& layer : layers_) {
    if (const auto behind = layer.ffn.first_shape()) {
      layer.attention_join.lead_to(device_, layer.ffn_norm, *behind, buffers_.linear);
    }
  }
}

EagleHead::Layer EagleHead::load_layer(ParameterLoader& loader,
                                       int32_t index,
                                       const KvPlan& kv) const {
  const LayerLoader in(loader, spec_.decoder, index, options_.tensor, options_.linear);
  const DecoderWeightNames& names = spec_.decoder.names;
  const int64_t hidden = spec_.decoder.hidden_size;
  const std::vector<LinearPart> qkv = qkv_parts(spec_.decoder, index, in.shards());
  const bool eagle3 = spec_.kind == HeadKind::kEagle3;
  const bool has_norm = spec_.kind != HeadKind::kEagle || index > 0;
  const AttentionSpec& attention = in.whole().attention;
  return {.input_norm = has_norm ? in.norm(names.input_norm, hidden) : View<const float, 1>(),
          .qkv = attention.output_gate
                     ? in.stacked(gated_qkv_parts(spec_.decoder,
                                                  index,
                                                  in.shards(),
                                                  query_heads(attention, options_.tensor.place)))
                     : in.linear(eagle3 && index == 0 ? widened(qkv) : qkv),
          .attention = Decoder::load_attention(in, kv.layers[static_cast<size_t>(index)]),
          .attention_join =
              in.join(names.o, attention.out_size(), in.shards().o, spec_.decoder.o_bias, ""),
          .ffn_norm = in.norm(names.ffn_norm, hidden),
          .ffn = FeedForward(in, options_.act_dtype)};
}

void EagleHead::allocate_buffers(const DeviceFacts& device, Arena& workspace) {
  const int64_t toks = options_.max_num_toks;
  const int64_t hidden = spec_.decoder.hidden_size;
  const AttentionSpec& attention = layer_.attention;
  int64_t inner = 0;
  const auto activations = [&](int64_t width) {
    const size_t bytes = static_cast<size_t>(toks * width) * dtype_bytes(options_.act_dtype);
    return ActView(options_.act_dtype, workspace.alloc_bytes(bytes), toks, width);
  };
  buffers_.residual = workspace.alloc<float>(toks * hidden);
  buffers_.embedded = workspace.alloc<float>(toks * hidden);
  buffers_.joined = activations(2 * hidden);
  if (!states_norm_.empty()) {
    buffers_.states = activations(spec_.states_size());
  }
  buffers_.qkv = activations(attention.qkv_size() + attention.gate_size());
  buffers_.attention = activations(attention.out_size());
  buffers_.cos = workspace.alloc<float>(toks * inv_freq_.shape[0]);
  buffers_.sin = workspace.alloc<float>(toks * inv_freq_.shape[0]);
  bool plain = true;
  std::vector<const FeedForward*> ffns;
  ffns.reserve(layers_.size());
  for (const Layer& layer : layers_) {
    ffns.push_back(&layer.ffn);
    plain = plain && layer.attention_join.is_plain() && layer.ffn.is_plain();
    inner = std::max<int64_t>(inner, layer.ffn.intermediate_size());
  }
  buffers_.ffn = make_feed_forward_workspace(workspace, device, options_.act_dtype, toks, ffns);
  buffers_.linear.normed = activations(hidden);
  buffers_.linear.squares = workspace.alloc<float>(half_norm_squares(toks, hidden));
  buffers_.linear.product = activations(std::max(2 * inner, hidden));
  if (!plain) {
    buffers_.linear.joined = make_view(workspace.alloc<float>(toks * hidden), toks, hidden);
  }
  const int64_t widest =
      std::max({2 * hidden, int64_t{attention.out_size()}, inner, spec_.states_size()});
  buffers_.linear.scratch = workspace.alloc_bytes(linear_scratch_bytes(device, toks, widest));
}

std::vector<AttentionSpec> EagleHead::mixers() const {
  return {spec_.decoder.layers.size(), layer_.attention};
}

void EagleHead::prepare_kernels() const {
  std::vector<LinearShape> shapes;
  shapes.push_back(fc_.shape(DType::kF32, LinearEpilogue::kStore));
  for (const Layer& layer : layers_) {
    shapes.push_back(layer.qkv.shape(options_.act_dtype, LinearEpilogue::kStore));
    shapes.push_back(layer.attention_join.shape());
    std::ranges::copy(layer.ffn.shapes(), std::back_inserter(shapes));
  }
  if (!spec_.head.empty() && vocab_.count > 0) {
    shapes.push_back(head_.shape(DType::kF32, LinearEpilogue::kStore));
  }
  prepare_linear(device_, shapes, options_.max_num_toks, true);
}

View<float, 2> EagleHead::embed(Stream& stream, View<const int32_t, 1> ids) {
  const View<float, 2> out =
      make_view(buffers_.embedded, ids.shape[0], int64_t{spec_.decoder.hidden_size});
  if (spec_.embed.empty()) {
    target_.embed(stream, ids, out);
  } else {
    EmbeddingArgs args{ids, embedding_, out};
    args.first_id = embed_part_.first;
    embedding(stream, args);
    if (!options_.tensor.alone()) {
      options_.tensor.comm->all_reduce(stream, out);
    }
  }
  return out;
}

LinearInput EagleHead::enter_eagle3(Stream& stream,
                                    const EagleInput& in,
                                    const View<float, 2>& residual) {
  const int64_t toks = residual.shape[0];
  const int64_t hidden = residual.shape[1];
  const float eps = spec_.decoder.rms_eps;
  if (in.own_states.empty()) {
    ConstActView states = in.model_states;
    if (!states_norm_.empty()) {
      const ActView normed = part_of(buffers_.states, toks, spec_.states_size());
      rms_norm(stream, {states, states_norm_, normed, eps});
      states = normed;
    }
    fc_.forward(stream, {states}, residual, LinearEpilogue::kStore, buffers_.linear);
  } else {
    gather_rows(stream, {in.own_states, {}, residual});
  }
  const View<float, 2> embedded = embed(stream, in.ids);
  const ActView joined = part_of(buffers_.joined, toks, 2 * hidden);
  rms_norm(stream, {embedded, layers_.front().input_norm, joined.columns(0, hidden), eps});
  if (spec_.norm_before_residual) {
    rms_norm(stream, {residual, hidden_norm_, residual, eps});
    cast_rows(stream, {residual, joined.columns(hidden, hidden)});
  } else {
    rms_norm(stream, {residual, hidden_norm_, joined.columns(hidden, hidden), eps});
  }
  return {joined};
}

LinearInput EagleHead::enter_mtp(Stream& stream,
                                 const EagleInput& in,
                                 const View<float, 2>& residual) {
  const int64_t toks = residual.shape[0];
  const int64_t hidden = residual.shape[1];
  const float eps = spec_.decoder.rms_eps;
  const View<float, 2> embedded = embed(stream, in.ids);
  const ActView joined = part_of(buffers_.joined, toks, 2 * hidden);
  const ActView states = joined.columns(hidden, hidden);
  rms_norm(stream, {embedded, embed_norm_, joined.columns(0, hidden), eps});
  if (in.own_states.empty()) {
    rms_norm(stream, {in.model_states, hidden_norm_, states, eps});
  } else if (spec_.normed_states) {
    rms_norm(stream, {in.own_states, final_norm_, residual, eps});
    rms_norm(stream, {residual, hidden_norm_, states, eps});
  } else {
    rms_norm(stream, {in.own_states, hidden_norm_, states, eps});
  }
  fc_.forward(stream, {joined}, residual, LinearEpilogue::kStore, buffers_.linear);
  return {residual, layers_.front().input_norm, eps};
}

LinearInput EagleHead::enter(Stream& stream, const EagleInput& in, const View<float, 2>& residual) {
  if (spec_.kind == HeadKind::kEagle3) {
    return enter_eagle3(stream, in, residual);
  }
  if (spec_.kind == HeadKind::kMtp) {
    return enter_mtp(stream, in, residual);
  }
  const int64_t toks = residual.shape[0];
  const int64_t hidden = residual.shape[1];
  const View<float, 2> embedded = embed(stream, in.ids);
  const ActView joined = part_of(buffers_.joined, toks, 2 * hidden);
  const ActView states = joined.columns(hidden, hidden);
  cast_rows(stream, {embedded, joined.columns(0, hidden)});
  if (in.own_states.empty()) {
    gather_rows(stream, {in.model_states, {}, states});
  } else {
    cast_rows(stream, {in.own_states.f32(), states});
  }
  fc_.forward(stream, {joined}, residual, LinearEpilogue::kStore, buffers_.linear);
  return input_behind(stream, {}, residual, buffers_.linear);
}

View<float, 2> EagleHead::forward(Stream& stream, const EagleInput& in) {
  const int64_t toks = in.ids.shape[0];
  WR_CHECK(in.own_states.empty() != in.model_states.empty(), "states of one kind");
  const float eps = spec_.decoder.rms_eps;
  const View<float, 2> residual = make_view(buffers_.residual, toks, spec_.decoder.hidden_size);
  const View<float, 2> cos = make_view(buffers_.cos, toks, inv_freq_.shape[0]);
  const View<float, 2> sin = make_view(buffers_.sin, toks, inv_freq_.shape[0]);
  const float factor = spec_.decoder.ropes.front().attention_factor;
  rope_table(stream, {in.positions, inv_freq_, cos, sin, factor});
  LinearInput x = enter(stream, in, residual);
  for (const Layer& layer : layers_) {
    if (&layer != &layers_.front()) {
      x = {residual, layer.input_norm, eps};
    }
    const AttentionSpec& spec = layer_.attention;
    const ActView qkv = part_of(buffers_.qkv, toks, layer.qkv.num_outputs());
    const ActView attended = part_of(buffers_.attention, toks, buffers_.attention.shape[1]);
    layer.qkv.forward(stream, x, qkv, LinearEpilogue::kStore, buffers_.linear);
    layer.attention.forward(stream, qkv.columns(0, spec.qkv_size()), cos, sin, attended);
    if (spec.gate_size() > 0) {
      sigmoid_mul(stream, {qkv.columns(spec.qkv_size(), spec.gate_size()), attended});
    }
    layer.attention_join.forward(stream, attended, residual, buffers_.linear);
    const HalfNorm* begun = layer.attention_join.next_norm(toks);
    layer.ffn.forward(
        stream, {layer.ffn_norm, eps, begun, in.num_toks}, residual, buffers_.linear, buffers_.ffn);
  }
  return residual;
}

void EagleHead::compute_logits(Stream& stream, View<const float, 2> states, View<float, 2> logits) {
  const float eps = spec_.decoder.rms_eps;
  WR_CHECK_EQ(logits.shape[1], vocab_.width);
  if (!spec_.head.empty()) {
    logits.shape[1] = vocab_.count;
    if (vocab_.count > 0) {
      head_.forward(
          stream, {states, final_norm_, eps}, logits, LinearEpilogue::kStore, buffers_.linear);
    }
    return;
  }
  const ActView rows = part_of(buffers_.joined, states.shape[0], states.shape[1]);
  if (!final_norm_.empty()) {
    rms_norm(stream, {states, final_norm_, rows, eps});
  } else {
    cast_rows(stream, {states, rows});
  }
  target_.compute_logits(stream, rows, logits);
}

}  // namespace warprow
