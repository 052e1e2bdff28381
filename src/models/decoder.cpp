// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.h"

#include "base/math.h"
#include "kernels/activation/silu_and_mul.h"
#include "kernels/linear/embedding.h"
#include "kernels/linear/linear_prepare_cuda.h"
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
    : spec_(spec), options_(options), device_(loader.device_kind()) {
  embedding_ = loader.matrix({spec.names.embed, spec.vocab_size, spec.hidden_size});
  for (int32_t i = 0; i < spec.num_layers; ++i) {
    layers_.push_back(load_layer(loader, i, kv.layers[static_cast<size_t>(i)]));
  }
  final_norm_ = loader.vector({spec.names.final_norm, 1, spec.hidden_size});
  inv_freq_ = loader.constants(inv_freq_of(spec, loader));
  head_ = spec.tied_head ? Linear(embedding_, options.linear)
                         : Linear(loader,
                                  {part(spec.names.head, spec.vocab_size, spec.hidden_size, false)},
                                  options.linear);
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
  layer.qkv = Linear(loader,
                     {q, k, part(name(names.v), spec_.kv_size(), hidden, spec_.qkv_bias)},
                     options_.linear);
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
      Linear(loader, {part(name(names.o), hidden, spec_.q_size(), spec_.o_bias)}, options_.linear);
  layer.post_norm = loader.vector({name(names.post_norm), 1, hidden});
  layer.gate_up = Linear(loader,
                         {part(name(names.gate), spec_.intermediate_size, hidden, spec_.mlp_bias),
                          part(name(names.up), spec_.intermediate_size, hidden, spec_.mlp_bias)},
                         options_.linear);
  layer.down = Linear(loader,
                      {part(name(names.down), hidden, spec_.intermediate_size, spec_.mlp_bias)},
                      options_.linear);
  return layer;
}

void Decoder::allocate_buffers(Arena& workspace) {
  const int64_t toks = options_.max_num_toks;
  const auto activations = [&](int64_t width) {
    const size_t bytes = static_cast<size_t>(toks * width) * dtype_bytes(options_.act_dtype);
    return ActView(options_.act_dtype, workspace.alloc_bytes(bytes), toks, width);
  };
  buffers_.residual = workspace.alloc<float>(toks * spec_.hidden_size);
  buffers_.hidden = activations(spec_.hidden_size);
  buffers_.qkv = activations(spec_.qkv_size());
  buffers_.attention = activations(spec_.q_size());
  buffers_.activated = activations(spec_.intermediate_size);
  buffers_.cos = workspace.alloc<float>(toks * spec_.rope.rot_dim / 2);
  buffers_.sin = workspace.alloc<float>(toks * spec_.rope.rot_dim / 2);
  // The final norm's output is not needed before the last layer is done with its own norms.
  buffers_.linear.normed = buffers_.hidden;
  buffers_.linear.squares = workspace.alloc<float>(toks * ceil_div(spec_.hidden_size, 64));
  buffers_.linear.wide = activations(std::max(2 * spec_.intermediate_size, spec_.hidden_size));
  const int64_t widest = std::max({spec_.hidden_size, spec_.q_size(), spec_.intermediate_size});
  buffers_.linear.scratch = workspace.alloc_bytes(linear_scratch_bytes(device_, toks, widest));
}

void Decoder::prepare_kernels() const {
  if (device_ != DeviceKind::kCuda) {
    return;
  }
  // All layers have the shapes of the first.
  const Layer& layer = layers_.front();
  const cuda::LinearShape shapes[] = {
      layer.qkv.shape(options_.act_dtype, LinearEpilogue::kStore),
      layer.o.shape(DType::kF32, LinearEpilogue::kAdd),
      layer.gate_up.shape(options_.act_dtype, LinearEpilogue::kSwiGlu),
      layer.down.shape(DType::kF32, LinearEpilogue::kAdd),
      head_.shape(DType::kF32, LinearEpilogue::kStore)};
  cuda::prepare_linear(shapes, options_.max_num_toks, true);
}

DecoderOutput Decoder::forward(Stream& stream, const DecoderInput& in) {
  const int64_t toks = in.input_ids.shape[0];
  const auto first = [toks](ActView buffer) {
    buffer.shape[0] = toks;
    return buffer;
  };
  const int64_t rotated = spec_.rope.rot_dim / 2;
  const View<float, 2> residual = make_view(buffers_.residual, toks, spec_.hidden_size);
  const View<float, 2> cos = make_view(buffers_.cos, toks, rotated);
  const View<float, 2> sin = make_view(buffers_.sin, toks, rotated);
  const ActView qkv = first(buffers_.qkv);
  const ActView attended = first(buffers_.attention);
  const ActView activated = first(buffers_.activated);
  const ActView hidden = first(buffers_.hidden);
  const float eps = spec_.rms_eps;
  const LinearWorkspace& workspace = buffers_.linear;

  embedding(stream, {in.input_ids, embedding_, residual});
  rope_table(stream, {make_view(in.positions.data, toks), inv_freq_, cos, sin, 1.0F});
  HalfNorm norm;  // of the residual stream, between the layers that it ends and begins
  norm.rows = first(workspace.normed);
  norm.squares = workspace.squares;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    layer.qkv.forward(
        stream, {residual, layer.input_norm, eps, &norm}, qkv, LinearEpilogue::kStore, workspace);
    layer.attention.forward(stream, qkv, cos, sin, attended);
    norm.weight = layer.post_norm;
    layer.o.forward(stream, {attended}, residual, LinearEpilogue::kAdd, workspace, &norm);
    layer.gate_up.forward(stream,
                          {residual, layer.post_norm, eps, &norm},
                          activated,
                          LinearEpilogue::kSwiGlu,
                          workspace);
    norm.weight = i + 1 < layers_.size() ? layers_[i + 1].input_norm : View<const float, 1>();
    layer.down.forward(stream, {activated}, residual, LinearEpilogue::kAdd, workspace, &norm);
  }
  rms_norm(stream, {residual, final_norm_, hidden, eps});
  return {hidden};
}

void Decoder::compute_logits(Stream& stream, ConstActView hidden, View<float, 2> logits) {
  head_.forward(stream, {hidden}, logits, LinearEpilogue::kStore, buffers_.linear);
}

}  // namespace warprow
