// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "device/stream.h"
#include "device/view.h"
#include "kernels/act_view.h"
#include "models/layer_spec.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace warprow {

// Layers [first, last) of a model: those of one stage.
struct LayerRange {
  int32_t first = 0;
  int32_t last = 0;
};

// What others must know of a model, or of the stage of it that is here. Layers are numbered through
// all stages.
struct StageFacts {
  int32_t hidden_size = 0;
  int32_t vocab_size = 0;
  DType act_dtype = DType::kF32;  // of hidden states
  int32_t num_position_rows = 1;  // P: 3 with multimodal rope
  LayerRange layers;              // of this stage
  bool first_stage = true;        // takes ids and embeddings, else a residual stream
  bool last_stage = true;  // has the final norm and the head, else yields its residual stream
  std::vector<AttentionSpec> mixers;  // by layer: what each needs of the KV cache and its backend
  std::vector<int32_t> aux_layers;    // whose hidden states a forward yields too
};

// What a forward is fed. All views are on the device.
struct ModelInput {
  // First stage: a token's id, and where it is negative the token's row of embeddings.
  View<const int32_t, 1> input_ids = {};  // [T]
  View<const int32_t, 2> positions = {};  // [P, T]
  View<const float, 2> embeddings = {};   // f32 [T, hidden_size] or empty
  // Other stages: what the stage before yielded, perhaps Model::residual_room itself.
  View<const float, 2> residual = {};  // f32 [T, hidden_size]
};

// What a forward yields, at fixed addresses, until the next one.
struct ModelOutput {
  ActView hidden;           // last stage: [T, hidden_size] after the final norm; else empty
  View<float, 2> residual;  // f32 [T, hidden_size]  the residual stream behind the last layer
  std::span<const View<float, 2>>
      aux;  // f32 [T, hidden_size] each: by aux_layers, the same behind those
};

// A model, or the layers of it that one rank has, as the runner sees it. Calls cost one virtual call
// a step.
//
// Thread: the runner's.
// Invariant: a forward of T tokens touches the first T rows of its buffers only; all memory is taken
// in the constructor.
class Model {
 public:
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] const StageFacts& facts() const { return facts_; }

  // Start-up, once the weights are there: lets kernels that choose among variants do so for this
  // model's shapes. The device must be idle.
  virtual void prepare_kernels() const = 0;
  // Needs a ForwardContext on the stream. A check fails for an input that the stage does not take.
  virtual ModelOutput forward(Stream& stream, const ModelInput& in) = 0;
  // logits[i] = head * hidden[i]; hidden [n, hidden_size], logits dev f32 [n, vocab_size]. Last stage.
  virtual void compute_logits(Stream& stream, ConstActView hidden, View<float, 2> logits) = 0;
  // Where a stage keeps the residual stream of num_toks tokens: what comes from the stage before may
  // be received here and is then not copied.
  [[nodiscard]] virtual View<float, 2> residual_room(int64_t num_toks) const = 0;

 protected:
  explicit Model(StageFacts facts) : facts_(std::move(facts)) {}

 private:
  StageFacts facts_;
};

}  // namespace warprow
