// SPDX-License-Identifier: Apache-2.0
// How sm90_bf16_gemm_large_m splits a product. Plain arithmetic, so that a build without CUDA can test it.
#include "base/math.h"
#include "kernels/linear/large_m/sm90_large_gemm.h"

namespace warprow::cuda {
namespace {

constexpr int32_t kTileRows = 128;            // rows of x that an SM has
constexpr int32_t kPairRows = 2 * kTileRows;  // and a cluster

// How many tiles a cluster computes, one after the other.
double waves(int32_t m, int32_t n, int32_t cols, int32_t num_sms) {
  const int64_t tiles = int64_t{ceil_div(m, kPairRows)} * ceil_div(n, cols);
  return static_cast<double>(ceil_div<int64_t>(tiles, num_sms / 2));
}

// Time of all tiles, in units of a tile with 128 rows of w. Small tiles take 8 % longer for each of their products.
double tile_time(int32_t m, int32_t n, int32_t cols, int32_t num_sms) {
  return waves(m, n, cols, num_sms) * (cols == 256 ? 2.0 : 1.08);
}

}  // namespace

double sm90_large_us(const Sm90LargePlan& plan, int32_t m, int32_t n, int32_t k, int32_t num_sms) {
  constexpr double kStart = 3.5;
  constexpr double kSmFlopsPerUs = 6e6;
  const double flops = 2.0 * kTileRows * plan.cols * k;  // of an SM's tile
  return kStart + waves(m, n, plan.cols, num_sms) * flops / kSmFlopsPerUs;
}

Sm90LargePlan sm90_large_plan(int32_t m, int32_t n, int32_t chunks, int32_t num_sms) {
  const bool small_tiles =
      chunks > 1 || tile_time(m, n, 128, num_sms) < tile_time(m, n, 256, num_sms);
  return {.cols = small_tiles ? 128 : 256, .chunks = chunks};
}

}  // namespace warprow::cuda
