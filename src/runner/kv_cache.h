// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "kernels/attention/kv_view.h"
#include "kv/kv_spec.h"
#include "models/decoder_spec.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// The KV cache of a model on one device. Layers with the same place in their groups share memory: a
// block belongs to one group at a time.
//
//   memory           [layers per group][num_blocks][bpk][keys | values]
//   keys (kHND)      [kv_heads][kernel_block_size][head_dim]
//
// Owns: its arena.
// Thread: views are read-only.
// Invariant: block 0 is nobody's and holds garbage.
class KvCache {
 public:
  KvCache(Arena arena, const KvCacheSpec& spec, const KvPlan& plan);
  // Bytes that the arena must have.
  static int64_t planned_bytes(const KvCacheSpec& spec) { return spec.total_bytes(); }

  [[nodiscard]] std::span<const KvLayerView> layers() const { return layers_; }
  [[nodiscard]] const Arena& arena() const { return arena_; }
  // As Arena::set_resident: what was cached is lost.
  void set_resident(bool resident) { arena_.set_resident(resident); }

 private:
  Arena arena_;
  std::vector<KvLayerView> layers_;  // by model layer
};

// The view of one layer whose part of the cache begins at `base`.
KvLayerView kv_layer_view(const KvGroupSpec& group, std::byte* base);

}  // namespace warprow
