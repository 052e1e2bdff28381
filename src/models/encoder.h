// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "device/device.h"
#include "device/stream.h"
#include "device/view.h"
#include "kv/kv_planner.h"
#include "layers/attention.h"
#include "layers/linear.h"
#include "models/decoder.h"
#include "models/decoder_spec.h"
#include "models/layer_loader.h"
#include "models/model.h"

#include <cstdint>
#include <vector>

namespace warprow {

// The encoder-only transformer, once for every architecture: embeddings of ids, positions and segments, layers of
// attention to both sides and a feed-forward with LayerNorms, as their spec describes them. It has no head: rows of
// pooling requests take its hidden states. A prompt must come whole, in one step.
//
// Owns: nothing on the device; weights and activations lie in the arenas it was given.
class Encoder final : public Model {
 public:
  // spec.encoder must be set. Throws StartupError for a spec that it does not support.
  Encoder(const DecoderSpec& spec,
          const KvPlan& kv,
          const DecoderOptions& options,
          ParameterLoader& loader,
          Arena& workspace);

  void prepare_kernels() const override;
  ModelOutput forward(Stream& stream, const ModelInput& in) override;
  // There is no head: zeros, for the rows of warm-up.
  void compute_logits(Stream& stream, ConstActView hidden, View<float, 2> logits) override;
  [[nodiscard]] View<float, 2> residual_room(int64_t num_toks) const override;

 private:
  // Empty weights: no norm.
  struct Norm {
    View<const float, 1> weight;  // [hidden_size]
    View<const float, 1> bias;    // the same, or empty
  };
  struct Layer {
    Norm attention_norm;
    Linear qkv;
    AttentionLayer attention;
    Linear attention_out;
    Norm ffn_norm;
    Linear ffn_in;  // gate and up, or up
    Linear ffn_out;
    int32_t rope = 0;  // index in ropes_; kNoRope: none
    FfnSpec ffn;
  };
  struct Rope {
    View<const float, 1> inv_freq;  // [rot_dim / 2]
    float* cos = nullptr;           // [T, rot_dim / 2]
    float* sin = nullptr;
  };
  struct Buffers {
    float* residual =
        nullptr;        // [T, hidden_size]  of embeddings, and with norms in front of the layers
    ActView hidden;     // [T, hidden_size]  what the next product reads
    ActView qkv;        // [T, qkv_size]
    ActView attention;  // [T, out_size]
    ActView wide_qkv;   // both with heads of the cache's size, where that is larger
    ActView wide_attention;
    ActView inner;      // [T, intermediate_size, twice with a gate]
    ActView activated;  // [T, intermediate_size]  with a gate
    LinearWorkspace linear;
  };

  Layer load_layer(ParameterLoader& loader, int32_t index, const KvPlan& kv) const;
  [[nodiscard]] Norm load_norm(ParameterLoader& loader, const std::string& name) const;
  void allocate_buffers(Arena& workspace);
  // Whether the cache has wider heads than the weights.
  [[nodiscard]] bool widens() const {
    return layers_.front().attention.head_dim > spec_.layers.front().attention.head_dim;
  }
  [[nodiscard]] LinearEpilogue in_epilogue(const Layer& layer) const;

  void norm(Stream& stream,
            const Norm& norm,
            const ConstActView& x,
            const ConstActView& add,
            const ActView& out) const;
  // A product that joins x: in front of its norm, or as it is.
  void join(Stream& stream, const Linear& linear, const Norm& behind, const ActView& x) const;
  void embed_input(Stream& stream, const ModelInput& in) const;
  void attend(Stream& stream, const Layer& layer, int64_t toks) const;
  // The attention of a layer's queries, keys and values, perhaps in wider heads.
  void mix(Stream& stream, const Layer& layer, const ActView& qkv, const ActView& out) const;
  void feed_forward(Stream& stream, const Layer& layer, int64_t toks) const;
  [[nodiscard]] ActView hidden(int64_t toks) const;

  DecoderSpec spec_;
  DecoderOptions options_;
  DeviceFacts device_;
  PackedWeight embedding_;
  View<const float, 2> positions_;  // [num_positions, hidden_size] or empty
  View<const float, 2> segments_;   // [num_segments, hidden_size] or empty
  Norm embed_norm_;
  std::vector<Layer> layers_;
  std::vector<Rope> ropes_;
  Norm final_norm_;  // with norms in front
  Buffers buffers_;
};

}  // namespace warprow
