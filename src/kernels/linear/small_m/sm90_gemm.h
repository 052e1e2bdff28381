// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/device.h"
#include "device/stream.h"
#include "kernels/linear/linear.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

// The rows of x in the largest block of sm90_bf16_gemm_small_m. More rows are several blocks, which all load w.
inline constexpr int32_t kMaxSm90GemmRows = 128;

// One bf16 GEMM for Hopper with an epilogue after it, on raw pointers. linear.h has the formulas.
struct Sm90GemmArgs {
  const void* w = nullptr;      // bf16 [n, k], 16-byte aligned
  const void* x = nullptr;      // bf16 [m, k], 16-byte aligned rows
  int64_t x_stride = 0;         // elements, a multiple of 8
  const float* bias = nullptr;  // [n] or null
  void* y = nullptr;            // [m, n], or [m, n / 2] for kSwiGlu
  int64_t y_stride = 0;         // elements
  bool y_f32 = false;           // else bf16
  LinearEpilogue epilogue = LinearEpilogue::kStore;
  // Second half of a norm: products are divided by the root of their row's mean square.
  const float* squares = nullptr;  // [m, k / 64]  sums of a row's squares (HalfNorm), or null
  float norm_eps = 0.0F;
  // First half of the next norm, over y: kAdd, n a multiple of 64.
  const float* next_weight = nullptr;  // [n] or null
  void* next_x = nullptr;              // bf16 [m, n]  y * next_weight
  float* next_squares = nullptr;       // [m, n / 64], or in quarters
  OutputMax* maxima = nullptr;         // [m, n / kMaxOutputs]  kMax, in place of y
  // What is added to outputs of rows with adapters (linear.h, LinearArgs::term), or null.
  const LowRankTerm* term = nullptr;
  int32_t m = 0;
  int32_t n = 0;
  int32_t k = 0;  // a multiple of 8
  // Rows of memory from x on, or 0: m. Those behind the m-th may have any values.
  int32_t x_capacity = 0;

  // Rows of a tensor map of x that is loaded in boxes of `box` rows. A box with rows outside the map takes TMA longer, up to
  // twice as long (docs/experiments/linears_cuda.md).
  [[nodiscard]] uint64_t mapped_rows(int32_t box) const {
    return static_cast<uint64_t>(std::max(std::min(round_up(m, box), x_capacity), m));
  }
};

// Shared memory of a term (sm90_low_rank.cuh), behind each other: x for the first half, and later in its place what is added to
// the rows that the CTA finishes and their sums of 16 ranks; then tiles of A, later of B.
inline constexpr int32_t kSm90TermXBytes = 16 << 10;
inline constexpr int32_t kSm90TermSumsPitch = 48;  // bytes of a row; no bank conflicts
inline constexpr int32_t kSm90TermTilesBytes = 32 << 10;
// row_bytes: of what is added to a row.
constexpr int32_t sm90_term_tiles_at(int32_t rows, int32_t row_bytes) {
  const int32_t added = rows * (row_bytes + kSm90TermSumsPitch);
  return added > kSm90TermXBytes
             ? added
             : kSm90TermXBytes;  // std::max would refer to a host constant in device code
}

// How a product is split. A cluster has `split` CTAs.
struct Sm90GemmPlan {
  int32_t cols = 32;      // rows of x in a block, padded: 32, 64 or 128
  int32_t groups = 1;     // groups of 64 rows of w in a CTA: 1 or 3, with 128 cols also 2
  int32_t split = 1;      // CTAs that share a tile, each with a part of k: a power of two
  int32_t stages = 4;     // of the ring, 2 to kMaxSm90GemmStages
  bool has_term = false;  // the epilogue adds one, which takes memory
};

inline constexpr int32_t kMaxSm90GemmStages = 16;
inline constexpr int32_t kMaxSm90GemmCluster = 8;
inline constexpr int32_t kSm90GemmSharedBytes = 225 * 1024;  // of a CTA, without its barriers

// Whether a matrix [n, k] is so small that a product's start and end take longer than its bytes.
constexpr bool is_small_weight(int64_t n, int64_t k) { return n * k * 2 <= 13 << 20; }

// Up to this many rows, for n outputs and k inputs, the kernel is faster than the library, norms and gates
// included. 0 on devices that do not support it.
int32_t sm90_gemm_rows(LinearEpilogue epilogue, int64_t n, int64_t k, const DeviceFacts& device);

// Whether it can do the first half of a norm of y.
bool sm90_gemm_leaves_norm(LinearEpilogue epilogue, int64_t n);

// Estimated microseconds on an H200: what an SM must load from L2, and all of w from memory.
double sm90_gemm_us(const Sm90GemmPlan& plan, int32_t m, int32_t n, int32_t k, int32_t num_sms);
// split 0: the fastest, for up to kMaxSm90GemmRows rows.
Sm90GemmPlan sm90_gemm_plan(
    int32_t m, int32_t n, int32_t k, int32_t num_sms, int32_t split = 0, bool has_term = false);
// Whether all CTAs of a product are on the device at once.
bool sm90_gemm_is_resident(const Sm90GemmPlan& plan, int32_t m, int32_t n, int32_t num_sms);
// The maximum number of stages that fit into this much shared memory. Less than 2: the plan does not fit.
int32_t sm90_gemm_stages(const Sm90GemmPlan& plan, int32_t shared_bytes);
// Dynamic shared memory of a CTA: the ring, later reused for its sums; with split-K, the partial sums that it
// receives; what a term needs; and padding for alignment.
int32_t sm90_gemm_parts_at(const Sm90GemmPlan& plan);
int32_t sm90_gemm_term_at(const Sm90GemmPlan& plan);
size_t sm90_gemm_shared_bytes(const Sm90GemmPlan& plan);

// All epilogues but kMax, which sm90_bf16_gemm_maxima has.
void sm90_bf16_gemm_small_m(Stream& stream, const Sm90GemmArgs& args);
void sm90_bf16_gemm_small_m(Stream& stream, const Sm90GemmArgs& args, const Sm90GemmPlan& plan);

// One instance of the kernel for each pair (cmake/stubs.cmake).
template <int kCols, int kGroups>
void launch_sm90_gemm(Stream& stream, const Sm90GemmArgs& args, const Sm90GemmPlan& plan);

}  // namespace warprow::cuda
