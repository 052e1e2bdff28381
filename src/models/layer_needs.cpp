// SPDX-License-Identifier: Apache-2.0
#include "models/layer_needs.h"

#include "base/check.h"

namespace warprow {
namespace {

// What tells a layer's attention from another's.
struct LayerShape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t window = 0;
};
LayerShape shape_of(const DecoderSpec& spec, size_t layer) {
  return {spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.layers[layer].window};
}

}  // namespace

std::vector<KvNeed> kv_needs(const DecoderSpec& spec,
                             const KvWish& wish,
                             std::span<const std::string> backends) {
  WR_CHECK(backends.empty() || backends.size() == spec.layers.size());
  std::vector<KvNeed> needs(spec.layers.size());
  for (size_t l = 0; l < needs.size(); ++l) {
    const LayerShape shape = shape_of(spec, l);
    KvNeed& need = needs[l];
    need.kind = shape.window > 0 ? KvKind::kSlidingWindow : KvKind::kFull;
    need.num_heads = shape.num_heads;
    need.num_kv_heads = shape.num_kv_heads;
    need.head_dim_k = need.head_dim_v = shape.head_dim;
    need.dtype = wish.dtype;
    need.window = shape.window;
    need.block_size = wish.block_size;
    need.kernel_block_size = wish.kernel_block_size;
    if (!backends.empty()) {
      need.backend = backends[l];
    }
  }
  return needs;
}

Result<KvPlan> plan_kv(const DecoderSpec& spec,
                       const KvWish& wish,
                       std::span<const std::string> backends) {
  const std::vector<KvNeed> needs = kv_needs(spec, wish, backends);
  return plan_kv({&needs, 1}, wish.layout);
}

std::vector<AttentionNeed> attention_needs(const DecoderSpec& spec,
                                           const KvPlan& plan,
                                           int32_t group,
                                           const AttentionNeed& common) {
  const KvGroupSpec& kv = plan.groups[static_cast<size_t>(group)];
  std::vector<AttentionNeed> needs;
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    if (plan.layers[l].group != group) {
      continue;
    }
    AttentionNeed need = common;
    need.layer = static_cast<int32_t>(l);
    need.kv = kv;
    need.padded_pages = kv.layer_block_bytes() < KvCacheSpec{plan.groups, 0}.page_bytes();
    need.num_heads = shape_of(spec, l).num_heads;
    needs.push_back(need);
  }
  return needs;
}

}  // namespace warprow
