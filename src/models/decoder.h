// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rank_place.h"
#include "device/arena.h"
#include "device/device.h"
#include "device/stream.h"
#include "device/view.h"
#include "kv/kv_planner.h"
#include "layers/attention.h"
#include "layers/join.h"
#include "layers/linear.h"
#include "models/decoder_spec.h"
#include "models/delta_net.h"
#include "models/feed_forward.h"
#include "models/kv_scales.h"
#include "models/layer_inputs.h"
#include "models/layer_loader.h"
#include "models/model.h"
#include "models/rank_kv_scales.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace warprow {

struct DecoderOptions {
  LinearMode linear;
  DType act_dtype = DType::kF32;  // of activations; the residual stream is always float32
  int32_t max_num_toks = 0;       // the largest step
  LayerRange layers;              // of this stage; empty: all
  RankGroup tensor;               // the ranks that divide each layer (models/tensor_split.h)
  bool deltas = false;            // products may have deltas (layers/linear_delta.h)
  // Layers of this stage, ascending, whose hidden states are kept (Model::aux_states).
  std::vector<int32_t> aux_layers;
  // Of layers with a state: the most tokens of rows with drafts in a step (Model::take_drafts); 0: there are none.
  int32_t max_draft_toks = 0;
  std::vector<LayerKvScales>
      kv_scales;  // of the whole model's layers, with an 8-bit KV cache; else empty
};

// The decoder-only transformer, once for every architecture: embedding, layers of attention and a
// gated feed-forward as their spec describes them, final norm; logits are a call of their own on
// gathered rows.
//
// With several ranks, each computes its own heads, its part of the feed-forward and its part of the vocabulary. The
// residual stream is the same on all of them, bit for bit: two sums over ranks in each layer, and one behind the
// embedding.
//
// Owns: nothing on the device; weights and activations lie in the arenas it was given.
class Decoder final : public Model {
 public:
  // spec: the whole model's. Throws StartupError for a spec, range or division that it does not support.
  Decoder(const DecoderSpec& spec,
          const KvPlan& kv,
          const DecoderOptions& options,
          ParameterLoader& loader,
          Arena& workspace);

  void prepare_kernels() const override;
  ModelOutput forward(Stream& stream, const ModelInput& in) override;
  void compute_logits(Stream& stream, ConstActView hidden, View<float, 2> logits) override;
  [[nodiscard]] bool leaves_maxima(int64_t n) const override;
  void compute_maxima(Stream& stream,
                      ConstActView hidden,
                      const View<OutputMax, 2>& maxima) override;
  [[nodiscard]] View<float, 2> residual_room(int64_t num_toks) const override;
  [[nodiscard]] std::span<const LinearSite> linear_sites() const override { return sites_; }
  [[nodiscard]] std::vector<std::string> modules_of_other_stages() const override;
  void set_delta(LinearDelta* delta) override;
  [[nodiscard]] ActView aux_states(int64_t num_toks) const override;
  void embed(Stream& stream, View<const int32_t, 1> ids, View<float, 2> out) override;
  void take_drafts(Stream& stream, const AcceptedDrafts& drafts) override;

  [[nodiscard]] View<float, 1> kv_scales() const override { return kv_scales_.all(); }
  void measure_kv_scales(bool on) override;

  // The attention of a layer at its place in the cache. Reads its norms and sinks.
  [[nodiscard]] static AttentionLayer load_attention(const LayerLoader& layer,
                                                     const LayerKvPlace& place);

 private:
  struct Layer {
    View<const float, 1> input_norm;
    std::optional<DeltaNet> delta;  // in place of the next two
    Linear qkv;
    AttentionLayer attention;
    int32_t rope = 0;  // index in ropes_
    Join attention_join;
    View<const float, 1> ffn_norm;
    FeedForward ffn;
    std::optional<LayerInput> input;
    float scalar = 1.0F;  // of the residual stream behind the layer
    int32_t qkv_size = 0;
    int32_t gate_size = 0;  // of attention's output, behind q, k and v
    int32_t attention_size = 0;
    bool is_aux = false;

    // The product behind the input norm.
    [[nodiscard]] LinearShape in_shape(DType act_dtype) const {
      return delta ? delta->in_shape(act_dtype) : qkv.shape(act_dtype, LinearEpilogue::kStore);
    }
    [[nodiscard]] bool takes_begun_norm() const { return !delta || delta->has_one_product(); }
  };
  // A rope's frequencies, and its table of the step's tokens.
  struct Rope {
    View<const float, 1> inv_freq;  // [rot_dim / 2]
    float attention_factor = 1.0F;
    float* cos = nullptr;  // [T, rot_dim / 2]
    float* sin = nullptr;  // [T, rot_dim / 2]
  };
  // Activations [max_num_toks, ...], as wide as the widest layer's; rows past a step's tokens are
  // stale and never read.
  struct Buffers {
    float* residual = nullptr;  // [T, hidden_size]
    ActView hidden;             // [T, hidden_size]  after the final norm
    ActView qkv;                // [T, qkv_size]
    ActView attention;          // [T, attention_size]
    FeedForwardWorkspace ffn;
    LayerInputsWorkspace inputs;
    DeltaWorkspace delta;
    ActView aux;  // [T, layers of aux_layers * hidden_size], or empty
    LinearWorkspace linear;
  };

  Layer load_layer(ParameterLoader& loader, int32_t index, const KvPlan& kv) const;
  void allocate_buffers(Arena& workspace);
  void lead_joins();
  void number_sites();

  void enter(Stream& stream, const ModelInput& in, const View<float, 2>& residual);
  // What the layer's gated delta net reads.
  LinearInput delta_input(Stream& stream,
                          const Layer& layer,
                          const HalfNorm* begun,
                          const View<float, 2>& residual);
  // The layer's attention, or what it has in place of it, of the normed residual stream. begun: that norm, begun by the
  // join in front; else null.
  void mix(Stream& stream,
           const Layer& layer,
           const HalfNorm* begun,
           const View<float, 2>& residual,
           const ActView& out);

  DecoderSpec spec_;
  DecoderOptions options_;
  DeviceFacts device_;
  PackedWeight embedding_;
  std::optional<LayerInputs> inputs_;
  std::vector<Layer> layers_;  // of this stage
  std::vector<Rope> ropes_;
  View<const float, 1> final_norm_;
  Linear head_;
  Buffers buffers_;
  std::vector<LinearSite> sites_;  // with DecoderOptions::deltas
  RankKvScales kv_scales_;         // with an 8-bit KV cache
};

}  // namespace warprow
