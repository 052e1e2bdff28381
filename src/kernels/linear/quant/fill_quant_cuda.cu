// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/linear/fp8/fp8_tiles.h"
#include "kernels/linear/quant/fill_quant.h"
#include "kernels/linear/quant/quant_tiles.h"

#include <cuda_runtime.h>

// Formula, shapes, mapping, numerics, preconditions: fill_quant.h.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRowWords = kQuantTileCols / 4;

struct Params {
  FillQuantArgs a;
  int32_t tiles;  // of a row of tiles
  int64_t unit_bytes;
};

// Four numbers of a row of the tile, one a byte.
__device__ __forceinline__ uint32_t four_numbers(const RandomQuant& random,
                                                 int64_t row,
                                                 int64_t col) {
  int32_t sums[4];
  random_sums(random.seed, row, col / 4, sums);
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    word |= uint32_t{random_number(random.kind, sums[i])} << (8 * i);
  }
  return word;
}

// A tile's word `at`, in the order of its form.
__device__ __forceinline__ uint32_t tile_word(PackedKind kind, const uint32_t* numbers, int at) {
  const auto number = [&](int row, int col) -> uint32_t {
    return numbers[row * kRowWords + col / 4] >> (col % 4 * 8) & 255U;
  };
  if (kind == PackedKind::kF8F8) {
    const int row = at / kRowWords;
    const int chunk = at % kRowWords / 4 ^ row % 8;
    return numbers[row * kRowWords + chunk * 4 + at % 4];
  }
  const int u = at % 128 / 16;
  if (kind == PackedKind::kQ4) {
    const int c = (at / 128 * 4 + at % 4) * 16 + at % 16 / 4 * 2;
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // nibbles 4 to 7 are one input further
      word |= number(u + j % 2 * 8, c + j / 4 + j / 2 % 2 * 8) << (j % 4 * 4 + j / 4 * 16);
    }
    return word;
  }
  const int c = (at / 128 * 2 + at % 4 / 2) * 16 + at % 16 / 4 * 2 + at % 2 * 8;
  const uint32_t bytes =
      number(u + 8, c) | number(u, c) << 8 | number(u + 8, c + 1) << 16 | number(u, c + 1) << 24;
  return kind == PackedKind::kF8 ? quant_f8_word(bytes) : bytes;
}

__global__ void __launch_bounds__(kThreads) fill_tiles(const __grid_constant__ Params p) {
  __shared__ uint32_t numbers[kQuantTileRows * kRowWords];
  pdl_wait();
  const FillQuantArgs& a = p.a;
  const PackedWeight& w = a.weight;
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t unit = blockIdx.x / p.tiles;
  const auto tile = static_cast<int>(blockIdx.x % p.tiles);
  const int64_t first_row = a.row + unit * kQuantTileRows;
  const int first = tile * kQuantTileCols;
  for (int i = thread; i < kQuantTileRows * kRowWords; i += kThreads) {
    const int col = first + i % kRowWords * 4;
    numbers[i] = col < w.k ? four_numbers(a.random, first_row + i / kRowWords, a.col + col) : 0;
  }
  __syncthreads();
  const bool rounds = w.kind == PackedKind::kF8F8;
  const bool grouped = w.inputs == F8Inputs::kGroup;
  const int number_bytes = quant_number_bytes(w.kind);
  const int num_scales = kQuantTileCols / w.group * kQuantTileRows;
  const bool bf16 = w.scales == ScaleForm::kBF16;
  const int scale_bytes = num_scales * quant_scale_bytes(w);
  std::byte* of_unit = a.dst + unit * p.unit_bytes;
  std::byte* of_tile = of_unit + int64_t{tile} * (number_bytes + (rounds ? 0 : scale_bytes));
  for (int i = thread; i < number_bytes / 4; i += kThreads) {
    reinterpret_cast<uint32_t*>(of_tile)[i] = tile_word(w.kind, numbers, i);
  }
  if (!rounds) {
    for (int i = thread; i < num_scales; i += kThreads) {
      const int row = i % kQuantTileRows;
      const int col = first + i / kQuantTileRows * w.group;
      const uint32_t word =
          col < w.k
              ? quant_scale_word(w.kind, row, random_scale(a.random, first_row + row, a.col + col))
              : 0;
      if (bf16) {
        reinterpret_cast<uint16_t*>(of_tile + number_bytes)[i] = static_cast<uint16_t>(word >> 16);
      } else {
        reinterpret_cast<uint32_t*>(of_tile + number_bytes)[i] = word;
      }
    }
    return;
  }
  // The scales of a unit: 16 for each tile, or 16 in all; then zeros.
  auto* scales = reinterpret_cast<float*>(of_unit + int64_t{p.tiles} * number_bytes);
  const int places = static_cast<int>((p.unit_bytes - int64_t{p.tiles} * number_bytes) / 4);
  const int used = (grouped ? p.tiles : 1) * kQuantTileRows;
  const int begin = tile * kQuantTileRows;
  const int end = tile + 1 < p.tiles ? begin + kQuantTileRows : places;
  for (int i = begin + thread; i < min(end, places); i += kThreads) {
    scales[i] =
        i < used
            ? random_scale(a.random, first_row + i % kQuantTileRows, a.col + (grouped ? first : 0))
            : 0.0F;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) fill_rows(const __grid_constant__ FillQuantArgs a) {
  pdl_wait();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= int64_t{a.weight.n} * a.weight.k) {
    return;
  }
  const int64_t row = a.row + i / a.weight.k;
  const int64_t col = a.col + i % a.weight.k;
  int32_t sums[4];
  random_sums(a.random.seed, row, col / 4, sums);
  const auto place = static_cast<int>(col % 4);
  const uint8_t number = random_number(a.random.kind,
                                       place == 0   ? sums[0]
                                       : place == 1 ? sums[1]
                                       : place == 2 ? sums[2]
                                                    : sums[3]);
  const float value = a.random.kind == PackedKind::kF8
                          ? f8_e4m3_to_f32(number)
                          : static_cast<float>(number - random_zero_point(a.random.kind));
  const float weight = __fmul_rn(random_scale(a.random, row, col), value);
  if constexpr (sizeof(T) == 2) {
    reinterpret_cast<T*>(a.dst)[i] = f32_to_bf16(weight);
  } else {
    reinterpret_cast<T*>(a.dst)[i] = weight;
  }
}

}  // namespace

void fill_quant(Stream& stream, const FillQuantArgs& args) {
  const PackedWeight& w = args.weight;
  const bool wide = w.kind == PackedKind::kF32;
  if (wide || w.kind == PackedKind::kBF16) {
    const auto blocks = static_cast<unsigned>(ceil_div(int64_t{w.n} * w.k, int64_t{kThreads}));
    if (blocks > 0) {
      launch(stream,
             "fill_quant",
             {blocks, kThreads},
             wide ? &fill_rows<float> : &fill_rows<uint16_t>,
             args);
    }
    return;
  }
  WR_CHECK((w.kind == PackedKind::kF8F8 ? PackedKind::kF8 : w.kind) == args.random.kind &&
               w.scales != ScaleForm::kF32 && !w.has_zero_points && !w.has_bias,
           "kind {}",
           static_cast<int>(w.kind));
  WR_CHECK(w.n % kQuantTileRows == 0 && w.k % 8 == 0 && args.col % 4 == 0,
           "{} x {} from column {} on",
           w.n,
           w.k,
           args.col);
  const int32_t tiles = ceil_div(w.k, kQuantTileCols);
  const auto blocks = static_cast<unsigned>(int64_t{w.n / kQuantTileRows} * tiles);
  if (blocks > 0) {
    launch(stream,
           "fill_quant",
           {blocks, kThreads},
           fill_tiles,
           Params{args, tiles, static_cast<int64_t>(quant_row_bytes(w))});
  }
}

}  // namespace warprow::cuda
