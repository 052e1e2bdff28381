// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.h"

#include "kernels/activation/silu_and_mul.h"
#include "kernels/linear/embedding.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/rope_table.h"
#include "models/weight_names.h"

#include <algorithm>
#include <string>

namespace warprow {
namespace {

// Rope's frequencies, divided by the checkpoint's own factors where a GGUF file brings them.
std::vector<float> inv_freq_of(const DecoderSpec& spec, const ParameterLoader& loader) {
  std::vector<float> inv_freq = rope_inv_freq(spec.rope);
  const std::string& name = spec.names.rope_factors;
  if (!name.empty() && loader.has(name)) {
    const std::vector<float> factors =
        loader.read_vector({name, 1, static_cast<int64_t>(inv_freq.size())});
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      inv_freq[i] /= factors[i];
    }
  }
  return inv_freq;
}

LinearPart part(const std::string& weight, int64_t rows, int64_t cols, bool bias) {
  return {{weight, rows, cols}, bias ? bias_name(weight) : std::string()};
}

}  // namespace

Decoder::Decoder(const DecoderSpec& spec,
                 const KvPlan& kv,
                 const DecoderOptions& options,
                 ParameterLoader& loader,
                 Arena& workspace)
    : spec_(spec), options_(options) {
  embedding_ = loader.matrix({spec.names.embed, spec.vocab_size, spec.hidden_size});
  for (int32_t i = 0; i < spec.num_layers; ++i) {
    layers_.push_back(load_layer(loader, i, kv.layers[static_cast<size_t>(i)]));
  }
  final_norm_ = loader.vector({spec.names.final_norm, 1, spec.hidden_size});
  inv_freq_ = loader.constants(inv_freq_of(spec, loader));
  head_ = spec.tied_head ? Linear(embedding_, options.act)
                         : Linear(loader,
                                  {part(spec.names.head, spec.vocab_size, spec.hidden_size, false)},
                                  options.act);
  allocate_buffers(workspace);
}

Decoder::Layer Decoder::load_layer(ParameterLoader& loader,
                                   int32_t index,
                                   const LayerKvPlace& place) const {
  const auto name = [index](const std::string& pattern) { return layer_name(pattern, index); };
  const DecoderWeightNames& names = spec_.names;
  const int64_t hidden = spec_.hidden_size;
  LinearPart q = part(name(names.q), spec_.q_size(), hidden, spec_.qkv_bias);
  LinearPart k = part(name(names.k), spec_.kv_size(), hidden, spec_.qkv_bias);
  if (spec_.permuted_qk) {
    q.weight.order = k.weight.order = RowOrder::kRopePairs;
    q.weight.head_dim = k.weight.head_dim = spec_.head_dim;
  }

  Layer layer;
  layer.input_norm = loader.vector({name(names.input_norm), 1, hidden});
  layer.qkv = Linear(
      loader, {q, k, part(name(names.v), spec_.kv_size(), hidden, spec_.qkv_bias)}, options_.act);
  layer.attention.layer = index;
  layer.attention.group = place.group;
  layer.attention.num_heads = spec_.num_heads;
  layer.attention.num_kv_heads = spec_.num_kv_heads;
  layer.attention.head_dim = spec_.head_dim;
  layer.attention.rot_dim = spec_.rope.rot_dim;
  layer.attention.norm_eps = spec_.rms_eps;
  layer.attention.params.scale = spec_.attention_scale();
  layer.attention.params.window = spec_.layers[static_cast<size_t>(index)].window;
  if (spec_.qk_norm) {
    layer.attention.q_norm = loader.vector({name(names.q_norm), 1, spec_.head_dim});
    layer.attention.k_norm = loader.vector({name(names.k_norm), 1, spec_.head_dim});
  }
  layer.o =
      Linear(loader, {part(name(names.o), hidden, spec_.q_size(), spec_.o_bias)}, options_.act);
  layer.post_norm = loader.vector({name(names.post_norm), 1, hidden});
  layer.gate_up = Linear(loader,
                         {part(name(names.gate), spec_.intermediate_size, hidden, spec_.mlp_bias),
                          part(name(names.up), spec_.intermediate_size, hidden, spec_.mlp_bias)},
                         options_.act);
  layer.down = Linear(loader,
                      {part(name(names.down), hidden, spec_.intermediate_size, spec_.mlp_bias)},
                      options_.act);
  return layer;
}

void Decoder::allocate_buffers(Arena& workspace) {
  const int64_t toks = options_.max_num_toks;
  const int64_t hidden = spec_.hidden_size;
  buffers_.residual = workspace.alloc<float>(toks * hidden);
  buffers_.hidden = workspace.alloc<float>(toks * hidden);
  buffers_.normed = workspace.alloc<float>(toks * hidden);
  buffers_.qkv = workspace.alloc<float>(toks * spec_.qkv_size());
  buffers_.attention = workspace.alloc<float>(toks * spec_.q_size());
  buffers_.gate_up = workspace.alloc<float>(toks * 2 * spec_.intermediate_size);
  buffers_.activated = workspace.alloc<float>(toks * spec_.intermediate_size);
  buffers_.cos = workspace.alloc<float>(toks * spec_.rope.rot_dim / 2);
  buffers_.sin = workspace.alloc<float>(toks * spec_.rope.rot_dim / 2);
  const int64_t widest = std::max({spec_.hidden_size, spec_.q_size(), spec_.intermediate_size});
  buffers_.scratch = workspace.alloc_bytes(linear_scratch_bytes(toks, widest));
}

void Decoder::norm(Stream& stream,
                   View<const float, 2> x,
                   View<float, 2> residual,
                   View<const float, 1> weight,
                   View<float, 2> out) const {
  RmsNormArgs args;
  args.x = x;
  args.residual = residual;
  args.weight = weight;
  args.out = out;
  args.eps = spec_.rms_eps;
  rms_norm(stream, args);
}

DecoderOutput Decoder::forward(Stream& stream, const DecoderInput& in) {
  const int64_t toks = in.input_ids.shape[0];
  const auto rows = [toks](float* data, int64_t width) { return make_view(data, toks, width); };
  const View<float, 2> residual = rows(buffers_.residual, spec_.hidden_size);
  const View<float, 2> hidden = rows(buffers_.hidden, spec_.hidden_size);
  const View<float, 2> normed = rows(buffers_.normed, spec_.hidden_size);
  const View<float, 2> qkv = rows(buffers_.qkv, spec_.qkv_size());
  const View<float, 2> attended = rows(buffers_.attention, spec_.q_size());
  const View<float, 2> gate_up = rows(buffers_.gate_up, 2LL * spec_.intermediate_size);
  const View<float, 2> activated = rows(buffers_.activated, spec_.intermediate_size);
  const View<float, 2> cos = rows(buffers_.cos, spec_.rope.rot_dim / 2);
  const View<float, 2> sin = rows(buffers_.sin, spec_.rope.rot_dim / 2);

  embedding(stream, {in.input_ids, embedding_, residual});
  rope_table(stream, {make_view(in.positions.data, toks), inv_freq_, cos, sin, 1.0F});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    // The residual stream starts as the embedding itself; from then on each norm first adds the
    // last output to it.
    if (i == 0) {
      norm(stream, residual, {}, layer.input_norm, normed);
    } else {
      norm(stream, hidden, residual, layer.input_norm, normed);
    }
    layer.qkv.forward(stream, normed, qkv, buffers_.scratch);
    layer.attention.forward(stream, qkv, cos, sin, attended);
    layer.o.forward(stream, attended, hidden, buffers_.scratch);
    norm(stream, hidden, residual, layer.post_norm, normed);
    layer.gate_up.forward(stream, normed, gate_up, buffers_.scratch);
    silu_and_mul(stream, {gate_up, activated});
    layer.down.forward(stream, activated, hidden, buffers_.scratch);
  }
  norm(stream, hidden, residual, final_norm_, normed);
  return {normed};
}

void Decoder::compute_logits(Stream& stream, View<const float, 2> hidden, View<float, 2> logits) {
  head_.forward(stream, hidden, logits, buffers_.scratch);
}

}  // namespace warprow
