// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.h"

#include "base/check.h"
#include "kernels/activation/sigmoid_mul.h"
#include "kernels/cast/cast_rows.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gather/gather_rows.h"
#include "kernels/linear/linear.h"
#include "kernels/logits/cap_logits.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/rope_table.h"
#include "kernels/scale/scale_rows.h"
#include "layers/buffer_part.h"
#include "models/delta_sites.h"
#include "models/layer_parts.h"
#include "models/tensor_split.h"
#include "models/weight_names.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace warprow {
namespace {

// The most tokens whose gate and up are kept in float32 at once, for a delta.
constexpr int64_t kGatedDeltaToks = 1024;

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
    embedding_ = load_vocab(loader,
                            spec.vocab_size,
                            facts().vocab,
                            spec.names.embed,
                            spec.hidden_size,
                            spec.tied_head ? VocabUse::kBoth : VocabUse::kLookedUp);
  }
  kv_scales_ = RankKvScales(loader, spec, facts().layers, options.tensor.place, options.kv_scales);
  if (spec.layers.front().layer_input_size > 0) {
    inputs_.emplace(loader, spec, options.tensor, options.linear);
  }
  for (int32_t i = facts().layers.first; i < facts().layers.last; ++i) {
    layers_.push_back(load_layer(loader, i, kv));
  }
  if (last) {
    final_norm_ = load_norm(loader, spec, spec.names.final_norm, spec.hidden_size);
  }
  for (const RopeSpec& rope : spec.ropes) {
    ropes_.push_back({loader.constants(inv_freq_of(rope, spec.names.rope_factors, loader)),
                      rope.attention_factor});
  }
  if (last) {
    head_ = Linear(spec.tied_head ? embedding_
                                  : load_vocab(loader,
                                               spec.vocab_size,
                                               facts().vocab,
                                               spec.names.head,
                                               spec.hidden_size,
                                               VocabUse::kMultiplied),
                   options.linear);
  }
  allocate_buffers(workspace);
  lead_joins();
  if (options_.deltas) {
    number_sites();
  }
}

void Decoder::measure_kv_scales(bool on) {
  WR_CHECK(!on || !kv_scales_.all().empty(), "the KV cache has no scales");
  for (Layer& layer : layers_) {
    layer.attention.measures_scales = on;
  }
}

void Decoder::number_sites() {
  const GroupPlace& place = options_.tensor.place;
  const auto number = [this](Linear& linear, LinearSite site) {
    WR_CHECK_EQ(linear.num_inputs(), site.k);
    linear.set_site(static_cast<int32_t>(sites_.size()));
    sites_.push_back(std::move(site));
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const int32_t index = facts().layers.first + static_cast<int32_t>(i);
    const DeltaSites sites = delta_sites(spec_.layers[static_cast<size_t>(index)]);
    if (sites.qkv) {
      number(layer.qkv, qkv_site(spec_, index, place));
    }
    if (sites.output) {
      number(layer.attention_join.linear(), output_site(spec_, index, place));
    }
    if (sites.feed_forward) {
      GatedFeedForward& ffn = *layer.ffn.gated();
      number(ffn.gate_up(), gate_up_site(spec_, index, place));
      number(ffn.join().linear(), down_site(spec_, index, place));
    }
  }
}

std::vector<std::string> Decoder::modules_of_other_stages() const {
  std::vector<std::string> all;
  for (int32_t i = 0; i < spec_.num_layers; ++i) {
    if (i < facts().layers.first || i >= facts().layers.last) {
      for (std::string& module : site_modules(spec_, i)) {
        all.push_back(std::move(module));
      }
    }
  }
  return all;
}

void Decoder::set_delta(LinearDelta* delta) {
  WR_CHECK(delta == nullptr || options_.deltas, "the model was built without sites for deltas");
  buffers_.linear.delta = delta;
}

AttentionLayer Decoder::load_attention(const LayerLoader& layer, const LayerKvPlace& place) {
  const AttentionSpec& spec = layer.mine().attention;
  const DecoderWeightNames& names = layer.names();
  AttentionLayer out;
  out.layer = spec.has_own_kv() ? layer.index() : spec.kv_source;
  out.own_kv = spec.has_own_kv();
  out.values_are_keys = spec.values_are_keys && spec.has_own_kv();
  out.group = place.group;
  out.num_heads = spec.num_heads;
  out.num_kv_heads = spec.num_kv_heads;
  out.head_dim = spec.head_dim;
  if (spec.rope != kNoRope) {
    const RopeSpec& rope = layer.spec().ropes[static_cast<size_t>(spec.rope)];
    out.rot_dim = rope.rot_dim;
    out.interleaved = rope.interleaved;
  }
  out.norm_eps = layer.spec().rms_eps;
  out.params.scale = spec.scale;
  out.params.window = spec.window;
  out.params.soft_cap = spec.soft_cap;
  if (spec.sinks) {
    TensorSpec sinks{layer.name(names.sinks), 1, layer.whole().attention.num_heads};
    sinks.shard = layer.shards().sinks;
    out.params.sinks = layer.loader().vector(sinks).data;
  }
  if (spec.qk_norm) {
    out.q_norm = layer.norm(names.q_norm, spec.head_dim);
    if (spec.has_own_kv()) {
      out.k_norm = layer.norm(names.k_norm, spec.head_dim);
    }
  }
  if (spec.v_norm && spec.has_own_kv()) {
    const std::vector<float> ones(static_cast<size_t>(spec.head_dim_v), 1.0F);
    out.v_norm = layer.loader().constants(ones);
  }
  if (spec.wide_qk_norm) {
    out.wide_q_norm = layer.norm(names.q_norm, spec.q_size());
    out.wide_k_norm = layer.norm(names.k_norm, spec.k_size());
  }
  return out;
}

Decoder::Layer Decoder::load_layer(ParameterLoader& loader, int32_t index, const KvPlan& kv) const {
  const LayerLoader in(loader, spec_, index, options_.tensor, options_.linear);
  const DecoderWeightNames& names = spec_.names;
  const LayerShards& shards = in.shards();
  const AttentionSpec& attention = in.whole().attention;  // of all ranks together
  const int64_t hidden = spec_.hidden_size;
  const bool norms = in.whole().pre_norms;
  const auto input = [&] {
    return in.whole().layer_input_size > 0 ? std::optional<LayerInput>(in) : std::nullopt;
  };
  const auto scalar = [&] {
    return in.whole().layer_scalar ? loader.read_vector({in.name(names.layer_scalar), 1, 1}).front()
                                   : 1.0F;
  };
  if (in.whole().has_state()) {
    const DeltaSpec& delta = in.whole().delta;
    return Layer{.input_norm = in.norm(names.input_norm, hidden),
                 .delta = DeltaNet(in, kv),
                 .qkv = {},
                 .attention = {},
                 .attention_join = in.join(names.delta_out,
                                           delta.value_size(),
                                           shards.delta_out,
                                           false,
                                           names.attention_post_norm),
                 .ffn_norm = in.norm(names.ffn_norm, hidden),
                 .ffn = FeedForward(in, options_.act_dtype),
                 .input = std::nullopt,
                 .attention_size = static_cast<int32_t>(in.mine().delta.value_size()),
                 .is_aux = std::ranges::count(options_.aux_layers, index) > 0};
  }
  // The parameters are read in this order.
  Layer out{.input_norm = norms ? in.norm(names.input_norm, hidden) : View<const float, 1>(),
            .delta = std::nullopt,
            .qkv = attention.output_gate
                       ? in.stacked(gated_qkv_parts(
                             spec_, index, shards, query_heads(attention, options_.tensor.place)))
                       : in.linear(qkv_parts(spec_, index, shards)),
            .attention = load_attention(in, kv.layers[static_cast<size_t>(index)]),
            .rope = attention.rope,
            .attention_join = in.join(
                names.o, attention.out_size(), shards.o, spec_.o_bias, names.attention_post_norm),
            .ffn_norm = norms ? in.norm(names.ffn_norm, hidden) : View<const float, 1>(),
            .ffn = FeedForward(in, options_.act_dtype),
            .input = input(),
            .scalar = scalar(),
            .qkv_size = in.mine().attention.qkv_size(),
            .gate_size = in.mine().attention.gate_size(),
            .attention_size = in.mine().attention.out_size(),
            .is_aux = std::ranges::count(options_.aux_layers, index) > 0};
  kv_scales_.give_to(out.attention);
  return out;
}

void Decoder::allocate_buffers(Arena& workspace) {
  const int64_t toks = options_.max_num_toks;
  const int64_t hidden = spec_.hidden_size;
  int64_t qkv = 0;
  int64_t attention = 0;
  int64_t intermediate = 0;
  bool plain = true;
  std::vector<const FeedForward*> ffns;
  std::vector<DeltaSpec> deltas;
  for (Layer& layer : layers_) {
    if (layer.delta && options_.max_draft_toks > 0) {
      layer.delta->keep_drafts(workspace, options_.act_dtype, options_.max_draft_toks);
    }
    qkv = std::max<int64_t>(qkv, layer.qkv_size + layer.gate_size);
    if (layer.delta) {
      deltas.push_back(layer.delta->spec());
    }
    attention = std::max<int64_t>(attention, layer.attention_size);
    intermediate = std::max<int64_t>(intermediate, layer.ffn.intermediate_size());
    plain = plain && layer.attention_join.is_plain() && layer.ffn.is_plain();
    ffns.push_back(&layer.ffn);
  }
  const auto activations = [&](int64_t width) {
    const size_t bytes = static_cast<size_t>(toks * width) * dtype_bytes(options_.act_dtype);
    return ActView(options_.act_dtype, workspace.alloc_bytes(bytes), toks, width);
  };
  buffers_.residual = workspace.alloc<float>(toks * hidden);
  buffers_.hidden = activations(hidden);
  buffers_.qkv = activations(qkv);
  buffers_.attention = activations(attention);
  buffers_.ffn = make_feed_forward_workspace(workspace, device_, options_.act_dtype, toks, ffns);
  if (inputs_) {
    buffers_.inputs = make_layer_inputs_workspace(workspace,
                                                  options_.act_dtype,
                                                  toks,
                                                  spec_.num_layers,
                                                  spec_.layers.front().layer_input_size);
  }
  buffers_.delta = make_delta_workspace(
      workspace, device_, options_.act_dtype, toks, options_.max_draft_toks, deltas);
  for (Rope& rope : ropes_) {
    rope.cos = workspace.alloc<float>(toks * rope.inv_freq.shape[0]);
    rope.sin = workspace.alloc<float>(toks * rope.inv_freq.shape[0]);
  }
  // The buffer of the final norm's output is free until the last layer has finished its own norms.
  buffers_.linear.normed = buffers_.hidden;
  buffers_.linear.squares = workspace.alloc<float>(half_norm_squares(toks, hidden));
  buffers_.linear.product = activations(std::max(2 * intermediate, hidden));
  if (options_.deltas && options_.act_dtype != DType::kF32) {
    const int64_t rows = std::min(toks, kGatedDeltaToks);
    buffers_.linear.gated =
        make_view(workspace.alloc<float>(rows * 2 * intermediate), rows, 2 * intermediate);
  }
  if (!plain) {
    buffers_.linear.joined = make_view(workspace.alloc<float>(toks * hidden), toks, hidden);
  }
  if (const auto num_aux = std::ssize(facts().aux_layers); num_aux > 0) {
    buffers_.aux = activations(num_aux * hidden);
  }
  const int64_t widest = std::max({hidden, attention, intermediate});
  buffers_.linear.scratch = workspace.alloc_bytes(linear_scratch_bytes(device_, toks, widest));
}

// Sets for each join the norm and the product that follow it. The last layer's join is followed by the final norm
// or by another stage, which read the residual stream itself.
void Decoder::lead_joins() {
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (const auto behind = layer.ffn.first_shape()) {
      layer.attention_join.lead_to(device_, layer.ffn_norm, *behind, buffers_.linear);
    }
    if (i + 1 < layers_.size() && !layer.input && layer.scalar == 1.0F &&
        layers_[i + 1].takes_begun_norm()) {
      const Layer& next = layers_[i + 1];
      layer.ffn.lead_to(
          device_, next.input_norm, next.in_shape(options_.act_dtype), buffers_.linear);
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
    add(layer.in_shape(options_.act_dtype));
    add(layer.attention_join.shape());
    std::ranges::for_each(layer.ffn.shapes(), add);
    if (layer.input) {
      std::ranges::for_each(layer.input->shapes(options_.act_dtype), add);
    }
    if (const GatedFeedForward* ffn = layer.ffn.gated(); ffn != nullptr && options_.deltas) {
      add(ffn->gate_up().shape(DType::kF32, LinearEpilogue::kStore));
    }
  }
  if (inputs_) {
    add(inputs_->shape());
  }
  if (facts().last_stage && facts().vocab.count > 0) {
    add(head_.shape(DType::kF32, LinearEpilogue::kStore));
  }
  prepare_linear(device_, shapes, options_.max_num_toks, true);
}

View<float, 2> Decoder::residual_room(int64_t num_toks) const {
  return make_view(buffers_.residual, num_toks, spec_.hidden_size);
}

ActView Decoder::aux_states(int64_t num_toks) const {
  ActView states = buffers_.aux;
  states.shape[0] = states.empty() ? 0 : num_toks;
  return states;
}

void Decoder::embed(Stream& stream, View<const int32_t, 1> ids, View<float, 2> out) {
  WR_CHECK(facts().first_stage, "embeddings of a stage without them");
  EmbeddingArgs args{ids, embedding_, out, {}, spec_.embed_scale};
  args.first_id = facts().vocab.first;
  embedding(stream, args);
  if (!options_.tensor.alone()) {
    options_.tensor.comm->all_reduce(stream, out);
  }
}

void Decoder::take_drafts(Stream& stream, const AcceptedDrafts& drafts) {
  for (const Layer& layer : layers_) {
    if (layer.delta) {
      layer.delta->take_drafts(stream, drafts, buffers_.delta);
    }
  }
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

LinearInput Decoder::delta_input(Stream& stream,
                                 const Layer& layer,
                                 const HalfNorm* begun,
                                 const View<float, 2>& residual) {
  if (layer.delta->has_one_product()) {
    return input_behind(
        stream, {layer.input_norm, spec_.rms_eps, begun}, residual, buffers_.linear);
  }
  const ActView normed = part_of(buffers_.linear.normed, residual.shape[0], spec_.hidden_size);
  rms_norm(stream, {residual, layer.input_norm, normed, spec_.rms_eps});
  return {normed};
}

void Decoder::mix(Stream& stream,
                  const Layer& layer,
                  const HalfNorm* begun,
                  const View<float, 2>& residual,
                  const ActView& out) {
  const int64_t toks = residual.shape[0];
  if (layer.delta) {
    layer.delta->forward(
        stream, delta_input(stream, layer, begun, residual), out, buffers_.linear, buffers_.delta);
    return;
  }
  const ActView all = part_of(buffers_.qkv, toks, layer.qkv_size + layer.gate_size);
  View<const float, 2> cos;
  View<const float, 2> sin;
  if (layer.rope != kNoRope) {
    const Rope& rope = ropes_[static_cast<size_t>(layer.rope)];
    cos = make_view<const float>(rope.cos, toks, rope.inv_freq.shape[0]);
    sin = make_view<const float>(rope.sin, toks, rope.inv_freq.shape[0]);
  }
  layer.qkv.forward(
      stream,
      input_behind(stream, {layer.input_norm, spec_.rms_eps, begun}, residual, buffers_.linear),
      all,
      LinearEpilogue::kStore,
      buffers_.linear);
  layer.attention.forward(stream, all.columns(0, layer.qkv_size), cos, sin, out);
  if (layer.gate_size > 0) {
    sigmoid_mul(stream, {all.columns(layer.qkv_size, layer.gate_size), out});
  }
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
  if (inputs_) {
    inputs_->forward(stream, in.input_ids, residual, buffers_.linear, buffers_.inputs);
  }
  for (const Rope& rope : ropes_) {
    rope_table(stream,
               {make_view(in.positions.data, toks),
                rope.inv_freq,
                table(rope.cos, rope),
                table(rope.sin, rope),
                rope.attention_factor});
  }
  int64_t num_aux = 0;
  const HalfNorm* begun = nullptr;  // the norm that the previous join began; null: none
  for (const Layer& layer : layers_) {
    const ActView attended = part_of(buffers_.attention, toks, layer.attention_size);
    mix(stream, layer, begun, residual, attended);
    layer.attention_join.forward(stream, attended, residual, buffers_.linear);
    const HalfNorm* norm_begun = layer.attention_join.next_norm(toks);
    layer.ffn.forward(stream,
                      {layer.ffn_norm, eps, norm_begun, in.num_toks},
                      residual,
                      buffers_.linear,
                      buffers_.ffn);
    begun = layer.ffn.next_norm(toks);
    if (layer.input) {
      layer.input->forward(stream, residual, buffers_.linear, buffers_.inputs);
    }
    if (layer.scalar != 1.0F) {
      scale_rows(stream, {residual, layer.scalar});
    }
    if (layer.is_aux) {
      const int64_t first = num_aux * spec_.hidden_size;
      cast_rows(stream, {residual, aux_states(toks).columns(first, spec_.hidden_size)});
      ++num_aux;
    }
  }
  ModelOutput out;
  out.residual = residual;
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

// A divisor or a cap may make two logits equal of which one was larger.
bool Decoder::leaves_maxima(int64_t n) const {
  const VocabPart& mine = facts().vocab;
  return facts().last_stage && mine.count == mine.width && spec_.logits_divisor == 1.0F &&
         spec_.logits_soft_cap <= 0.0F && head_.leaves_maxima(device_, n);
}

void Decoder::compute_maxima(Stream& stream,
                             ConstActView hidden,
                             const View<OutputMax, 2>& maxima) {
  head_.forward_maxima(stream, hidden, maxima, buffers_.linear);
}

}  // namespace warprow
