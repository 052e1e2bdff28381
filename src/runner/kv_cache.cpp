// SPDX-License-Identifier: Apache-2.0
#include "runner/kv_cache.h"

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace warprow {

KvLayerView kv_layer_view(const KvGroupSpec& group, std::byte* base) {
  WR_CHECK_EQ(group.head_dim_k, group.head_dim_v);
  const int64_t keys =
      static_cast<int64_t>(group.kernel_block_size) * group.num_kv_heads * group.head_dim_k;
  KvLayerView view;
  view.k = base;
  view.v = base + keys * static_cast<int64_t>(dtype_bytes(group.dtype));
  view.dtype = group.dtype;
  view.block_size = group.kernel_block_size;
  view.num_kv_heads = group.num_kv_heads;
  view.head_dim_k = group.head_dim_k;
  view.head_dim_v = group.head_dim_v;
  view.block_stride = 2 * keys;
  if (group.layout == KvLayout::kHND) {
    view.head_stride = static_cast<int64_t>(group.kernel_block_size) * group.head_dim_k;
    view.token_stride = group.head_dim_k;
  } else {
    view.head_stride = group.head_dim_k;
    view.token_stride = static_cast<int64_t>(group.num_kv_heads) * group.head_dim_k;
  }
  return view;
}

KvCache::KvCache(Arena arena, const KvCacheSpec& spec, const KvPlan& plan)
    : arena_(std::move(arena)) {
  int64_t layer_block_bytes = 0;
  for (const KvGroupSpec& group : spec.groups) {
    layer_block_bytes = std::max(layer_block_bytes, group.layer_block_bytes());
  }
  std::byte* base = arena_.alloc_bytes(static_cast<size_t>(planned_bytes(spec)));
  for (const LayerKvPlace& place : plan.layers) {
    const KvGroupSpec& group = spec.groups[static_cast<size_t>(place.group)];
    KvLayerView view =
        kv_layer_view(group, base + place.index * layer_block_bytes * spec.num_blocks);
    // A block begins at the same place whichever group has it, be its own layers smaller or not.
    view.block_stride = layer_block_bytes / group.kernel_blocks_per_block() /
                        static_cast<int64_t>(dtype_bytes(group.dtype));
    layers_.push_back(view);
  }
}

}  // namespace warprow
