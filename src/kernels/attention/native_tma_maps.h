// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/tensor_map.h"
#include "kernels/attention/native_params.h"

namespace warprow::cuda {

// Tensor map of a layer's keys or values: a box is a decode tile's tokens of one head, in rows of 128 bytes.
inline CUtensorMap decode_tile_map(const char* base, const NativeParams& p, int32_t head_dim) {
  constexpr uint32_t kRow = 64;
  const auto parts = static_cast<uint32_t>(head_dim) / kRow;
  return tensor_map<5>(base,
                       {kRow,
                        static_cast<uint64_t>(p.block_size),
                        parts,
                        static_cast<uint64_t>(p.num_kv_heads),
                        uint64_t{1} << 31},
                       {static_cast<uint64_t>(p.token_bytes),
                        2 * kRow,
                        static_cast<uint64_t>(p.head_bytes),
                        static_cast<uint64_t>(p.block_bytes)},
                       {kRow, static_cast<uint32_t>(kDecodeTile), parts, 1, 1},
                       CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

// The tensor maps of a layer's cache.
struct TmaMaps {
  CUtensorMap k, v;
};
inline TmaMaps tma_maps(const NativeParams& params, int32_t head_dim) {
  return {decode_tile_map(params.k, params, head_dim), decode_tile_map(params.v, params, head_dim)};
}

}  // namespace warprow::cuda
