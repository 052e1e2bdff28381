// SPDX-License-Identifier: Apache-2.0
#include "models/feed_forward.h"

#include "kernels/activation/act_and_mul.h"
#include "kernels/activation/sigmoid_gate.h"
#include "kernels/add/add_rows.h"
#include "kernels/cast/cast_rows.h"
#include "kernels/linear/half_norm.h"
#include "kernels/norm/rms_norm.h"
#include "layers/buffer_part.h"
#include "models/layer_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace warprow {
namespace {

Linear load_shared_gate_up(const LayerLoader& layer) {
  const DecoderSpec& spec = layer.spec();
  const ShardRule& shard = layer.shards().ffn_in;
  const int64_t inner = layer.whole().ffn.shared_size;
  return layer.linear(
      {layer.part(layer.names().shared_gate, inner, spec.hidden_size, shard, spec.mlp_bias),
       layer.part(layer.names().shared_up, inner, spec.hidden_size, shard, spec.mlp_bias)});
}

ExpertsSize size_of(const LayerLoader& layer) {
  const FfnSpec& ffn = layer.mine().ffn;
  return {ffn.num_experts, ffn.experts_per_token, layer.spec().hidden_size, ffn.intermediate_size};
}

ExpertsMode mode_of(const LayerLoader& layer) {
  const FfnSpec& ffn = layer.whole().ffn;
  return {layer.mode(),
          ffn.scores,
          ffn.normalise,
          ffn.num_groups,
          ffn.chosen_groups,
          ffn.weights_scale,
          ffn.activation == Activation::kGeluTanh,
          ffn.gate_limit};
}

View<const float, 1> load_shared_scale(const LayerLoader& layer) {
  return layer.whole().ffn.shared_gate
             ? layer.loader().vector(
                   {layer.name(layer.names().shared_scale), 1, layer.spec().hidden_size})
             : View<const float, 1>();
}

// The norm in front of a router: without weights, then times those of the checkpoint and 1 / sqrt(hidden_size).
View<const float, 1> load_router_norm(const LayerLoader& layer) {
  const int64_t hidden = layer.spec().hidden_size;
  std::vector<float> weights =
      layer.loader().read_vector({layer.name(layer.names().router_norm), 1, hidden});
  const float scale = 1.0F / std::sqrt(static_cast<float>(hidden));
  for (float& weight : weights) {
    weight *= scale;
  }
  return layer.loader().constants(std::move(weights));
}

LinearEpilogue gate_epilogue(Activation activation) {
  return activation == Activation::kSilu ? LinearEpilogue::kSwiGlu : LinearEpilogue::kStore;
}

// activated = activation(gate x) * up x.
void compute_gated(Stream& stream,
                   const Linear& gate_up,
                   const LinearInput& x,
                   Activation activation,
                   const ActView& activated,
                   const LinearWorkspace& linear) {
  if (activation == Activation::kSilu) {
    gate_up.forward(stream, x, activated, LinearEpilogue::kSwiGlu, linear);
    return;
  }
  const ActView product = part_of(linear.product, activated.shape[0], 2 * activated.shape[1]);
  gate_up.forward(stream, x, product, LinearEpilogue::kStore, linear);
  gelu_and_mul(stream, {product, activated});
}

std::variant<GatedFeedForward, ExpertFeedForward, SplitFeedForward> load(const LayerLoader& layer,
                                                                         DType act_dtype) {
  if (!layer.whole().ffn.has_experts()) {
    return GatedFeedForward(layer, act_dtype);
  }
  if (layer.whole().ffn.own_norms) {
    return SplitFeedForward(layer, act_dtype);
  }
  return ExpertFeedForward(layer, act_dtype);
}

}  // namespace

LinearInput input_behind(Stream& stream,
                         const FeedForwardInput& in,
                         const View<float, 2>& residual,
                         const LinearWorkspace& workspace) {
  if (!in.norm_weight.empty()) {
    return {residual, in.norm_weight, in.norm_eps, in.half_norm};
  }
  if (workspace.normed.dtype == DType::kF32) {
    return {residual};
  }
  const ActView rows = part_of(workspace.normed, residual.shape[0], residual.shape[1]);
  cast_rows(stream, {residual, rows});
  return {rows};
}

GatedFeedForward::GatedFeedForward(const LayerLoader& layer, DType act_dtype)
    : gate_up_(layer.linear(gate_up_parts(layer.spec(), layer.index(), layer.shards()))),
      activation_(layer.whole().ffn.activation),
      join_(layer.join(layer.names().down,
                       layer.whole().ffn.intermediate_size,
                       layer.shards().ffn_out,
                       layer.spec().mlp_bias,
                       layer.names().ffn_post_norm)),
      intermediate_size_(layer.mine().ffn.intermediate_size),
      act_dtype_(act_dtype) {}

LinearShape GatedFeedForward::gate_shape() const {
  return gate_up_.shape(act_dtype_, gate_epilogue(activation_));
}

void GatedFeedForward::forward(Stream& stream,
                               const FeedForwardInput& in,
                               const View<float, 2>& residual,
                               const LinearWorkspace& linear,
                               const FeedForwardWorkspace& workspace) const {
  const int64_t toks = residual.shape[0];
  const LinearInput x = input_behind(stream, in, residual, linear);
  const ActView activated = part_of(workspace.activated, toks, intermediate_size_);
  compute_gated(stream, gate_up_, x, activation_, activated, linear);
  join_.forward(stream, activated, residual, linear);
}

SharedExpert::SharedExpert(const LayerLoader& layer, DType act_dtype)
    : gate_up_(load_shared_gate_up(layer)),
      scale_(load_shared_scale(layer)),
      down_(layer.linear({layer.part(layer.names().shared_down,
                                     layer.spec().hidden_size,
                                     layer.whole().ffn.shared_size,
                                     layer.shards().ffn_out,
                                     false)})),
      activation_(layer.whole().ffn.activation),
      intermediate_size_(layer.mine().ffn.shared_size),
      act_dtype_(act_dtype) {}

std::vector<LinearShape> SharedExpert::shapes(LinearEpilogue epilogue) const {
  return {gate_up_.shape(act_dtype_, gate_epilogue(activation_)),
          down_.shape(DType::kF32, epilogue)};
}

void SharedExpert::forward(Stream& stream,
                           const ActView& normed,
                           const View<float, 2>& y,
                           LinearEpilogue epilogue,
                           const LinearWorkspace& linear,
                           const FeedForwardWorkspace& workspace) const {
  const ActView activated = part_of(workspace.activated, normed.shape[0], intermediate_size_);
  compute_gated(stream, gate_up_, {normed}, activation_, activated, linear);
  if (!scale_.empty()) {
    sigmoid_gate(stream, {normed, scale_, activated});
  }
  down_.forward(stream, {activated}, y, epilogue, linear);
}

ExpertFeedForward::ExpertFeedForward(const LayerLoader& layer, DType act_dtype)
    : experts_(layer.loader(), size_of(layer), layer.expert_tensors(), mode_of(layer)),
      mode_(layer.join_mode(layer.names().ffn_post_norm)) {
  if (layer.whole().ffn.shared_size > 0) {
    shared_.emplace(layer, act_dtype);
  }
}

std::vector<LinearShape> ExpertFeedForward::shapes() const {
  std::vector<LinearShape> shapes =
      shared_ ? shared_->shapes(shared_epilogue()) : std::vector<LinearShape>();
  shapes.push_back(experts_.router_shape());
  return shapes;
}

void ExpertFeedForward::lead_to(const DeviceFacts& device,
                                View<const float, 1> norm_weight,
                                const LinearShape& behind,
                                const LinearWorkspace& workspace) {
  if (is_plain() && norm_weight.shape[0] % 64 == 0) {
    next_ = {norm_weight, workspace.normed, workspace.squares};
    halved_ = halved_norm_rows(device, behind);
  }
}

void ExpertFeedForward::forward(Stream& stream,
                                const FeedForwardInput& in,
                                const View<float, 2>& residual,
                                const LinearWorkspace& linear,
                                const FeedForwardWorkspace& workspace) const {
  const ActView normed = part_of(linear.normed, residual.shape[0], residual.shape[1]);
  rms_norm(stream, {residual, in.norm_weight, normed, in.norm_eps});
  const View<float, 2> sum = is_plain() ? residual : linear.joined.rows(0, residual.shape[0]).f32();
  if (shared_) {
    shared_->forward(stream, normed, sum, shared_epilogue(), linear, workspace);
  }
  const bool add = is_plain() || shared_;
  experts_.route(stream, normed, in.num_toks, linear, workspace.experts);
  experts_.forward(
      stream, normed, sum, add, in.num_toks, workspace.experts, next_norm(residual.shape[0]));
  if (!is_plain()) {
    join_product(stream, mode_, sum, residual);
  }
}

SplitFeedForward::SplitFeedForward(const LayerLoader& layer, DType act_dtype)
    : shared_(layer, act_dtype),
      shared_post_norm_(layer.norm(layer.names().shared_post_norm, layer.spec().hidden_size)),
      router_norm_(load_router_norm(layer)),
      experts_(layer.loader(), size_of(layer), layer.expert_tensors(), mode_of(layer)),
      experts_norm_(layer.norm(layer.names().experts_norm, layer.spec().hidden_size)),
      experts_post_norm_(layer.norm(layer.names().experts_post_norm, layer.spec().hidden_size)),
      mode_(layer.join_mode(layer.names().ffn_post_norm)) {}

std::vector<LinearShape> SplitFeedForward::shapes() const {
  std::vector<LinearShape> shapes = shared_.shapes(LinearEpilogue::kStore);
  shapes.push_back(experts_.router_shape());
  return shapes;
}

void SplitFeedForward::finish(Stream& stream,
                              const View<float, 2>& sum,
                              const View<const float, 1>& norm) const {
  if (!mode_.ranks.alone()) {
    mode_.ranks.comm->all_reduce(stream, sum);
  }
  rms_norm(stream, {sum, norm, sum, mode_.norm_eps});
}

void SplitFeedForward::forward(Stream& stream,
                               const FeedForwardInput& in,
                               const View<float, 2>& residual,
                               const LinearWorkspace& linear,
                               const FeedForwardWorkspace& workspace) const {
  const int64_t toks = residual.shape[0];
  const ActView normed = part_of(linear.normed, toks, residual.shape[1]);
  const View<float, 2> of_shared = linear.joined.rows(0, toks).f32();
  const View<float, 2> of_experts = make_view(workspace.of_experts, toks, residual.shape[1]);
  rms_norm(stream, {residual, in.norm_weight, normed, in.norm_eps});
  shared_.forward(stream, normed, of_shared, LinearEpilogue::kStore, linear, workspace);
  finish(stream, of_shared, shared_post_norm_);
  rms_norm(stream, {residual, router_norm_, normed, in.norm_eps});
  experts_.route(stream, normed, in.num_toks, linear, workspace.experts);
  rms_norm(stream, {residual, experts_norm_, normed, in.norm_eps});
  experts_.forward(stream, normed, of_experts, false, in.num_toks, workspace.experts);
  finish(stream, of_experts, experts_post_norm_);
  add_rows(stream, {of_experts, of_shared});
  JoinMode whole = mode_;
  whole.ranks = {};
  join_product(stream, whole, of_shared, residual);
}

FeedForward::FeedForward(const LayerLoader& layer, DType act_dtype)
    : kind_(load(layer, act_dtype)) {}

std::optional<LinearShape> FeedForward::first_shape() const {
  const auto* gated = std::get_if<GatedFeedForward>(&kind_);
  return gated == nullptr ? std::nullopt : std::optional(gated->gate_shape());
}

std::vector<LinearShape> FeedForward::shapes() const {
  if (const auto* gated = std::get_if<GatedFeedForward>(&kind_)) {
    return {gated->gate_shape(), gated->join().shape()};
  }
  if (const auto* split = std::get_if<SplitFeedForward>(&kind_)) {
    return split->shapes();
  }
  return std::get<ExpertFeedForward>(kind_).shapes();
}

bool FeedForward::has_split() const { return std::holds_alternative<SplitFeedForward>(kind_); }

bool FeedForward::is_plain() const {
  if (const auto* gated = std::get_if<GatedFeedForward>(&kind_)) {
    return gated->join().is_plain();
  }
  const auto* experts = std::get_if<ExpertFeedForward>(&kind_);
  return experts != nullptr && experts->is_plain();
}

void FeedForward::lead_to(const DeviceFacts& device,
                          View<const float, 1> norm_weight,
                          const LinearShape& behind,
                          const LinearWorkspace& workspace) {
  if (auto* gated = std::get_if<GatedFeedForward>(&kind_)) {
    gated->join().lead_to(device, norm_weight, behind, workspace);
  } else if (auto* experts = std::get_if<ExpertFeedForward>(&kind_)) {
    experts->lead_to(device, norm_weight, behind, workspace);
  }
}

const HalfNorm* FeedForward::next_norm(int64_t num_rows) const {
  if (const auto* experts = std::get_if<ExpertFeedForward>(&kind_)) {
    return experts->next_norm(num_rows);
  }
  const auto* gated = std::get_if<GatedFeedForward>(&kind_);
  return gated == nullptr ? nullptr : gated->join().next_norm(num_rows);
}

int32_t FeedForward::intermediate_size() const {
  return std::visit([](const auto& kind) { return kind.intermediate_size(); }, kind_);
}

ExpertsSize FeedForward::experts_size() const {
  if (const auto* split = std::get_if<SplitFeedForward>(&kind_)) {
    return split->experts().size();
  }
  const auto* experts = std::get_if<ExpertFeedForward>(&kind_);
  return experts == nullptr ? ExpertsSize() : experts->experts().size();
}

void FeedForward::forward(Stream& stream,
                          const FeedForwardInput& in,
                          const View<float, 2>& residual,
                          const LinearWorkspace& linear,
                          const FeedForwardWorkspace& workspace) const {
  std::visit([&](const auto& kind) { kind.forward(stream, in, residual, linear, workspace); },
             kind_);
}

FeedForwardWorkspace make_feed_forward_workspace(Arena& arena,
                                                 const DeviceFacts& device,
                                                 DType act_dtype,
                                                 int64_t max_toks,
                                                 std::span<const FeedForward* const> layers) {
  int64_t intermediate = 0;
  ExpertsSize largest;
  for (const FeedForward* layer : layers) {
    intermediate = std::max<int64_t>(intermediate, layer->intermediate_size());
    const ExpertsSize size = layer->experts_size();
    largest.num_experts = std::max(largest.num_experts, size.num_experts);
    largest.num_chosen = std::max(largest.num_chosen, size.num_chosen);
    largest.hidden_size = std::max(largest.hidden_size, size.hidden_size);
    largest.intermediate_size = std::max(largest.intermediate_size, size.intermediate_size);
  }
  FeedForwardWorkspace workspace;
  const size_t bytes = static_cast<size_t>(max_toks * intermediate) * dtype_bytes(act_dtype);
  workspace.activated = {act_dtype, arena.alloc_bytes(bytes), max_toks, intermediate};
  if (largest.num_experts > 0) {
    workspace.experts = make_experts_workspace(arena, device, act_dtype, max_toks, largest);
  }
  if (std::ranges::any_of(layers, [](const FeedForward* layer) { return layer->has_split(); })) {
    workspace.of_experts = arena.alloc<float>(max_toks * largest.hidden_size);
  }
  return workspace;
}

}  // namespace warprow
