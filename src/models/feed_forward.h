// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "device/device.h"
#include "layers/experts.h"
#include "layers/join.h"
#include "layers/linear.h"
#include "models/layer_loader.h"
#include "models/layer_spec.h"

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

namespace warprow {

// Memory that the feed-forwards of all layers share, for the model's largest step.
struct FeedForwardWorkspace {
  ActView activated;  // [T, intermediate_size]
  ExpertsWorkspace experts;
  // f32 [T, hidden_size]  the sum of experts that have norms of their own, or null
  float* of_experts = nullptr;
};

// What a feed-forward computes with, besides the residual stream.
struct FeedForwardInput {
  View<const float, 1> norm_weight;  // empty: no norm
  float norm_eps = 0.0F;
  const HalfNorm* half_norm = nullptr;  // that norm, begun by the join in front; else null
  const int32_t* num_toks = nullptr;    // ModelInput::num_toks
};

// What the product behind a norm reads: the residual stream and the norm, or without one the stream as activations.
LinearInput input_behind(Stream& stream,
                         const FeedForwardInput& in,
                         const View<float, 2>& residual,
                         const LinearWorkspace& workspace);

// One gated product that all tokens take.
class GatedFeedForward {
 public:
  GatedFeedForward(const LayerLoader& layer, DType act_dtype);

  [[nodiscard]] int32_t intermediate_size() const { return intermediate_size_; }
  // The product behind the norm.
  [[nodiscard]] LinearShape gate_shape() const;
  [[nodiscard]] Linear& gate_up() { return gate_up_; }
  [[nodiscard]] const Linear& gate_up() const { return gate_up_; }
  [[nodiscard]] Join& join() { return join_; }
  [[nodiscard]] const Join& join() const { return join_; }

  void forward(Stream& stream,
               const FeedForwardInput& in,
               const View<float, 2>& residual,
               const LinearWorkspace& linear,
               const FeedForwardWorkspace& workspace) const;

 private:
  Linear gate_up_;
  Activation activation_;
  Join join_;
  int32_t intermediate_size_;
  DType act_dtype_;
};

// An expert that all tokens take beside their own, perhaps times the sigmoid of a product.
class SharedExpert {
 public:
  SharedExpert(const LayerLoader& layer, DType act_dtype);

  [[nodiscard]] int32_t intermediate_size() const { return intermediate_size_; }
  // Of both products; the second stores or adds.
  [[nodiscard]] std::vector<LinearShape> shapes(LinearEpilogue epilogue) const;

  // normed: the rows after the norm. Stores to y or adds to it.
  void forward(Stream& stream,
               const ActView& normed,
               const View<float, 2>& y,
               LinearEpilogue epilogue,
               const LinearWorkspace& linear,
               const FeedForwardWorkspace& workspace) const;

 private:
  Linear gate_up_;
  View<const float, 1> scale_;  // [hidden_size] or empty
  Linear down_;
  Activation activation_;
  int32_t intermediate_size_;
  DType act_dtype_;
};

// The experts of each token, and perhaps a shared one.
class ExpertFeedForward {
 public:
  ExpertFeedForward(const LayerLoader& layer, DType act_dtype);

  [[nodiscard]] const Experts& experts() const { return experts_; }
  [[nodiscard]] bool is_plain() const { return mode_.is_plain(); }
  // Of the shared expert; 0 without.
  [[nodiscard]] int32_t intermediate_size() const {
    return shared_ ? shared_->intermediate_size() : 0;
  }
  [[nodiscard]] std::vector<LinearShape> shapes() const;
  // As Join::lead_to and next_norm. The sum over experts begins the norm if it is the residual's last summand.
  void lead_to(const DeviceFacts& device,
               View<const float, 1> norm_weight,
               const LinearShape& behind,
               const LinearWorkspace& workspace);
  [[nodiscard]] const HalfNorm* next_norm(int64_t num_rows) const {
    return halved_.has(num_rows) ? &next_ : nullptr;
  }

  void forward(Stream& stream,
               const FeedForwardInput& in,
               const View<float, 2>& residual,
               const LinearWorkspace& linear,
               const FeedForwardWorkspace& workspace) const;

 private:
  [[nodiscard]] LinearEpilogue shared_epilogue() const {
    return is_plain() ? LinearEpilogue::kAdd : LinearEpilogue::kStore;
  }

  Experts experts_;
  std::optional<SharedExpert> shared_;
  JoinMode mode_;
  HalfNorm next_;
  RowRange halved_;
};

// The experts of each token beside a shared one, each of the two with norms of its own (FfnSpec::own_norms).
class SplitFeedForward {
 public:
  SplitFeedForward(const LayerLoader& layer, DType act_dtype);

  [[nodiscard]] const Experts& experts() const { return experts_; }
  [[nodiscard]] int32_t intermediate_size() const { return shared_.intermediate_size(); }
  [[nodiscard]] std::vector<LinearShape> shapes() const;

  void forward(Stream& stream,
               const FeedForwardInput& in,
               const View<float, 2>& residual,
               const LinearWorkspace& linear,
               const FeedForwardWorkspace& workspace) const;

 private:
  // The sum over ranks of one of the two, after its norm.
  void finish(Stream& stream, const View<float, 2>& sum, const View<const float, 1>& norm) const;

  SharedExpert shared_;
  View<const float, 1> shared_post_norm_;  // all of [hidden_size]
  View<const float, 1> router_norm_;
  Experts experts_;
  View<const float, 1> experts_norm_;
  View<const float, 1> experts_post_norm_;
  JoinMode mode_;
};

// What a layer adds to the residual stream behind its attention, with the norm in front and the join behind.
//
// Owns: nothing; weights and workspace are the model's.
// Thread: the runner's.
class FeedForward {
 public:
  // Reads the layer's parameters.
  FeedForward(const LayerLoader& layer, DType act_dtype);

  // The product that follows the norm, for which the join in front may begin that norm; none: the norm is an operation
  // of its own.
  [[nodiscard]] std::optional<LinearShape> first_shape() const;
  // The operations for which kernels prepare.
  [[nodiscard]] std::vector<LinearShape> shapes() const;
  // The gated product that all tokens take; null: the layer has experts.
  [[nodiscard]] GatedFeedForward* gated() { return std::get_if<GatedFeedForward>(&kind_); }
  [[nodiscard]] const GatedFeedForward* gated() const {
    return std::get_if<GatedFeedForward>(&kind_);
  }
  // Whether forward needs LinearWorkspace::joined.
  [[nodiscard]] bool is_plain() const;
  // Whether it needs FeedForwardWorkspace::of_experts.
  [[nodiscard]] bool has_split() const;
  // As Join::lead_to and next_norm.
  void lead_to(const DeviceFacts& device,
               View<const float, 1> norm_weight,
               const LinearShape& behind,
               const LinearWorkspace& workspace);
  [[nodiscard]] const HalfNorm* next_norm(int64_t num_rows) const;

  // Elements of activations that a token needs between gate and down, those of its own experts aside.
  [[nodiscard]] int32_t intermediate_size() const;
  // The sizes of its experts; of no experts without.
  [[nodiscard]] ExpertsSize experts_size() const;

  void forward(Stream& stream,
               const FeedForwardInput& in,
               const View<float, 2>& residual,
               const LinearWorkspace& linear,
               const FeedForwardWorkspace& workspace) const;

 private:
  std::variant<GatedFeedForward, ExpertFeedForward, SplitFeedForward> kind_;
};

// Workspace for all of these layers.
FeedForwardWorkspace make_feed_forward_workspace(Arena& arena,
                                                 const DeviceFacts& device,
                                                 DType act_dtype,
                                                 int64_t max_toks,
                                                 std::span<const FeedForward* const> layers);

}  // namespace warprow
