// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "device/device.h"
#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/linear/output_max.h"
#include "kernels/linear/packed_weight.h"
#include "kernels/op.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace warprow {

struct LowRankProduct;  // low_rank.h
struct LowRankTerm;

// Format of activations in a product on a CPU.
//  kF32: unchanged; float32 sums over exactly dequantised weights.
//  kRounded: rounded to the format that multiplies fastest with the weights. Quantised weights: int8, one
//   scale per 32 inputs, a group's sum is exact. bf16 weights: bf16, sums in float32. Other weights: not
//   rounded.
enum class ActFormat : uint8_t { kF32, kRounded };

// One matrix of a fused linear operation, and the columns of y that its outputs go to.
struct LinearSegment {
  PackedWeight w;
  const float* bias = nullptr;  // dev f32 [w.n], or null
  int64_t y_col = 0;
};

inline constexpr int kMaxLinearSegments = 4;

// What a product p is turned into.
//  kStore:  y[t, y_col + j] = p[t, j]
//  kAdd:    y[t, y_col + j] += p[t, j]
//  kSwiGlu: y[t, j] = silu(p[t, j]) * p[t, n / 2 + j]; the gate outputs come first, then the up outputs
//  kMax:    maxima[t, j] = the largest of p[t, 64 j .. 64 j + 63]; there is no y
enum class LinearEpilogue : uint8_t { kStore, kAdd, kSwiGlu, kMax };

// A linear operation of a model, without its number of rows.
struct LinearShape {
  int32_t n = 0;
  int32_t k = 0;
  DType y = DType::kBF16;
  LinearEpilogue epilogue = LinearEpilogue::kStore;
  bool has_bias = false;
  bool batch_invariant = false;
  PackedKind weights = PackedKind::kBF16;

  bool operator==(const LinearShape&) const = default;
};

// An RMSNorm split between two operations, which saves a pass over the rows. The operation that completes the
// rows (kAdd) writes them times the norm's weight, and sums of their squares. The next operation divides its
// products by the root of the mean square.
struct HalfNorm {
  View<const float, 1> weight;  // dev f32 [width]
  ActView rows;                 // [>= num_toks, width]  room for rows times weight
  // dev [num_toks, width / 64]  room for sums of squares (half_norm_squares). Up to kMaxQuarteredRows rows have each as
  // four values, [.., .., 4].
  float* squares = nullptr;
  // False: the sum does not begin the norm, and the next operation does all of it from the completed rows, with the same bits.
  bool begun = true;
};

// The most rows for which a sum does the first half of the next norm. With more rows the next product does the whole norm.
// 128 if that product rounds its inputs (PackedKind::kF8F8, at most kMaxNormedF8Inputs), since the kernel that rounds them
// reads each row anyway and does the norm too; else there is no limit.
int64_t most_norms_begun(const LinearShape& behind);

// Up to so many rows, sums of squares are in quarters: in the kernel for them no warp has all 64 columns of a sum.
inline constexpr int64_t kMaxQuarteredRows = 8;
constexpr int64_t half_norm_squares(int64_t num_toks, int64_t width) {
  return std::max(num_toks, 4 * std::min(num_toks, kMaxQuarteredRows)) * ((width + 63) / 64);
}

// A range of row counts, both ends included; empty by default.
struct RowRange {
  int64_t first = 1;
  int64_t last = 0;
  [[nodiscard]] bool has(int64_t rows) const { return first <= rows && rows <= last; }
};

// The numbers of rows for which the norm between a sum (kAdd) and the next product can be split. For these,
// and for no others, next_norm may be set in the first and half_norm in the second.
RowRange halved_norm_rows(const DeviceFacts& device,
                          const LinearShape& sum,
                          const LinearShape& behind);

// Whether a product with a float32 y and these rows may have the epilogue kMax instead of kStore. The maxima are those of the
// y that kStore would store.
bool leaves_maxima(const DeviceFacts& device, const LinearShape& shape, int64_t num_rows);

// What a product can do of a term of low rank (low_rank.h). It then has the bits of the operations in turn: low_rank_shrink, and
// kStore, low_rank_expand; or low_rank_expand, kAdd; or kStore to float32, low_rank_expand with the gate.
enum class LowRankHalves : uint8_t {
  kNone,
  kSecond,  // what low_rank_expand does
  kBoth     // low_rank_shrink's work too: LowRankTerm::shrinks
};
// Of the term of `product` and so many rows. reads_x: the product reads what low_rank_shrink would, so it has no norm in front,
// or one that has begun.
LowRankHalves low_rank_halves(const DeviceFacts& device,
                              const LinearShape& shape,
                              int64_t num_rows,
                              const LowRankProduct& product,
                              bool reads_x);
// Products of more rows have no term.
inline constexpr int32_t kMaxTermRows = 32;

struct LinearArgs {
  ConstActView x;                    // [num_toks, k]
  View<const float, 1> norm_weight;  // dev f32 [k] or empty: RMSNorm of x before the product
  float norm_eps = 1e-6F;
  const HalfNorm* half_norm = nullptr;  // x's norm, half done by the previous operation, or null
  ActView normed;  // [num_toks, k]  room for normalised x; with norm_weight only
  ActView y;       // [num_toks, ...]  must not overlap x
  const HalfNorm* next_norm = nullptr;  // a norm of y's rows to do the first half of; kAdd, or null
  ActView product;                      // [num_toks, n]  room for the product; kSwiGlu, kAdd
  View<OutputMax, 2> maxima;            // [num_toks, n / kMaxOutputs]; kMax
  // Added to the product behind its bias, or null. kStore: to the rounded product; kAdd: to the old y, before the product.
  const LowRankTerm* term = nullptr;
  LinearSegment segments[kMaxLinearSegments];
  int32_t num_segments = 0;
  LinearEpilogue epilogue = LinearEpilogue::kStore;
  ActFormat act = ActFormat::kF32;
  // CUDA: a row's result must not depend on the number of rows. The CPU's results never depend on it.
  bool batch_invariant = false;
  std::byte* scratch = nullptr;  // dev, 256-byte aligned, linear_scratch_bytes
};

// A matrix product with the norm before it and the epilogue after it, so that a backend can fuse them where
// that pays.
//
// Formula: h = x, or with norm_weight h[t] = x[t] / sqrt(mean(x[t]^2) + norm_eps) * norm_weight; p[t, j] =
//   bias[j] + sum over i of w[j, i] * h[t, i]; y by the epilogue.
// Shapes: x [num_toks, k] and y have strided rows; all segments have the same k; num_toks may be 0. Columns
//   of y outside all segments are not written. CUDA: one segment. A bf16 one: x bf16 (float32 with norm_weight: the
//   residual stream), y bf16 or float32. A float32 one: x, y, normed and product float32.
// Mapping (CPU): the norm, then the product: pairs of 16-output panels over the compute pool, one pass for all
//   segments. The epilogue of some outputs follows their product, which is in a cache then; the stored product is rounded
//   first, so that its rounding does not depend on the old y. For a few rows (8 with AVX-512, 24 of 4-bit weights) the packed
//   weights are streamed through registers. For more rows they are unpacked once per block of inputs into L1,
//   and register tiles are used.
// Mapping (CUDA): up to 16 rows: small_m/sm80_gemm.cuh, norm and epilogue fused. Some dozens of rows:
//   small_m/sm90_gemm.cuh, epilogue fused and norms split in halves. More: cuBLASLt, with separate kernels for
//   norm and epilogue. With batch_invariant on Hopper: up to 8 rows small_m/warp_gemm_sm90_cuda.cu, some dozens or
//   hundreds small_m/sm90_gemm.cuh, more large_m/sm90_large_gemm.cuh; norms split in halves for all numbers of rows.
//   Quantised weights: quant/sm90_quant_gemm.cuh, or with e4m3 inputs fp8/; norms split in halves. float32:
//   float32/f32_gemm.cu for all rows, with separate kernels for norm and gate.
// Bytes moved: the packed weights once, whatever num_toks.
// Numerics: f32 accumulators. CPU: every (t, j) has one sequence of operations, fixed by k and the kind of
//   weight, so a row's result is bit-identical whatever num_toks, the other rows and the number of threads
//   (cpu/panel_access.h describes the sequence). AVX-512 and AVX2 agree bit for bit, and AMX with them in
//   products of int8; of bf16 its order is its own (cpu/panel_amx_bf16.h). The generic set lacks fused
//   multiply-adds and rounds differently. CUDA: runs repeat bit for bit; the order of
//   sums changes with num_toks unless batch_invariant is set: then it is a function of n and k alone, on
//   Hopper (linear_plan.h, invariant_chunks) in several kernels, elsewhere because one algorithm takes all. float32:
//   always a function of k alone.
// Preconditions: 1 to kMaxLinearSegments segments, on CUDA 1; half_norm and next_norm only as
//   halved_norm_rows allows, kMax only as leaves_maxima does, without a norm; a term only as low_rank_halves does; no other
//   operation uses scratch, normed and product until this one has run.
// Origin: own design; the CPU's packed layout is in cpu/panel_layout.h.
WR_OP(linear, LinearArgs);

// The inputs of every product are a multiple of this.
constexpr int32_t linear_input_unit(DeviceKind device) {
  return device == DeviceKind::kCuda ? 8 : 1;
}

// Scratch for any linear operation of up to max_toks rows of up to max_k inputs.
namespace cpu {
size_t linear_scratch_bytes(int64_t max_toks, int64_t max_k);
}
namespace cuda {
size_t linear_scratch_bytes(int64_t max_toks, int64_t max_k);
}
inline size_t linear_scratch_bytes(const DeviceFacts& device, int64_t max_toks, int64_t max_k) {
  return device.kind == DeviceKind::kCuda ? cuda::linear_scratch_bytes(max_toks, max_k)
                                          : cpu::linear_scratch_bytes(max_toks, max_k);
}

// Start-up: chooses the kernels for operations of these shapes and up to max_toks rows, so that no step has
// to. CUDA: opens cuBLASLt if a product needs it. With `tune` it times unknown algorithms, once per machine,
// which takes device memory while it runs. Throws StartupError if the library is missing. The CPU has nothing
// to choose.
namespace cuda {
void prepare_linear(const DeviceFacts& device,
                    std::span<const LinearShape> shapes,
                    int64_t max_toks,
                    bool tune);
}
inline void prepare_linear(const DeviceFacts& device,
                           std::span<const LinearShape> shapes,
                           int64_t max_toks,
                           bool tune) {
  if (device.kind == DeviceKind::kCuda) {
    cuda::prepare_linear(device, shapes, max_toks, tune);
  }
}

}  // namespace warprow
