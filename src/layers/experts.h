// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "device/device.h"
#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/experts/expert_lists.h"
#include "kernels/experts/route_experts.h"
#include "layers/linear.h"
#include "layers/parameter_loader.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

// The sizes of a layer's experts, on this rank.
struct ExpertsSize {
  int32_t num_experts = 0;
  int32_t num_chosen = 0;  // by each token
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;  // of an expert
};

// Where a layer's experts are found. The rows of several tensors follow each other.
struct ExpertTensors {
  TensorSpec router;                // [num_experts, hidden_size]
  std::string choice_bias;          // [num_experts]; empty: none
  std::string scales;               // of their weights, [num_experts]; empty: none
  std::string router_bias;          // empty: none
  std::vector<TensorSpec> gate_up;  // of each expert its gate rows, then its up rows
  std::vector<TensorSpec> down;     // of each expert [hidden_size, intermediate_size]
  // Vectors in the order of the rows; empty: none.
  std::vector<TensorSpec> gate_up_bias;
  std::vector<TensorSpec> down_bias;
};

// How experts are chosen and computed; kernels/experts/route_experts.h says what the fields mean.
struct ExpertsMode {
  LinearMode linear;
  RouterScores scores = RouterScores::kSoftmax;
  bool normalise = false;
  int32_t num_groups = 1;
  int32_t chosen_groups = 1;
  float scale = 1.0F;
  bool gelu = false;        // in place of silu
  float gate_limit = 0.0F;  // as in kernels/experts/expert_linear.h
};

// Memory that the experts of all layers share, for the model's largest step.
struct ExpertsWorkspace {
  float* logits = nullptr;    // [T, num_experts]
  float* weights = nullptr;   // [T, num_chosen]
  int32_t* first = nullptr;   // [num_experts + 1]
  int32_t* slots = nullptr;   // [T * num_chosen]
  int32_t* places = nullptr;  // [T * num_chosen]
  int32_t* tiles = nullptr;   // [expert_tiles_room]  CUDA
  ActView gated;              // [T * num_chosen, intermediate_size]
  // [T * num_chosen, hidden_size]; on a CPU before that the products of gate and up
  ActView outputs;
  std::byte* scratch = nullptr;  // CPU
};

// largest: no layer's sizes are larger.
ExpertsWorkspace make_experts_workspace(Arena& arena,
                                        const DeviceFacts& device,
                                        DType act_dtype,
                                        int64_t max_toks,
                                        const ExpertsSize& largest);

// A layer's experts: each token's own, as a router chooses them, and their weighted sum. In memory all experts' gate
// and up rows are one matrix, and their down rows another.
//
// Owns: nothing; weights live in the loader's arena.
// Thread: the runner's.
class Experts {
 public:
  // Throws StartupError for tensors that are no such matrices.
  Experts(ParameterLoader& loader,
          const ExpertsSize& size,
          const ExpertTensors& tensors,
          const ExpertsMode& mode);

  [[nodiscard]] const ExpertsSize& size() const { return size_; }
  // The router's product, for which kernels prepare.
  [[nodiscard]] LinearShape router_shape() const;

  // Chooses each row's experts, from x [T, hidden_size], the rows after the router's norm. num_rows: dev [1] or null,
  // how many of the rows are real.
  void route(Stream& stream,
             const ConstActView& x,
             const int32_t* num_rows,
             const LinearWorkspace& linear_workspace,
             const ExpertsWorkspace& workspace) const;
  // y[t] = sum of the chosen experts of x[t], or with `add` y[t] += it. x [T, hidden_size], the rows after the norm. Of
  // rows that are not real y is not written. next_norm: a norm of y's rows to begin, or null.
  void forward(Stream& stream,
               const ConstActView& x,
               const View<float, 2>& y,
               bool add,
               const int32_t* num_rows,
               const ExpertsWorkspace& workspace,
               const HalfNorm* next_norm = nullptr) const;

 private:
  [[nodiscard]] ExpertLists lists(int64_t toks,
                                  const int32_t* num_rows,
                                  const ExpertsWorkspace& workspace) const;

  ExpertsSize size_;
  ExpertsMode mode_;
  Linear router_;
  View<const float, 1> choice_bias_;  // [num_experts] or empty
  View<const float, 1> scales_;       // [num_experts] or empty
  PackedWeight gate_up_;              // [num_experts * 2 * intermediate_size, hidden_size]
  PackedWeight down_;                 // [num_experts * hidden_size, intermediate_size]
  const float* gate_up_bias_ = nullptr;
  const float* down_bias_ = nullptr;
};

}  // namespace warprow
