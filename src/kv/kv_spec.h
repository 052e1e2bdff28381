// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace warprow {

// What the layers of a KV group attend to. kState: they attend to nothing and keep a state of fixed size. A group is a
// set of layers with one block table; all groups of a model draw blocks from one pool and one id space.
enum class KvKind : uint8_t { kFull, kSlidingWindow, kCross, kState };

[[nodiscard]] constexpr std::string_view kv_kind_name(KvKind kind) {
  constexpr std::string_view kNames[] = {"full", "sliding window", "cross", "state"};
  return kNames[static_cast<size_t>(kind)];
}

// Inside a kernel block: kNHD is [token, head, dim], kHND is [head, token, dim].
enum class KvOrder : uint8_t { kNHD, kHND };

// How keys and values lie in the pool's memory. Kernels read strides and base addresses
// (kernels/attention/kv_view.h), so the code that allocates the pool may choose any of these. L layers, B kernel
// blocks:
//   by layer, together   [L][B][2]   the default
//   by layer, apart      [L][2][B]
//   by block, together   [B][L][2]   a manager block of all layers is one run of bytes
//   by block, apart      [2][B][L]
struct KvLayout {
  KvOrder order = KvOrder::kHND;
  bool apart = false;     // keys and values in two halves, not adjacent in a block
  bool by_block = false;  // all layers of a block adjacent, not all blocks of a layer

  bool operator==(const KvLayout&) const = default;
};

inline constexpr int32_t kMaxKvGroups = 6;  // of a model: a step's block tables have fixed places

// One KV group. Layers of a group have equal shapes; other groups may have others.
struct KvGroupSpec {
  KvKind kind = KvKind::kFull;
  KvLayout layout;  // the same in all groups of a pool
  DType dtype = DType::kBF16;
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;
  int32_t window = 0;              // kSlidingWindow: tokens a query sees, itself included; else 0
  int32_t state_pages = 0;         // kState: blocks of the pool that a state takes; else 0
  int32_t block_size = 16;         // tokens in a manager block: what the scheduler allocates
  int32_t kernel_block_size = 16;  // tokens in a block of the attention kernel; divides block_size

  // kState: blocks of a row's table: of its own state, of a checkpoint, and of the state that it starts from.
  [[nodiscard]] int32_t num_state_cells() const { return 3 * state_pages; }
  // Bytes of one manager block in one layer, keys and values together. kState: 0, its pages are those of other groups.
  [[nodiscard]] int64_t layer_block_bytes() const {
    return static_cast<int64_t>(block_size) * num_kv_heads * (head_dim_k + head_dim_v) *
           static_cast<int64_t>(dtype_bytes(dtype));
  }
  // Bytes of one manager block over all layers of the group: layers x 2 x block x kv_heads x
  // head_dim x bytes.
  [[nodiscard]] int64_t block_bytes() const { return layer_block_bytes() * num_layers; }
  // Kernel blocks in a manager block ("bpk"): manager block b is kernel blocks b * bpk .. b * bpk +
  // bpk - 1.
  [[nodiscard]] int32_t kernel_blocks_per_block() const { return block_size / kernel_block_size; }

  bool operator==(const KvGroupSpec&) const = default;
};

// The KV cache as planned: all groups share num_blocks blocks of block_bytes (the largest group's).
struct KvCacheSpec {
  std::vector<KvGroupSpec> groups;
  int32_t num_blocks = 0;  // block 0, the null block, included

  // Bytes of one layer in one block; a group whose layers need less leaves the rest unused.
  [[nodiscard]] int64_t page_bytes() const {
    int64_t bytes = 0;
    for (const KvGroupSpec& group : groups) {
      bytes = bytes > group.layer_block_bytes() ? bytes : group.layer_block_bytes();
    }
    return bytes;
  }

  [[nodiscard]] int64_t block_bytes() const {
    int64_t bytes = 0;
    for (const KvGroupSpec& group : groups) {
      bytes = bytes > group.block_bytes() ? bytes : group.block_bytes();
    }
    return bytes;
  }
  [[nodiscard]] int64_t total_bytes() const { return block_bytes() * num_blocks; }
};

}  // namespace warprow
