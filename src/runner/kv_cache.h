// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "kernels/attention/kv_view.h"
#include "kv/kv_planner.h"
#include "kv/kv_spec.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// The KV cache of a rank on one device. Layers with the same place in their groups share memory: a block belongs to
// one group at a time. The plan's KvLayout sets the layout. The default is by layer, with keys and values together:
//
//   memory           [layers per group][num_blocks][bpk][keys | values]
//   keys (kHND)      [kv_heads][kernel_block_size][head_dim]
//
// Owns: its arena.
// Thread: views are read-only.
// Invariant: block 0, the null block, belongs to no request and holds garbage.
class KvCache {
 public:
  KvCache(Arena arena, const KvCacheSpec& spec, const KvPlan& plan);
  // Bytes that the arena must have.
  static int64_t planned_bytes(const KvCacheSpec& spec) { return spec.total_bytes(); }

  [[nodiscard]] std::span<const KvLayerView> layers() const { return layers_; }
  [[nodiscard]] const Arena& arena() const { return arena_; }
  // As Arena::set_resident. Cached content is lost.
  void set_resident(bool resident) { arena_.set_resident(resident); }

 private:
  Arena arena_;
  std::vector<KvLayerView> layers_;  // as KvPlan::layers; empty views of layers of other stages
};

// The view of the layer at `place` in a pool that begins at `memory`. With null it gives shapes and strides only.
KvLayerView kv_layer_view(const KvCacheSpec& spec, const LayerKvPlace& place, std::byte* memory);

}  // namespace warprow
