// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "device/stream.h"
#include "device/view.h"
#include "kv/kv_planner.h"
#include "layers/attention.h"
#include "layers/linear.h"
#include "models/decoder_spec.h"

#include <cstdint>
#include <vector>

namespace warprow {

// What a forward is fed.
struct DecoderInput {
  View<const int32_t, 1> input_ids;  // [T]
  View<const int32_t, 2> positions;  // [P, T], P = 1 (3 with multimodal rope)
};

// What a forward yields, at fixed addresses.
struct DecoderOutput {
  ActView hidden;  // [T, hidden_size], after the final norm
};

struct DecoderOptions {
  LinearMode linear;
  DType act_dtype = DType::kF32;  // of activations; the residual stream is float32 always
  int32_t max_num_toks = 0;       // the largest step
};

// The decoder-only transformer, once for every architecture: embedding, pre-norm layers with
// attention and SwiGLU, final norm; logits are a call of their own on gathered rows.
//
// Owns: nothing on the device; weights and activations lie in the arenas it was given.
// Thread: the runner's.
// Invariant: a forward of T <= max_num_toks touches the first T rows of its buffers only.
class Decoder {
 public:
  Decoder(const DecoderSpec& spec,
          const KvPlan& kv,
          const DecoderOptions& options,
          ParameterLoader& loader,
          Arena& workspace);

  [[nodiscard]] const DecoderSpec& spec() const { return spec_; }
  [[nodiscard]] DType act_dtype() const { return options_.act_dtype; }
  // Start-up, once the weights are there: lets kernels that choose among variants do so for this
  // model's shapes. The device must be idle.
  void prepare_kernels() const;
  // Needs a ForwardContext on the stream.
  DecoderOutput forward(Stream& stream, const DecoderInput& in);
  // logits[i] = head * hidden[i]; hidden [n, hidden_size], logits dev f32 [n, vocab_size].
  void compute_logits(Stream& stream, ConstActView hidden, View<float, 2> logits);

 private:
  struct Layer {
    View<const float, 1> input_norm;
    Linear qkv;
    AttentionLayer attention;
    Linear o;
    View<const float, 1> post_norm;
    Linear gate_up;
    Linear down;
  };
  // Activations [max_num_toks, ...]; rows past a step's tokens hold leftovers and are never read.
  struct Buffers {
    float* residual = nullptr;  // [T, hidden_size]
    ActView hidden;             // [T, hidden_size]  after the final norm
    ActView qkv;                // [T, qkv_size]
    ActView attention;          // [T, q_size]
    ActView activated;          // [T, intermediate_size]
    float* cos = nullptr;       // [T, rot_dim / 2]
    float* sin = nullptr;       // [T, rot_dim / 2]
    LinearWorkspace linear;
  };

  Layer load_layer(ParameterLoader& loader, int32_t index, const LayerKvPlace& place) const;
  void allocate_buffers(Arena& workspace);

  DecoderSpec spec_;
  DecoderOptions options_;
  DeviceKind device_;
  PackedWeight embedding_;
  std::vector<Layer> layers_;
  View<const float, 1> final_norm_;
  View<const float, 1> inv_freq_;
  Linear head_;
  Buffers buffers_;
};

}  // namespace warprow
