// SPDX-License-Identifier: Apache-2.0
#include "layers/experts.h"

#include "base/check.h"
#include "kernels/experts/combine_experts.h"
#include "kernels/experts/expert_linear.h"
#include "layers/buffer_part.h"

#include <algorithm>
#include <utility>

namespace warprow {
namespace {

View<const float, 1> load_vector(ParameterLoader& loader, const std::string& name, int32_t size) {
  return name.empty() ? View<const float, 1>() : loader.vector({name, 1, size});
}

// Tokens are routed by unrounded activations: rounding could turn a close choice.
LinearMode router_mode(const LinearMode& mode) {
  LinearMode exact = mode;
  exact.act = ActFormat::kF32;
  return exact;
}

// The vectors one after the other; null if there are none.
const float* load_biases(ParameterLoader& loader, const std::vector<TensorSpec>& biases) {
  std::vector<float> all;
  for (const TensorSpec& bias : biases) {
    const std::vector<float> values = loader.read_vector(bias);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all.empty() ? nullptr : loader.constants(std::move(all)).data;
}

}  // namespace

ExpertsWorkspace make_experts_workspace(Arena& arena,
                                        const DeviceFacts& device,
                                        DType act_dtype,
                                        int64_t max_toks,
                                        const ExpertsSize& largest) {
  const int64_t slots = max_toks * largest.num_chosen;
  const int64_t inner = largest.intermediate_size;
  const int64_t hidden = largest.hidden_size;
  const bool on_cpu = device.kind == DeviceKind::kCpu;
  const auto activations = [&](int64_t width) {
    const size_t bytes = static_cast<size_t>(slots * width) * dtype_bytes(act_dtype);
    return ActView(act_dtype, arena.alloc_bytes(bytes), slots, width);
  };
  ExpertsWorkspace workspace;
  workspace.logits = arena.alloc<float>(max_toks * largest.num_experts);
  workspace.weights = arena.alloc<float>(slots);
  workspace.first = arena.alloc<int32_t>(int64_t{largest.num_experts} + 1);
  workspace.slots = arena.alloc<int32_t>(slots);
  workspace.places = arena.alloc<int32_t>(slots);
  if (!on_cpu) {
    workspace.tiles =
        arena.alloc<int32_t>(expert_tiles_room(max_toks, largest.num_chosen, largest.num_experts));
  }
  workspace.gated = activations(inner);
  workspace.outputs = activations(on_cpu ? std::max(2 * inner, hidden) : hidden);
  if (on_cpu) {
    workspace.scratch =
        arena.alloc_bytes(linear_scratch_bytes(device, slots, std::max(inner, hidden)));
  }
  return workspace;
}

Experts::Experts(ParameterLoader& loader,
                 const ExpertsSize& size,
                 const ExpertTensors& tensors,
                 const ExpertsMode& mode)
    : size_(size),
      mode_(mode),
      router_(loader, {{tensors.router, tensors.router_bias}}, router_mode(mode.linear)),
      choice_bias_(load_vector(loader, tensors.choice_bias, size.num_experts)),
      scales_(load_vector(loader, tensors.scales, size.num_experts)),
      gate_up_(loader.stacked(tensors.gate_up)),
      down_(loader.stacked(tensors.down)),
      gate_up_bias_(load_biases(loader, tensors.gate_up_bias)),
      down_bias_(load_biases(loader, tensors.down_bias)) {
  WR_CHECK_EQ(int64_t{gate_up_.n}, int64_t{2} * size.num_experts * size.intermediate_size);
  WR_CHECK_EQ(int64_t{down_.n}, int64_t{size.num_experts} * size.hidden_size);
}

LinearShape Experts::router_shape() const {
  return router_.shape(DType::kF32, LinearEpilogue::kStore);
}

ExpertLists Experts::lists(int64_t toks,
                           const int32_t* num_rows,
                           const ExpertsWorkspace& workspace) const {
  const int64_t slots = toks * size_.num_chosen;
  return {size_.num_experts,
          size_.num_chosen,
          make_view(workspace.first, int64_t{size_.num_experts} + 1),
          make_view(workspace.slots, slots),
          make_view(workspace.places, slots),
          num_rows,
          make_view(workspace.tiles,
                    workspace.tiles == nullptr
                        ? 0
                        : expert_tiles_room(toks, size_.num_chosen, size_.num_experts)),
          gate_up_.kind == PackedKind::kBF16 ? down_.kind : gate_up_.kind};
}

void Experts::route(Stream& stream,
                    const ConstActView& x,
                    const int32_t* num_rows,
                    const LinearWorkspace& linear_workspace,
                    const ExpertsWorkspace& workspace) const {
  const int64_t toks = x.shape[0];
  const View<float, 2> logits = make_view(workspace.logits, toks, int64_t{size_.num_experts});
  RouterProduct product;
  if (routes_with_product(
          stream.device().facts(), router_shape(), toks, size_.num_chosen, mode_.num_groups)) {
    const LinearSegment& router = router_.only_segment();
    product = {x, router.w, router.bias};
  } else {
    router_.forward(stream, {x}, logits, LinearEpilogue::kStore, linear_workspace);
  }
  route_experts(stream,
                {logits,
                 make_view(workspace.weights, toks, int64_t{size_.num_chosen}),
                 lists(toks, num_rows, workspace),
                 mode_.scores,
                 mode_.normalise,
                 choice_bias_,
                 mode_.num_groups,
                 mode_.chosen_groups,
                 mode_.scale,
                 scales_,
                 product});
}

void Experts::forward(Stream& stream,
                      const ConstActView& x,
                      const View<float, 2>& y,
                      bool add,
                      const int32_t* num_rows,
                      const ExpertsWorkspace& workspace,
                      const HalfNorm* next_norm) const {
  const int64_t toks = x.shape[0];
  const int64_t slots = toks * size_.num_chosen;
  const ExpertLists lists = this->lists(toks, num_rows, workspace);
  const View<const float, 2> weights =
      make_view(workspace.weights, toks, int64_t{size_.num_chosen});
  ExpertLinearArgs inner;
  inner.x = x;
  inner.x_by_row = true;
  inner.w = gate_up_;
  inner.n = 2 * size_.intermediate_size;
  inner.bias = gate_up_bias_;
  inner.gate_limit = mode_.gate_limit;
  inner.y = part_of(workspace.gated, slots, size_.intermediate_size);
  inner.epilogue = LinearEpilogue::kSwiGlu;
  inner.act = mode_.linear.act;
  inner.gelu = mode_.gelu;
  inner.lists = lists;
  inner.product = part_of(workspace.outputs, slots, inner.n);
  inner.gathered = part_of(workspace.outputs, slots, size_.hidden_size);
  inner.scratch = workspace.scratch;
  expert_linear(stream, inner);

  ExpertLinearArgs outer;
  outer.x = inner.y;
  outer.w = down_;
  outer.n = size_.hidden_size;
  outer.bias = down_bias_;
  outer.y = part_of(workspace.outputs, slots, size_.hidden_size);
  outer.act = mode_.linear.act;
  outer.lists = lists;
  outer.scratch = workspace.scratch;
  expert_linear(stream, outer);
  combine_experts(stream, {outer.y, weights, y, lists, add, next_norm});
}

}  // namespace warprow
