// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "device/device.h"
#include "device/stream.h"
#include "device/view.h"
#include "kv/kv_planner.h"
#include "layers/attention.h"
#include "layers/join.h"
#include "layers/linear.h"
#include "models/decoder.h"
#include "models/eagle_spec.h"
#include "models/feed_forward.h"
#include "models/layer_loader.h"
#include "models/model.h"
#include "models/rank_kv_scales.h"

#include <cstdint>
#include <vector>

namespace warprow {

// The inputs of a forward. All views are on the device.
struct EagleInput {
  View<const int32_t, 1> ids;        // [T]     the token behind each position
  View<const int32_t, 1> positions;  // [T]
  // One of the two: the model's states at the positions, [T, EagleSpec::states_size] as activations, or what a forward of
  // the head returned for the positions before them, f32 [T, hidden_size].
  ConstActView model_states;
  ConstActView own_states;
  const int32_t* num_toks = nullptr;  // as of ModelInput
};

// A head that drafts for a model from that model's hidden states: EAGLE's, EAGLE-3's or MTP's (EagleSpec). The model lends
// its embedding, and its head where this one has none.
//
// The ranks of DecoderOptions::tensor divide its layers, embedding and head as a decoder's; all of them have fc. Without
// these ranks each has a whole head of a model that may be divided. Either way the residual stream is the same on all of
// them, bit for bit.
//
// Owns: nothing on the device; weights and activations lie in the arenas it was given.
// Thread: the runner's.
// Invariant: as of Model.
class EagleHead {
 public:
  // ids: read_draft_ids. Throws StartupError for parameters that it does not support.
  EagleHead(const EagleSpec& spec,
            const std::vector<int32_t>& ids,
            const KvPlan& kv,
            const DecoderOptions& options,
            Model& target,
            ParameterLoader& loader,
            Arena& workspace);

  [[nodiscard]] const EagleSpec& spec() const { return spec_; }
  [[nodiscard]] DType act_dtype() const { return options_.act_dtype; }
  // By layer: what each needs of cache and backend.
  [[nodiscard]] std::vector<AttentionSpec> mixers() const;
  // Ids of the model's vocabulary by id of the head's: dev i32 [draft_vocab_size], or null: they are the same.
  [[nodiscard]] const int32_t* ids() const { return ids_; }
  // The other way: dev i32 [vocab_size], -1 for tokens that it cannot draft. Null without ids, and if two of them are the same.
  [[nodiscard]] const int32_t* own_ids() const { return own_ids_; }

  void prepare_kernels() const;
  // What this rank's head, or the model's, yields logits of.
  [[nodiscard]] const VocabPart& vocab() const { return vocab_; }

  // The residual stream behind the layers, f32 [T, hidden_size], from which logits are computed and which later forwards
  // take. Valid until the next forward. Needs a ForwardContext on the stream.
  View<float, 2> forward(Stream& stream, const EagleInput& in);
  // states [n, hidden_size]: rows of what a forward returned; logits dev f32 [n, vocab().width]. Columns past
  // vocab().count are not written.
  void compute_logits(Stream& stream, View<const float, 2> states, View<float, 2> logits);

 private:
  struct Layer {
    View<const float, 1> input_norm;
    Linear qkv;  // and a gate of the output, behind the others
    AttentionLayer attention;
    Join attention_join;
    View<const float, 1> ffn_norm;
    FeedForward ffn;
  };
  // Activations [max_num_toks, ...].
  struct Buffers {
    float* residual = nullptr;  // [T, hidden_size]
    float* embedded = nullptr;  // [T, hidden_size]
    ActView joined;             // [T, 2 * hidden_size]  embedding and states side by side
    ActView states;             // [T, states_size]  normed in front of fc, or empty
    ActView qkv;                // [T, qkv_size + gate_size]
    ActView attention;          // [T, heads * head_dim]
    float* cos = nullptr;       // [T, rot_dim / 2]
    float* sin = nullptr;       // [T, rot_dim / 2]
    FeedForwardWorkspace ffn;
    LinearWorkspace linear;
  };

  Layer load_layer(ParameterLoader& loader, int32_t index, const KvPlan& kv) const;
  void allocate_buffers(const DeviceFacts& device, Arena& workspace);
  // What the first layer's q, k and v read; fills the residual stream.
  LinearInput enter(Stream& stream, const EagleInput& in, const View<float, 2>& residual);
  LinearInput enter_eagle3(Stream& stream, const EagleInput& in, const View<float, 2>& residual);
  LinearInput enter_mtp(Stream& stream, const EagleInput& in, const View<float, 2>& residual);
  View<float, 2> embed(Stream& stream, View<const int32_t, 1> ids);  // in buffers_.embedded

  EagleSpec spec_;
  DecoderOptions options_;
  DeviceFacts device_;
  Model& target_;
  LayerSpec layer_;  // this rank's part of each
  VocabPart embed_part_;
  VocabPart vocab_;
  PackedWeight embedding_;  // without data: the model's
  Linear fc_;
  View<const float, 1> states_norm_;  // EAGLE-3 with EagleSpec::states_norm
  View<const float, 1> embed_norm_;   // MTP
  View<const float, 1> hidden_norm_;  // EAGLE-3, MTP
  std::vector<Layer> layers_;
  RankKvScales kv_scales_;  // with an 8-bit KV cache
  View<const float, 1> final_norm_;
  Linear head_;  // with spec_.head
  const int32_t* ids_ = nullptr;
  const int32_t* own_ids_ = nullptr;
  View<const float, 1> inv_freq_;
  Buffers buffers_;
};

}  // namespace warprow
