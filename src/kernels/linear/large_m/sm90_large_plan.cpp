// SPDX-License-Identifier: Apache-2.0
// How sm90_bf16_gemm_large_m splits a product. Plain arithmetic, so that a build without CUDA can test it.
#include "base/check.h"
#include "base/math.h"
#include "kernels/linear/large_m/sm90_large_gemm.h"

#include <algorithm>
#include <span>

namespace warprow::cuda {
namespace {

constexpr int32_t kTileRows = 128;            // rows of x that an SM has
constexpr int32_t kPairRows = 2 * kTileRows;  // and a cluster

// Time of a tile with so many rows of w, in units of one with 128. Narrow tiles read more shared memory for each product.
struct TileTime {
  int32_t cols;
  double units;
};
constexpr TileTime kOfOnePart[] = {{64, 0.75}, {96, 0.88}, {128, 1.0}, {192, 1.47}, {256, 1.9}};
constexpr size_t kNarrow = 2;  // of one part, for outputs in bf16
constexpr TileTime kOfParts[] = {{64, 0.75}, {128, 1.0}, {192, 1.5}};

std::span<const TileTime> tile_times(int32_t chunks, bool y_f32) {
  if (chunks > 1) {
    return kOfParts;
  }
  return std::span<const TileTime>(kOfOnePart).subspan(y_f32 ? kNarrow : 0);
}

// Of all tiles that a cluster computes, one after the other.
double time_of(const TileTime& tile, int32_t m, int32_t n, int32_t num_sms) {
  const int64_t tiles = int64_t{ceil_div(m, kPairRows)} * ceil_div(n, tile.cols);
  return static_cast<double>(ceil_div<int64_t>(tiles, num_sms / 2)) * tile.units;
}

}  // namespace

double sm90_large_us(const Sm90LargePlan& plan, int32_t m, int32_t n, int32_t k, int32_t num_sms) {
  constexpr double kStart = 3.5;
  constexpr double kSmFlopsPerUs = 6e6;
  const double flops = 2.0 * kTileRows * 128 * k;  // of a unit on an SM
  const auto times = tile_times(plan.chunks, false);
  const auto tile = std::ranges::find(times, plan.cols, &TileTime::cols);
  WR_CHECK(tile != times.end(), "{} cols, {} parts", plan.cols, plan.chunks);
  return kStart + time_of(*tile, m, n, num_sms) * flops / kSmFlopsPerUs;
}

bool sm90_large_has(const Sm90LargePlan& plan, bool y_f32) {
  const auto times = tile_times(plan.chunks, y_f32);
  return std::ranges::find(times, plan.cols, &TileTime::cols) != times.end();
}

Sm90LargePlan sm90_large_plan(int32_t m, int32_t n, int32_t chunks, int32_t num_sms, bool y_f32) {
  const auto tile = std::ranges::min_element(
      tile_times(chunks, y_f32), {}, [&](const TileTime& t) { return time_of(t, m, n, num_sms); });
  return {.cols = tile->cols, .chunks = chunks};
}

}  // namespace warprow::cuda
