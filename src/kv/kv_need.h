// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "kv/kv_spec.h"

#include <cstdint>
#include <string>

namespace warprow {

// How a cache stores scales for its elements. Only kNone exists; quantised caches add theirs here.
enum class KvScales : uint8_t { kNone };

// What one layer needs of the KV cache. Layers with equal needs share a group: one block table, one
// attention backend, one schedule a step.
struct KvNeed {
  KvKind kind = KvKind::kFull;
  int32_t num_heads = 0;  // query heads
  int32_t num_kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;
  DType dtype = DType::kBF16;
  KvScales scales = KvScales::kNone;
  int64_t state_bytes = 0;  // kState: of one request; the fields of heads are 0
  int32_t window = 0;       // kSlidingWindow: tokens a query sees, itself included; else 0
  int32_t block_size =
      16;  // tokens a page; the planner may take a multiple. kState: a checkpoint's unit
  int32_t kernel_block_size = 16;  // divides block_size; grows with it
  std::string backend = "auto";    // of its attention layer

  // Bytes of one page, keys and values together.
  [[nodiscard]] int64_t page_bytes() const {
    return static_cast<int64_t>(block_size) * num_kv_heads * (head_dim_k + head_dim_v) *
           static_cast<int64_t>(dtype_bytes(dtype));
  }

  bool operator==(const KvNeed&) const = default;
};

}  // namespace warprow
