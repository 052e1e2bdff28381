// SPDX-License-Identifier: Apache-2.0
#include "models/layer_needs.h"

#include "base/check.h"

#include <utility>

namespace warprow {
std::vector<KvNeed> kv_needs(const DecoderSpec& spec,
                             const KvOptions& options,
                             std::span<const std::string> backends) {
  WR_CHECK(backends.empty() || backends.size() == spec.layers.size());
  std::vector<KvNeed> needs(spec.layers.size());
  for (size_t l = 0; l < needs.size(); ++l) {
    KvNeed& need = needs[l];
    if (spec.layers[l].has_state()) {
      need.kind = KvKind::kState;
      need.state_bytes = spec.layers[l].delta.state_floats() * static_cast<int64_t>(sizeof(float));
      need.dtype = DType::kF32;
      need.block_size = need.kernel_block_size = options.block_size;
      need.backend = "state_pages";
      continue;
    }
    const AttentionSpec& layer = spec.layers[l].attention;
    need.kind = layer.window > 0 ? KvKind::kSlidingWindow : KvKind::kFull;
    need.num_heads = layer.num_heads;
    need.num_kv_heads = layer.num_kv_heads;
    need.head_dim_k = layer.head_dim;
    need.head_dim_v = layer.head_dim_v;
    need.dtype = options.dtype;
    need.window = layer.window;
    need.block_size = options.block_size;
    need.kernel_block_size = options.kernel_block_size;
    if (!backends.empty()) {
      need.backend = backends[l];
    }
  }
  return needs;
}

Result<KvPlan> plan_kv(const DecoderSpec& spec,
                       const KvOptions& options,
                       std::span<const std::string> backends) {
  const std::vector<KvNeed> all = kv_needs(spec, options, backends);
  std::vector<KvNeed> needs;  // of the layers with keys and values
  for (size_t l = 0; l < all.size(); ++l) {
    if (spec.layers[l].attention.has_own_kv()) {
      needs.push_back(all[l]);
    }
  }
  Result<KvPlan> plan = plan_kv({&needs, 1}, options.layout);
  if (!plan) {
    return plan;
  }
  std::vector<LayerKvPlace> places;
  auto own = plan->layers.begin();
  for (const LayerSpec& layer : spec.layers) {
    const int32_t source = layer.attention.kv_source;
    places.push_back(source == kOwnKv ? *own++ : places[static_cast<size_t>(source)]);
  }
  plan->layers = std::move(places);
  return plan;
}

std::vector<AttentionNeed> attention_needs(std::span<const AttentionSpec> layers,
                                           const KvPlan& plan,
                                           int32_t group,
                                           const AttentionNeed& common) {
  const KvGroupSpec& kv = plan.groups[static_cast<size_t>(group)];
  std::vector<AttentionNeed> needs;
  for (size_t l = 0; l < layers.size(); ++l) {
    if (plan.layers[l].group != group) {
      continue;
    }
    AttentionNeed need = common;
    need.layer = static_cast<int32_t>(l);
    need.kv = kv;
    need.padded_pages = kv.layer_block_bytes() < KvCacheSpec{plan.groups, 0}.page_bytes();
    need.num_heads = layers[l].num_heads;
    need.sinks = layers[l].sinks;
    need.soft_cap = layers[l].soft_cap != 0.0F;
    need.output_gate = layers[l].output_gate;
    needs.push_back(need);
  }
  return needs;
}

}  // namespace warprow
