// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/sample_loops.h"

#include <bit>
#include <cstdint>

namespace warprow::cpu {

// Unpack the keys of collect_at_least.
inline int32_t key_id(TokenKey key) { return static_cast<int32_t>(key); }
inline float key_value(TokenKey key) {
  const auto ascending = ~static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((ascending & 0x80000000U) != 0 ? ascending & 0x7fffffffU
                                                             : ~ascending);
}

}  // namespace warprow::cpu
