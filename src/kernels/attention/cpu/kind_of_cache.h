// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/attention/cpu/cache_kind.h"

namespace warprow::cpu {

inline CacheKind cache_kind(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CacheKind::kF32;
    case DType::kBF16:
      return CacheKind::kBF16;
    case DType::kF8E4M3:
      return CacheKind::kF8E4M3;
    case DType::kF8E5M2:
      return CacheKind::kF8E5M2;
    default:
      WR_CHECK(false, "KV {}", dtype_name(dtype));
      return CacheKind::kF32;
  }
}

}  // namespace warprow::cpu
