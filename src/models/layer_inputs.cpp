// SPDX-License-Identifier: Apache-2.0
#include "models/layer_inputs.h"

#include "kernels/activation/act_and_mul.h"
#include "kernels/add/add_rows.h"
#include "kernels/cast/cast_rows.h"
#include "kernels/embedding/embedding.h"
#include "kernels/norm/rms_norm.h"
#include "layers/buffer_part.h"
#include "models/feed_forward.h"
#include "models/layer_parts.h"
#include "models/tensor_split.h"

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace warprow {
namespace {

constexpr float kHalfRoot = std::numbers::sqrt2_v<float> / 2.0F;

int32_t size_of_inputs(const DecoderSpec& spec) { return spec.layers.front().layer_input_size; }

View<const float, 1> load_norm_part(ParameterLoader& loader, const DecoderSpec& spec) {
  std::vector<float> weights =
      loader.read_vector({spec.names.layer_inputs_norm, 1, size_of_inputs(spec)});
  for (float& weight : weights) {
    weight *= kHalfRoot;
  }
  return loader.constants(std::move(weights));
}

}  // namespace

LayerInputsWorkspace make_layer_inputs_workspace(
    Arena& arena, DType act_dtype, int64_t max_toks, int32_t num_layers, int32_t size) {
  const auto rows = [&](int64_t width) {
    const size_t bytes = static_cast<size_t>(max_toks * width) * dtype_bytes(act_dtype);
    return ActView(act_dtype, arena.alloc_bytes(bytes), max_toks, width);
  };
  LayerInputsWorkspace workspace;
  workspace.inputs = arena.alloc<float>(max_toks * num_layers * size);
  workspace.product = arena.alloc<float>(max_toks * num_layers * size);
  workspace.pair = rows(int64_t{2} * size);
  workspace.gated = rows(size);
  return workspace;
}

LayerInputs::LayerInputs(ParameterLoader& loader,
                         const DecoderSpec& spec,
                         const RankGroup& ranks,
                         const LinearMode& mode)
    : ranks_(ranks), num_layers_(spec.num_layers), size_(size_of_inputs(spec)) {
  const int64_t width = int64_t{num_layers_} * size_;
  vocab_ = vocab_part(spec.vocab_size, ranks.place);
  table_ = load_vocab(loader, spec.vocab_size, vocab_, spec.names.layer_inputs, width);
  product_ =
      Linear(loader, {{{spec.names.layer_inputs_product, width, spec.hidden_size}, ""}}, mode);
  norm_ = load_norm_part(loader, spec);
  // The norm is of the product divided by the root of hidden_size, which only eps sees.
  norm_eps_ = spec.rms_eps * static_cast<float>(spec.hidden_size);
  table_scale_ = std::sqrt(static_cast<float>(size_)) * kHalfRoot;
}

void LayerInputs::forward(Stream& stream,
                          const View<const int32_t, 1>& ids,
                          const View<float, 2>& embedded,
                          const LinearWorkspace& linear,
                          const LayerInputsWorkspace& workspace) const {
  const int64_t toks = ids.shape[0];
  const int64_t width = int64_t{num_layers_} * size_;
  const View<float, 2> inputs = make_view(workspace.inputs, toks, width);
  EmbeddingArgs args{ids, table_, inputs, {}, table_scale_};
  args.first_id = vocab_.first;
  embedding(stream, args);
  if (!ranks_.alone()) {
    ranks_.comm->all_reduce(stream, inputs);
  }
  product_.forward(stream,
                   input_behind(stream, {}, embedded, linear),
                   make_view(workspace.product, toks, width),
                   LinearEpilogue::kStore,
                   linear);
  const View<float, 2> parts = make_view(workspace.product, toks * num_layers_, int64_t{size_});
  rms_norm(stream, {parts, norm_, parts, norm_eps_});
  add_rows(stream, {make_view<const float>(workspace.product, toks, width), inputs});
}

LayerInput::LayerInput(const LayerLoader& layer)
    : gate_(layer.linear({layer.part(layer.names().layer_input_gate,
                                     layer.whole().layer_input_size,
                                     layer.spec().hidden_size,
                                     {},
                                     false)})),
      activation_(layer.whole().ffn.activation),
      index_(layer.index()),
      num_layers_(layer.spec().num_layers),
      size_(layer.whole().layer_input_size) {
  JoinMode mode;
  mode.norm_eps = layer.spec().rms_eps;
  const Linear out = layer.linear({layer.part(layer.names().layer_input_out,
                                              layer.spec().hidden_size,
                                              layer.whole().layer_input_size,
                                              {},
                                              false)});
  mode.post_norm = layer.norm(layer.names().layer_input_post_norm, layer.spec().hidden_size);
  out_ = Join(out, mode);
}

std::vector<LinearShape> LayerInput::shapes(DType act_dtype) const {
  return {gate_.shape(act_dtype, LinearEpilogue::kStore), out_.shape()};
}

void LayerInput::forward(Stream& stream,
                         const View<float, 2>& residual,
                         const LinearWorkspace& linear,
                         const LayerInputsWorkspace& workspace) const {
  const int64_t toks = residual.shape[0];
  const ActView pair = part_of(workspace.pair, toks, int64_t{2} * size_);
  const ActView gated = part_of(workspace.gated, toks, size_);
  gate_.forward(stream,
                input_behind(stream, {}, residual, linear),
                pair.columns(0, size_),
                LinearEpilogue::kStore,
                linear);
  const View<const float, 2> inputs = make_strided<const float>(
      workspace.inputs + int64_t{index_} * size_, toks, size_, int64_t{num_layers_} * size_);
  cast_rows(stream, {inputs, pair.columns(size_, size_)});
  if (activation_ == Activation::kSilu) {
    silu_and_mul(stream, {pair, gated});
  } else {
    gelu_and_mul(stream, {pair, gated});
  }
  out_.forward(stream, gated, residual, linear);
}

}  // namespace warprow
