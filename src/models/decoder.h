// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "device/stream.h"
#include "device/view.h"
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
  View<float, 2> hidden;  // dev f32 [T, hidden_size], after the final norm
};

// How activations meet quantised weights.
struct DecoderOptions {
  ActFormat act = ActFormat::kF32;
  int32_t max_num_toks = 0;  // the largest step
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
  // Needs a ForwardContext on the stream.
  DecoderOutput forward(Stream& stream, const DecoderInput& in);
  // logits[i] = head * hidden[i]; hidden [n, hidden_size], logits [n, vocab_size].
  void compute_logits(Stream& stream, View<const float, 2> hidden, View<float, 2> logits);

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
  // Activations, dev f32, [max_num_toks, ...]; rows past a step's tokens hold leftovers and are
  // never read.
  struct Buffers {
    float* residual = nullptr;   // [T, hidden_size]
    float* hidden = nullptr;     // [T, hidden_size]
    float* normed = nullptr;     // [T, hidden_size]
    float* qkv = nullptr;        // [T, qkv_size]
    float* attention = nullptr;  // [T, q_size]
    float* gate_up = nullptr;    // [T, 2 * intermediate_size]
    float* activated = nullptr;  // [T, intermediate_size]
    float* cos = nullptr;        // [T, rot_dim / 2]
    float* sin = nullptr;        // [T, rot_dim / 2]
    std::byte* scratch = nullptr;
  };

  Layer load_layer(ParameterLoader& loader, int32_t index, const LayerKvPlace& place) const;
  void allocate_buffers(Arena& workspace);
  void norm(Stream& stream,
            View<const float, 2> x,
            View<float, 2> residual,
            View<const float, 1> weight,
            View<float, 2> out) const;

  DecoderSpec spec_;
  DecoderOptions options_;
  PackedWeight embedding_;
  std::vector<Layer> layers_;
  View<const float, 1> final_norm_;
  View<const float, 1> inv_freq_;
  Linear head_;
  Buffers buffers_;
};

}  // namespace warprow
