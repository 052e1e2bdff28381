// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/linear/quant/dequantise_tiles.h"
#include "kernels/linear/quant/quant_numbers.cuh"
#include "kernels/linear/quant/quant_tiles.h"

#include <cuda_runtime.h>

// Formula: out[j, i] = quant_weight of number [j, i] and its scale (quant_tiles.h), which is what sm90_quant_gemm multiplies.
// Shapes: tiles of 16 rows by 128 inputs; out bf16 [num_rows, k].
// Mapping: a warp a tile, whose rows go through shared memory.
// Bytes moved: the tiles and out, once.
// Numerics: as sm90_quant_gemm, bit for bit.
// Preconditions: k a multiple of 8; compute capability 9.0.
// Origin: own design.
namespace warprow::cuda {
namespace {

constexpr int kWarps = 4;

struct Params {
  const std::byte* tiles;  // of the first row
  uint16_t* out;
  int32_t tile_bytes;
  int32_t k;
  int32_t group;
  QuantCodes codes;
  QuantScales scales;
  bool has_zeros;
};

template <PackedKind kKind>
__global__ void __launch_bounds__(32 * kWarps) dequantise_tiles_kernel(const Params p) {
#if __CUDA_ARCH__ >= 900
  constexpr int kPitch = kQuantTileCols / 2 + 4;  // pairs of a row; no bank conflicts
  using Numbers = QuantNumbers<kKind>;
  pdl_wait();
  pdl_release();
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const int tile = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int tiles = (p.k + kQuantTileCols - 1) / kQuantTileCols;
  if (tile >= tiles) {
    return;
  }
  const auto unit = static_cast<int64_t>(blockIdx.y);
  const std::byte* from = p.tiles + (unit * tiles + tile) * p.tile_bytes;
  const std::byte* scales_at = from + quant_number_bytes(kKind);
  const int scale_bytes = quant_scale_bytes(p.scales);
  const std::byte* zeros_at = scales_at + kQuantTileCols / p.group * kQuantTileRows * scale_bytes;
  typename Numbers::AnyScale scales[2];
  set_codes<kKind>(p.codes, 0, scales[0]);
  set_codes<kKind>(p.codes, 1, scales[1]);
  __shared__ __align__(16) uint32_t staged[kWarps * kQuantTileRows * kPitch];
  uint32_t* rows = staged + static_cast<int>(threadIdx.x) / 32 * kQuantTileRows * kPitch;
  typename Numbers::Words words;
#pragma unroll
  for (int i = 0; i < Numbers::Words::kLoads; ++i) {
    words.of[i] = __ldg(reinterpret_cast<const uint4*>(from) + i * 32 + lane);
  }
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const int at = step * 16 / p.group * kQuantTileRows + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = at + i * 8;
      const uint32_t word =
          scale_bytes == 2 ? uint32_t{__ldg(reinterpret_cast<const uint16_t*>(scales_at) + row)}
                           : __ldg(reinterpret_cast<const uint32_t*>(scales_at) + row);
      if constexpr (kKind == PackedKind::kF8) {
        scales[i].set_scale(scale_bytes == 2 ? word << 16 : word);
      } else {
        scales[i].set_scale(word, p.scales);
        if constexpr (Numbers::AnyScale::kHasZeros) {
          if (p.has_zeros) {
            scales[i].set_zero(
                Numbers::zero_of(i, __ldg(reinterpret_cast<const uint8_t*>(zeros_at) + row)));
          }
        }
      }
    }
    uint32_t d[4];
    dequantise_step<Numbers>(words, step, scales, d);
    if constexpr (Numbers::kTimes != 1.0F) {
      const uint32_t times = pack_bf16(Numbers::kTimes, Numbers::kTimes);
#pragma unroll
      for (uint32_t& pair : d) {
        pair = mul_bf16x2(pair, times);
      }
    }
    uint32_t* upper = rows + lane / 4 * kPitch + step * 8 + lane % 4;
    upper[0] = d[0];
    upper[8 * kPitch] = d[1];
    upper[4] = d[2];
    upper[8 * kPitch + 4] = d[3];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // whole rows of the tile, two at a time
    const int row = i * 2 + lane / 16;
    const int col = tile * kQuantTileCols + lane % 16 * 8;
    if (col < p.k) {
      *reinterpret_cast<uint4*>(p.out + (unit * kQuantTileRows + row) * p.k + col) =
          *reinterpret_cast<const uint4*>(rows + row * kPitch + lane % 16 * 4);
    }
  }
#endif
}

}  // namespace

void dequantise_tiles(Stream& stream, const DequantiseTilesArgs& args) {
  const PackedWeight& weight = args.weight;
  WR_CHECK(args.first_row % kQuantTileRows == 0 && args.num_rows % kQuantTileRows == 0 &&
               args.first_row + args.num_rows <= weight.n && weight.k % 8 == 0,
           "rows {} + {} of {} x {}",
           args.first_row,
           args.num_rows,
           weight.n,
           weight.k);
  const int32_t tiles = ceil_div(weight.k, kQuantTileCols);
  const int32_t tile_bytes = quant_tile_bytes(weight);
  const Params params{weight.data + int64_t{args.first_row / kQuantTileRows} * tiles * tile_bytes,
                      static_cast<uint16_t*>(args.out),
                      tile_bytes,
                      weight.k,
                      weight.group,
                      quant_codes(weight),
                      quant_scales(weight),
                      weight.has_zero_points};
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ceil_div(tiles, kWarps)),
                    static_cast<unsigned>(args.num_rows / kQuantTileRows));
  shape.block = dim3(32 * kWarps);
  const auto run = [&](auto* kernel) { launch(stream, "dequantise_tiles", shape, kernel, params); };
  switch (weight.kind) {
    case PackedKind::kF8:
      return run(&dequantise_tiles_kernel<PackedKind::kF8>);
    case PackedKind::kQ4:
      return run(&dequantise_tiles_kernel<PackedKind::kQ4>);
    case PackedKind::kQ6:
      return run(&dequantise_tiles_kernel<PackedKind::kQ6>);
    case PackedKind::kQ8:
      return run(&dequantise_tiles_kernel<PackedKind::kQ8>);
    case PackedKind::kTable:
      return run(&dequantise_tiles_kernel<PackedKind::kTable>);
    default:
      WR_CHECK(false, "kind {}", static_cast<int>(weight.kind));
  }
}

}  // namespace warprow::cuda
