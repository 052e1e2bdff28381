// SPDX-License-Identifier: Apache-2.0
// Which kernel a product takes on a GPU. Plain arithmetic, so that a build without CUDA can test it and plan
// for a GPU.
#include "kernels/linear/linear_plan.h"

#include "base/math.h"
#include "kernels/linear/fp8/round_inputs.h"
#include "kernels/linear/half_norm.h"
#include "kernels/linear/large_m/sm90_large_gemm.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "kernels/linear/quant/sm90_quant_gemm.h"
#include "kernels/linear/small_m/sm80_gemm.h"
#include "kernels/linear/small_m/sm90_gemm.h"
#include "kernels/linear/small_m/sm90_warp_gemm.h"
#include "kernels/low_rank/low_rank.h"

#include <algorithm>
#include <limits>

namespace warprow {
namespace cuda {
namespace {

// Up to this many rows sm80_bf16_gemm_small_m is the fastest (bench/kernels/linear_cuda_bench.cu). For small
// matrices, sm90_bf16_gemm_small_m is faster from half as many rows on; on GPUs without it, cuBLASLt is
// faster only from twice as many on.
constexpr int64_t kSm80GemmRows = 16;
static_assert(2 * kSm80GemmRows <= kMaxSm80GemmRows);

// Whether blocks of rows of sm90_bf16_gemm_small_m take no longer than the tiles of sm90_bf16_gemm_large_m.
bool takes_blocks_of_rows(const LinearShape& shape, int64_t num_rows, const DeviceFacts& device) {
  constexpr int64_t kMost = 8 * kMaxSm90GemmRows;
  if (num_rows > kMost) {
    return false;
  }
  const auto rows = static_cast<int32_t>(num_rows);
  const int32_t chunks = invariant_chunks(shape, device);
  const Sm90GemmPlan small = sm90_gemm_plan(rows, shape.n, shape.k, device.num_sms, chunks);
  const Sm90LargePlan large =
      sm90_large_plan(rows, shape.n, chunks, device.num_sms, shape.y == DType::kF32);
  // A sum of many rows does not begin the next norm, which is then a kernel of its own.
  const double norm_us = shape.epilogue == LinearEpilogue::kAdd ? 2.5 : 0.0;
  return sm90_gemm_us(small, rows, shape.n, shape.k, device.num_sms) <=
         sm90_large_us(large, rows, shape.n, shape.k, device.num_sms) + norm_us;
}

// Whether rows that are dequantised first, for the kernel of many rows, give the same bits in less time.
bool takes_dequantised_rows(const LinearShape& shape, int64_t num_rows) {
  constexpr int64_t kLeastRows = 2048;
  const bool swiglu = shape.epilogue == LinearEpilogue::kSwiGlu;
  const int32_t parts = sm90_quant_parts(shape.weights, shape.n, shape.k);
  const bool same_parts = parts == 1 || shape.k % (parts * kQuantTileCols) == 0;
  return num_rows >= kLeastRows && same_parts && shape.n % kQuantTileRows == 0 &&
         !(swiglu && (shape.has_bias || shape.y == DType::kF32));
}

}  // namespace

OwnRows own_rows(const LinearShape& shape, const DeviceFacts& device) {
  if (shape.batch_invariant) {
    return invariant_chunks(shape, device) == 0
               ? OwnRows{}
               : OwnRows{0, kMaxSm90GemmRows, sm90_warp_rows(shape.k)};
  }
  const int64_t sm90 = sm90_gemm_rows(shape.epilogue, shape.n, shape.k, device);
  int64_t sm80 = kSm80GemmRows;
  if (is_small_weight(shape.n, shape.k)) {
    sm80 = sm90 > 0 ? kSm80GemmRows / 2 : 2 * kSm80GemmRows;
  }
  return {sm80, std::max(sm80, sm90)};
}

int32_t invariant_chunks(const LinearShape& shape, const DeviceFacts& device) {
  const int32_t outputs = shape.epilogue == LinearEpilogue::kSwiGlu ? shape.n / 2 : shape.n;
  const int32_t aligned = shape.y == DType::kF32 ? 4 : 8;  // TMA stores rows of 16 bytes
  if (device.compute_capability != 90 || outputs % aligned != 0 ||
      (shape.epilogue == LinearEpilogue::kSwiGlu && shape.y == DType::kF32)) {
    return 0;
  }
  constexpr int32_t kSms = 132;  // of an H100 and an H200
  constexpr int32_t kMostChunks =
      4;  // the GEMM for large M computes a tile's parts one after the other
  constexpr int32_t kLeastInputs = 256;  // of a part
  // Latency bounds products of small weights. Parts for half of the SMs shorten their chains enough.
  const int32_t most_parts = is_small_weight(shape.n, shape.k) ? kSms / 2 : kSms;
  const int32_t tiles = ceil_div(shape.n, 64);
  int32_t chunks = 1;
  while (2 * chunks <= kMostChunks && 2 * chunks * tiles <= most_parts &&
         shape.k >= 2 * chunks * kLeastInputs) {
    chunks *= 2;
  }
  return chunks;
}

LinearPath linear_path(const LinearShape& shape, int64_t num_rows, const DeviceFacts& device) {
  if (shape.weights == PackedKind::kF32) {
    return LinearPath::kF32Gemm;
  }
  if (shape.weights == PackedKind::kF8F8) {
    return LinearPath::kSm90Fp8;
  }
  if (shape.weights != PackedKind::kBF16) {
    return takes_dequantised_rows(shape, num_rows) ? LinearPath::kSm90QuantLarge
                                                   : LinearPath::kSm90Quant;
  }
  const OwnRows own = own_rows(shape, device);
  if (num_rows <= own.warps) {
    return LinearPath::kSm90Warps;
  }
  if (num_rows <= own.all) {
    return num_rows <= own.sm80 ? LinearPath::kSm80Gemm : LinearPath::kSm90Gemm;
  }
  if (!shape.batch_invariant || own.all == 0) {
    // Elsewhere the library is as fast, and a whole step with it slightly faster (docs/experiments/linears_cuda.md).
    return LinearPath::kLibrary;
  }
  return takes_blocks_of_rows(shape, num_rows, device) ? LinearPath::kSm90Gemm
                                                       : LinearPath::kSm90LargeGemm;
}

size_t linear_scratch_bytes(int64_t /*max_toks*/, int64_t /*max_k*/) {
  return size_t{32} << 20;  // cuBLASLt's workspace
}

}  // namespace cuda

namespace {

// The numbers of rows for which the kernels of this product implement the halves of a norm.
RowRange halving_rows(const LinearShape& shape, const DeviceFacts& device) {
  constexpr RowRange kAll{1, std::numeric_limits<int64_t>::max()};
  if (shape.weights == PackedKind::kF32) {
    return {};
  }
  if (shape.weights != PackedKind::kBF16) {
    return kAll;
  }
  if (shape.batch_invariant) {
    return cuda::invariant_chunks(shape, device) > 0 ? kAll : RowRange{};
  }
  // cuBLASLt does not implement the halves of a norm.
  const cuda::OwnRows own = cuda::own_rows(shape, device);
  return {own.sm80 + 1, own.all};
}

}  // namespace

int64_t most_norms_begun(const LinearShape& behind) {
  return behind.weights == PackedKind::kF8F8 && behind.k <= cuda::kMaxNormedF8Inputs
             ? cuda::kMaxSm90GemmRows
             : std::numeric_limits<int64_t>::max();
}

RowRange halved_norm_rows(const DeviceFacts& device,
                          const LinearShape& sum,
                          const LinearShape& behind) {
  if (device.kind != DeviceKind::kCuda || !cuda::sm90_gemm_leaves_norm(sum.epilogue, sum.n) ||
      behind.k % 64 != 0) {
    return {};
  }
  const RowRange first = halving_rows(sum, device);
  const RowRange second = halving_rows(behind, device);
  return {std::max(first.first, second.first), std::min(first.last, second.last)};
}

RowRange halved_norm_rows(const DeviceFacts& device, const LinearShape& behind) {
  if (device.kind != DeviceKind::kCuda || behind.weights != PackedKind::kBF16 ||
      behind.k % 64 != 0) {
    return {};
  }
  return halving_rows(behind, device);
}

LowRankHalves low_rank_halves(const DeviceFacts& device,
                              const LinearShape& shape,
                              int64_t num_rows,
                              const LowRankProduct& product,
                              bool reads_x) {
  // What is measured in docs/experiments/low_rank_cuda.md: a product that takes less time waits for its sums, and with fewer rows the
  // kernel of warps and low_rank_expand take less time than the second half alone in sm90_bf16_gemm_small_m.
  constexpr double kLeastUsOfBoth = 12.0;
  constexpr int64_t kLeastRowsOfSecond = 6;
  if (device.kind != DeviceKind::kCuda || num_rows < 1 || num_rows > kMaxTermRows) {
    return LowRankHalves::kNone;
  }
  const cuda::LinearPath path = cuda::linear_path(shape, num_rows, device);
  const bool has_columns =
      std::all_of(product.parts, product.parts + product.num_parts, [](const LowRankPart& part) {
        return part.n % kLowRankColumns == 0 && part.y_col % kLowRankColumns == 0;
      });
  if ((path != cuda::LinearPath::kSm90Gemm && path != cuda::LinearPath::kSm90Warps) ||
      !has_columns) {
    return LowRankHalves::kNone;
  }
  const auto m = static_cast<int32_t>(num_rows);
  const cuda::Sm90GemmPlan plan = cuda::sm90_gemm_plan(shape, num_rows, device, true);
  if (reads_x && cuda::sm90_gemm_is_resident(plan, m, shape.n, device.num_sms) &&
      cuda::sm90_gemm_us(plan, m, shape.n, shape.k, device.num_sms) >= kLeastUsOfBoth) {
    return LowRankHalves::kBoth;
  }
  return num_rows >= kLeastRowsOfSecond ? LowRankHalves::kSecond : LowRankHalves::kNone;
}

cuda::Sm90GemmPlan cuda::sm90_gemm_plan(const LinearShape& shape,
                                        int64_t num_rows,
                                        const DeviceFacts& device,
                                        bool has_term) {
  const int32_t split = shape.batch_invariant ? invariant_chunks(shape, device) : 0;
  return sm90_gemm_plan(
      static_cast<int32_t>(num_rows), shape.n, shape.k, device.num_sms, split, has_term);
}

bool leaves_maxima(const DeviceFacts& device, const LinearShape& shape, int64_t num_rows) {
  if (device.kind != DeviceKind::kCuda || !shape.batch_invariant || shape.y != DType::kF32 ||
      shape.has_bias || shape.n % kMaxOutputs != 0 || cuda::invariant_chunks(shape, device) != 1) {
    return false;
  }
  return shape.weights == PackedKind::kBF16 && num_rows > cuda::kMaxSm90WarpRows;
}

}  // namespace warprow
