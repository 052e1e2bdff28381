// SPDX-License-Identifier: Apache-2.0
#include "runner/kv_cache.h"

#include "base/check.h"

#include <utility>

namespace warprow {

KvLayerView kv_layer_view(const KvCacheSpec& spec, const LayerKvPlace& place, std::byte* memory) {
  const KvGroupSpec& group = spec.groups[static_cast<size_t>(place.group)];
  WR_CHECK_EQ(group.head_dim_k, group.head_dim_v);
  const auto element = static_cast<int64_t>(dtype_bytes(group.dtype));
  const int64_t bpk = group.kernel_blocks_per_block();
  const int64_t own = group.layer_block_bytes() / bpk / 2;  // keys of a kernel block
  // A kernel block has the size of the most expensive group's. With separate keys and values each gets half of it.
  // Together they lie side by side, and what a smaller group does not use lies after them.
  const int64_t piece = spec.page_bytes() / bpk / (group.layout.apart ? 2 : 1);
  const int64_t kernel_blocks = spec.num_blocks * bpk;

  int64_t first = 0;        // bytes to the layer's kernel block 0
  int64_t stride = piece;   // bytes from one kernel block to the next
  int64_t values_at = own;  // bytes from keys to values
  if (group.layout.by_block) {
    first = place.index * piece;
    stride = group.num_layers * piece;
    values_at = group.layout.apart ? kernel_blocks * stride : own;
  } else {
    const int64_t layer = kernel_blocks * (spec.page_bytes() / bpk);
    first = place.index * layer;
    values_at = group.layout.apart ? layer / 2 : own;
  }

  KvLayerView view;
  view.k = memory == nullptr ? nullptr : memory + first;
  view.v = memory == nullptr ? nullptr : memory + first + values_at;
  view.dtype = group.dtype;
  view.block_size = group.kernel_block_size;
  view.num_kv_heads = group.num_kv_heads;
  view.head_dim_k = group.head_dim_k;
  view.head_dim_v = group.head_dim_v;
  view.block_stride = stride / element;
  if (group.layout.order == KvOrder::kHND) {
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
  for (const KvGroupSpec& group : spec.groups) {
    // Otherwise layers of one group would overlap blocks of another.
    WR_CHECK_EQ(group.num_layers, spec.groups.front().num_layers);
    WR_CHECK(group.layout == spec.groups.front().layout);
  }
  std::byte* memory = arena_.alloc_bytes(static_cast<size_t>(planned_bytes(spec)));
  for (const LayerKvPlace& place : plan.layers) {
    layers_.push_back(place.index == kOtherStage ? KvLayerView{}
                                                 : kv_layer_view(spec, place, memory));
  }
}

}  // namespace warprow
