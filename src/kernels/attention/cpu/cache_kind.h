// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow::cpu {

// The elements of a KV cache, for files that are compiled once for each instruction set (contracts.isa-files).
enum class CacheKind : uint8_t { kF32, kBF16, kF8E4M3, kF8E5M2 };

static constexpr bool is_f8(CacheKind kind) {
  return kind == CacheKind::kF8E4M3 || kind == CacheKind::kF8E5M2;
}
static constexpr int32_t cache_bytes(CacheKind kind) {
  return kind == CacheKind::kF32 ? 4 : kind == CacheKind::kBF16 ? 2 : 1;
}

}  // namespace warprow::cpu
