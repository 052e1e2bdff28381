// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "base/dtype.h"
#include "device/stream.h"
#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/linear/output_max.h"
#include "layers/linear_delta.h"
#include "models/layer_spec.h"
#include "models/vocab_part.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace warprow {

struct AcceptedDrafts;

// Layers [first, last) of a model: those of one stage.
struct LayerRange {
  int32_t first = 0;
  int32_t last = 0;
};

// What other rooms need of a model, or of the stage of it on this rank. Layers are numbered through all stages.
struct StageFacts {
  int32_t hidden_size = 0;
  int32_t vocab_size = 0;
  VocabPart vocab;                // what this rank's head yields logits of
  DType act_dtype = DType::kF32;  // of hidden states
  int32_t num_position_rows = 1;  // P: 3 with multimodal rope
  LayerRange layers;              // of this stage
  bool first_stage = true;        // takes ids and embeddings; else a residual stream
  bool last_stage = true;  // has the final norm and the head; else yields its residual stream
  // By layer: what each needs of KV cache and backend, with this rank's heads.
  std::vector<AttentionSpec> mixers;
  std::vector<int32_t> aux_layers;  // ascending: layers whose hidden states a forward also keeps
};

// The inputs of a forward. All views are on the device.
struct ModelInput {
  // First stage: token ids; a negative id selects the token's row of embeddings.
  View<const int32_t, 1> input_ids = {};  // [T]
  View<const int32_t, 2> positions = {};  // [P, T]
  View<const float, 2> embeddings = {};   // f32 [T, hidden_size] or empty
  // dev [1] or null: how many of the T tokens are real. Those behind them are padding, whose results are not read.
  const int32_t* num_toks = nullptr;
  // Other stages: what the previous stage yielded, possibly Model::residual_room itself.
  View<const float, 2> residual = {};  // f32 [T, hidden_size]
};

// The outputs of a forward, at fixed addresses, valid until the next one.
struct ModelOutput {
  ActView hidden;           // last stage: [T, hidden_size] after the final norm; else empty
  View<float, 2> residual;  // f32 [T, hidden_size]  the residual stream after the last layer
};

// The runner's interface to a model, or to the layers of it on one rank. Calls cost one virtual call per step.
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

  // Called at start-up, once the weights are loaded: kernels that choose among variants choose for this model's
  // shapes. The device must be idle.
  virtual void prepare_kernels() const = 0;
  // Needs a ForwardContext on the stream. A check fails for an input that the stage does not take.
  virtual ModelOutput forward(Stream& stream, const ModelInput& in) = 0;
  // logits[i] = head * hidden[i]; hidden [n, hidden_size], logits dev f32 [n, facts().vocab.width]. Columns past
  // facts().vocab.count are not written. Last stage.
  virtual void compute_logits(Stream& stream, ConstActView hidden, View<float, 2> logits) = 0;
  // Whether compute_maxima can compute n rows: the largest of each kMaxOutputs adjacent logits, without storing the logits
  // themselves, dev [n, vocab.width / kMaxOutputs]. The values are those of compute_logits.
  [[nodiscard]] virtual bool leaves_maxima(int64_t /*n*/) const { return false; }
  virtual void compute_maxima(Stream& /*stream*/,
                              ConstActView /*hidden*/,
                              const View<OutputMax, 2>& /*maxima*/) {
    WR_CHECK(false, "a model that leaves no maxima");
  }
  // Where a stage keeps the residual stream of num_toks tokens. The previous stage's output may be received here
  // and is then not copied.
  [[nodiscard]] virtual View<float, 2> residual_room(int64_t num_toks) const = 0;
  // Where a forward of num_toks tokens keeps the residual stream behind each of aux_layers, as activations side by side:
  // [num_toks, layers * hidden_size]; empty without such layers. Valid until the next forward.
  [[nodiscard]] virtual ActView aux_states(int64_t /*num_toks*/) const { return {}; }
  // The rows of the embedding, for a model that shares it; out dev f32 [ids, hidden_size]. First stage.
  virtual void embed(Stream& /*stream*/, View<const int32_t, 1> /*ids*/, View<float, 2> /*out*/) {
    WR_CHECK(false, "a model without an embedding to share");
  }
  // Behind a forward with drafts, once it is known which are accepted: these enter the states of layers that keep one.
  // Rejected drafts never do. Does nothing in a model without such layers.
  virtual void take_drafts(Stream& /*stream*/, const AcceptedDrafts& /*drafts*/) {}
  // The linear layers to whose products a delta may be added.
  [[nodiscard]] virtual std::span<const LinearSite> linear_sites() const { return {}; }
  // The modules of such layers that other stages of a pipeline have, as LinearSitePart names them.
  [[nodiscard]] virtual std::vector<std::string> modules_of_other_stages() const { return {}; }
  // What forwards add to products from now on; null: nothing. It outlives them. A check fails if the model has no sites.
  virtual void set_delta(LinearDelta* delta) { WR_CHECK(delta == nullptr); }
  // The scales of an 8-bit KV cache, of all of its layers; else empty.
  [[nodiscard]] virtual View<float, 1> kv_scales() const { return {}; }
  // Whether forwards set these scales from the keys and values of their step.
  virtual void measure_kv_scales(bool on) { WR_CHECK(!on); }

 protected:
  explicit Model(StageFacts facts) : facts_(std::move(facts)) {}

 private:
  StageFacts facts_;
};

}  // namespace warprow
