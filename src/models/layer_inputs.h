// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rank_place.h"
#include "device/arena.h"
#include "device/view.h"
#include "kernels/act_view.h"
#include "layers/join.h"
#include "layers/linear.h"
#include "models/decoder_spec.h"
#include "models/layer_loader.h"
#include "models/vocab_part.h"

#include <cstdint>

namespace warprow {

// Memory that the inputs of all layers share, for the model's largest step.
struct LayerInputsWorkspace {
  float* inputs = nullptr;   // [T, num_layers * size]
  float* product = nullptr;  // [T, num_layers * size]
  ActView pair;              // [T, 2 * size]  of one layer: the gate's product, then its input
  ActView gated;             // [T, size]
};

LayerInputsWorkspace make_layer_inputs_workspace(
    Arena& arena, DType act_dtype, int64_t max_toks, int32_t num_layers, int32_t size);

// What each layer reads besides the residual stream (LayerSpec::layer_input_size): a row of a table for the token's id,
// and a norm of a product with its embedding.
//
//   input[t, l] = (norm(W embedding[t])[l] + sqrt(size) * table[id[t], l]) / sqrt(2), the norm over each layer's part
//
// A token without an id has no row of the table. The ranks of a tensor-parallel group divide the table by the vocabulary.
//
// Owns: nothing; weights and workspace are the model's.
// Thread: the runner's.
class LayerInputs {
 public:
  LayerInputs() = default;
  LayerInputs(ParameterLoader& loader,
              const DecoderSpec& spec,
              const RankGroup& ranks,
              const LinearMode& mode);

  [[nodiscard]] LinearShape shape() const {
    return product_.shape(DType::kF32, LinearEpilogue::kStore);
  }
  // Fills workspace.inputs for these tokens. embedded: their embeddings as the first layer reads them.
  void forward(Stream& stream,
               const View<const int32_t, 1>& ids,
               const View<float, 2>& embedded,
               const LinearWorkspace& linear,
               const LayerInputsWorkspace& workspace) const;

 private:
  PackedWeight table_;  // [part of the vocabulary, num_layers * size]
  VocabPart vocab_;
  Linear product_;  // [num_layers * size, hidden_size]
  View<const float, 1> norm_;
  float norm_eps_ = 0.0F;
  float table_scale_ = 1.0F;
  RankGroup ranks_;
  int32_t num_layers_ = 0;
  int32_t size_ = 0;
};

// A layer's use of its input: residual += post_norm(out(activation(gate residual) * input)).
class LayerInput {
 public:
  explicit LayerInput(const LayerLoader& layer);

  // Of both products, for which kernels prepare.
  [[nodiscard]] std::vector<LinearShape> shapes(DType act_dtype) const;

  void forward(Stream& stream,
               const View<float, 2>& residual,
               const LinearWorkspace& linear,
               const LayerInputsWorkspace& workspace) const;

 private:
  Linear gate_;  // [size, hidden_size]
  Join out_;     // [hidden_size, size]
  Activation activation_;
  int32_t index_;
  int32_t num_layers_;
  int32_t size_;
};

}  // namespace warprow
