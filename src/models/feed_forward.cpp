// SPDX-License-Identifier: Apache-2.0
#include "models/feed_forward.h"

#include "kernels/activation/act_and_mul.h"
#include "kernels/activation/sigmoid_gate.h"
#include "kernels/cast/cast_rows.h"
#include "kernels/norm/rms_norm.h"
#include "layers/buffer_part.h"
#include "models/layer_parts.h"

#include <algorithm>

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
  return {layer.mode(), ffn.scores, ffn.normalise, ffn.gate_limit};
}

std::variant<GatedFeedForward, ExpertFeedForward> load(const LayerLoader& layer, DType act_dtype) {
  if (!layer.whole().ffn.has_experts()) {
    return GatedFeedForward(layer, act_dtype);
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
  return gate_up_.shape(
      act_dtype_,
      activation_ == Activation::kSilu ? LinearEpilogue::kSwiGlu : LinearEpilogue::kStore);
}

void GatedFeedForward::forward(Stream& stream,
                               const FeedForwardInput& in,
                               const View<float, 2>& residual,
                               const LinearWorkspace& linear,
                               const FeedForwardWorkspace& workspace) const {
  const int64_t toks = residual.shape[0];
  const LinearInput x = input_behind(stream, in, residual, linear);
  const ActView activated = part_of(workspace.activated, toks, intermediate_size_);
  if (activation_ == Activation::kSilu) {
    gate_up_.forward(stream, x, activated, LinearEpilogue::kSwiGlu, linear);
  } else {
    const ActView gate_up = part_of(linear.product, toks, 2 * int64_t{intermediate_size_});
    gate_up_.forward(stream, x, gate_up, LinearEpilogue::kStore, linear);
    gelu_and_mul(stream, {gate_up, activated});
  }
  join_.forward(stream, activated, residual, linear);
}

SharedExpert::SharedExpert(const LayerLoader& layer, DType act_dtype)
    : gate_up_(load_shared_gate_up(layer)),
      scale_(layer.loader().vector(
          {layer.name(layer.names().shared_scale), 1, layer.spec().hidden_size})),
      down_(layer.linear({layer.part(layer.names().shared_down,
                                     layer.spec().hidden_size,
                                     layer.whole().ffn.shared_size,
                                     layer.shards().ffn_out,
                                     false)})),
      intermediate_size_(layer.mine().ffn.shared_size),
      act_dtype_(act_dtype) {}

std::vector<LinearShape> SharedExpert::shapes(LinearEpilogue epilogue) const {
  return {gate_up_.shape(act_dtype_, LinearEpilogue::kSwiGlu), down_.shape(DType::kF32, epilogue)};
}

void SharedExpert::forward(Stream& stream,
                           const ActView& normed,
                           const View<float, 2>& y,
                           LinearEpilogue epilogue,
                           const LinearWorkspace& linear,
                           const FeedForwardWorkspace& workspace) const {
  const ActView activated = part_of(workspace.activated, normed.shape[0], intermediate_size_);
  gate_up_.forward(stream, {normed}, activated, LinearEpilogue::kSwiGlu, linear);
  sigmoid_gate(stream, {normed, scale_, activated});
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
  experts_.forward(stream, normed, sum, add, in.num_toks, linear, workspace.experts);
  if (!is_plain()) {
    join_product(stream, mode_, sum, residual);
  }
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
  return std::get<ExpertFeedForward>(kind_).shapes();
}

bool FeedForward::is_plain() const {
  const auto* gated = std::get_if<GatedFeedForward>(&kind_);
  return gated == nullptr ? std::get<ExpertFeedForward>(kind_).is_plain()
                          : gated->join().is_plain();
}

void FeedForward::lead_to(const DeviceFacts& device,
                          View<const float, 1> norm_weight,
                          const LinearShape& behind,
                          const LinearWorkspace& workspace) {
  if (auto* gated = std::get_if<GatedFeedForward>(&kind_)) {
    gated->join().lead_to(device, norm_weight, behind, workspace);
  }
}

const HalfNorm* FeedForward::next_norm(int64_t num_rows) const {
  const auto* gated = std::get_if<GatedFeedForward>(&kind_);
  return gated == nullptr ? nullptr : gated->join().next_norm(num_rows);
}

int32_t FeedForward::intermediate_size() const {
  return std::visit([](const auto& kind) { return kind.intermediate_size(); }, kind_);
}

ExpertsSize FeedForward::experts_size() const {
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
  return workspace;
}

}  // namespace warprow
