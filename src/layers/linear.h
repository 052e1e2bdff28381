// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/linear/linear.h"
#include "layers/linear_delta.h"
#include "layers/parameter_loader.h"

#include <cstdint>
#include <vector>

namespace warprow {

// One part of a linear layer's outputs: a matrix of the checkpoint and perhaps a bias.
struct LinearPart {
  TensorSpec weight;
  std::string bias;  // tensor name; empty: none
};

// How a model's products are computed (kernels/linear/linear.h).
struct LinearMode {
  ActFormat act = ActFormat::kF32;
  bool batch_invariant = false;
};

// Memory that every linear layer of a model shares, for its largest step.
struct LinearWorkspace {
  ActView normed;   // [max_num_toks, most inputs of a layer after a norm]
  ActView product;  // [max_num_toks, most outputs of a layer that gates or adds]
  float* squares =
      nullptr;     // [half_norm_squares of max_num_toks and most inputs of a layer after a norm]
  ActView joined;  // f32 [max_num_toks, hidden_size]  a product of Join, or empty
  std::byte* scratch = nullptr;  // linear_scratch_bytes
  LinearDelta* delta = nullptr;  // what steps add to products, or null
  // f32 [rows, most outputs of a gate and up]  room for their product where a delta is added to it; empty: `product` has
  // float32 and room for all tokens
  ActView gated;
};

// The input of a linear layer: x itself, or its RMS norm.
struct LinearInput {
  ConstActView x;
  View<const float, 1> norm_weight = {};  // empty: x itself
  float norm_eps = 0.0F;
  const HalfNorm* half_norm = nullptr;  // that norm, begun by the previous layer; else null
};

// A linear layer of several parts whose outputs lie side by side. In memory they are one matrix if their formats
// become the same kind of rows on the device (ParameterLoader::stacks). Otherwise each stays a matrix of its own,
// since GGUF mixes formats within Q, K and V.
//
// Owns: nothing; weights live in the loader's arena.
// Thread: the runner's.
class Linear {
 public:
  Linear() = default;
  // Loads the parts in order; output columns follow each other.
  Linear(ParameterLoader& loader, const std::vector<LinearPart>& parts, const LinearMode& mode);
  // A layer on a matrix that is already loaded (a head tied to the embedding).
  Linear(const PackedWeight& weight, const LinearMode& mode);

  [[nodiscard]] int64_t num_outputs() const { return num_outputs_; }
  // Inputs of the layer.
  [[nodiscard]] int64_t num_inputs() const { return args_.segments[0].w.k; }
  // The matrix and bias of a layer of one part.
  [[nodiscard]] const LinearSegment& only_segment() const;
  // Makes it the site of this number for deltas.
  void set_site(int32_t site) { site_ = site; }
  // What kernels need in order to prepare for calls with this output and epilogue.
  [[nodiscard]] LinearShape shape(DType y, LinearEpilogue epilogue) const;
  // y[t] = W x[t] + b, or as the epilogue specifies (kernels/linear/linear.h). If next_norm is not null, a sum
  // begins that norm for the rows it completes.
  void forward(Stream& stream,
               const LinearInput& in,
               ActView y,
               LinearEpilogue epilogue,
               const LinearWorkspace& workspace,
               const HalfNorm* next_norm = nullptr) const;
  // The largest of each row's outputs in place of them (LinearEpilogue::kMax), for rows for which kernels have that.
  [[nodiscard]] bool leaves_maxima(const DeviceFacts& device, int64_t num_rows) const;
  void forward_maxima(Stream& stream,
                      const ConstActView& x,
                      const View<OutputMax, 2>& maxima,
                      const LinearWorkspace& workspace) const;

 private:
  void load_stacked(ParameterLoader& loader,
                    const std::vector<TensorSpec>& weights,
                    std::vector<float> bias);  // empty: none
  void load_segments(ParameterLoader& loader, const std::vector<LinearPart>& parts);
  void run_with_delta(Stream& stream,
                      const LinearArgs& args,
                      const LinearWorkspace& workspace) const;
  void run_gated_with_delta(Stream& stream,
                            const LinearArgs& args,
                            const LinearWorkspace& workspace) const;

  LinearArgs args_;  // without x and y
  int64_t num_outputs_ = 0;
  int32_t site_ = -1;  // -1: nothing is added to its products
};

}  // namespace warprow
