// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/experts/fill_mxfp4.h"
#include "kernels/random/fill_random.h"
#include "kernels/random/random_e2m1.h"

// Formula, shapes, preconditions: fill_mxfp4.h.
// Mapping: a CTA a tile, a thread two words.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

// The numbers at an even input, in the low bits, and behind it.
__device__ __forceinline__ uint32_t two_at(const FillMxfp4Args& a, int64_t row, int64_t col) {
  if (row < 0 || col >= a.cols) {
    return 0;
  }
  const int64_t element = a.first + row * a.stride + col;
  float quad[4];
  random_quad(a.seed, element / 4, kE2m1Deviation, quad);
  const bool upper = element % 4 != 0;
  const uint32_t low = e2m1_of_twice(nearest_e2m1(upper ? quad[2] : quad[0]));
  const uint32_t high = e2m1_of_twice(nearest_e2m1(upper ? quad[3] : quad[1]));
  return low | high << 4;
}

__global__ void __launch_bounds__(kThreads) fill_tiles(FillMxfp4Args a, int64_t steps) {
  pdl_wait();
  const auto thread = static_cast<int64_t>(threadIdx.x);
  const int64_t tile = blockIdx.x / steps;
  const int64_t first = blockIdx.x % steps * kMxfp4TileCols;
  const int64_t lane = thread / 2;
  const int64_t r = lane / 32 * 16 + lane % 32 / 4;
  const int64_t upper = mxfp4_matrix_row(tile, r, a.rows, a.order);
  const int64_t lower = mxfp4_matrix_row(tile, r + 8, a.rows, a.order);
  auto* to = static_cast<uint8_t*>(a.dst) + int64_t{blockIdx.x} * kMxfp4TileBytes;
  uint64_t words = 0;
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const int64_t c = first + thread % 2 * 32 + block * 16 + lane % 4 * 2;
    words |= mxfp4_spread(two_at(a, upper, c), block, 0) |
             mxfp4_spread(two_at(a, lower, c), block, 1) |
             mxfp4_spread(two_at(a, upper, c + 8), block, 2) |
             mxfp4_spread(two_at(a, lower, c + 8), block, 3);
  }
  reinterpret_cast<uint64_t*>(to)[thread] = words;
  if (thread % 2 != 0) {
    return;
  }
  // Lane l has byte l % 4 of the scales of lanes l / 4 * 4 to l / 4 * 4 + 3, which have the same rows.
  const int64_t row = lane % 4 < 2 ? upper : lower;
  const bool inside = row >= 0 && first + lane % 2 * 32 < a.cols;
  to[kMxfp4NumberBytes + lane] = static_cast<uint8_t>(inside ? a.scale + 126 : 0);
}

}  // namespace

void fill_mxfp4(Stream& stream, const FillMxfp4Args& args) {
  WR_CHECK(args.cols % 32 == 0 && args.first % 2 == 0 && args.stride % 2 == 0,
           "{} columns from {} on, {} apart",
           args.cols,
           args.first,
           args.stride);
  WR_CHECK(args.scale >= 0 && args.scale <= kMaxMxfp4Scale, "scale {}", args.scale);
  const int64_t steps = ceil_div<int64_t>(args.cols, kMxfp4TileCols);
  const int64_t tiles = ceil_div<int64_t>(args.rows, kMxfp4TileRows) * steps;
  if (tiles > 0) {
    launch(stream,
           "fill_mxfp4",
           {dim3(static_cast<unsigned>(tiles)), kThreads},
           fill_tiles,
           args,
           steps);
  }
}

}  // namespace warprow::cuda
