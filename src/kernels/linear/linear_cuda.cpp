// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/linear.h"

#include "base/check.h"
#include "base/math.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/activation/act_and_mul.h"
#include "kernels/linear/cublaslt/cublaslt.h"
#include "kernels/linear/float32/f32_gemm.h"
#include "kernels/linear/fp8/fp8_tiles.h"
#include "kernels/linear/fp8/round_inputs.h"
#include "kernels/linear/fp8/sm90_fp8_gemm.h"
#include "kernels/linear/fp8/sm90_fp8_large.h"
#include "kernels/linear/half_norm.h"
#include "kernels/linear/large_m/sm90_large_gemm.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/linear/quant/dequantise_tiles.h"
#include "kernels/linear/quant/sm90_quant_gemm.h"
#include "kernels/linear/small_m/sm80_gemm.h"
#include "kernels/linear/small_m/sm90_gemm.h"
#include "kernels/linear/small_m/sm90_maxima.h"
#include "kernels/linear/small_m/sm90_warp_gemm.h"
#include "kernels/norm/rms_norm.h"

#include <algorithm>
#include <cstddef>

namespace warprow::cuda {
namespace {

LinearShape shape_of(const LinearArgs& args) {
  const LinearSegment& segment = args.segments[0];
  return {segment.w.n,
          segment.w.k,
          args.y.dtype,
          args.epilogue,
          segment.bias != nullptr,
          args.batch_invariant,
          segment.w.kind};
}

void check_args(const LinearArgs& args) {
  WR_CHECK_EQ(args.num_segments, 1);
  const LinearSegment& segment = args.segments[0];
  const bool norm = !args.norm_weight.empty();
  const bool swiglu = args.epilogue == LinearEpilogue::kSwiGlu;
  const bool f32 = segment.w.kind == PackedKind::kF32;
  WR_CHECK(args.x.dtype == (norm || f32 ? DType::kF32 : DType::kBF16),
           "x is {} {} a norm",
           dtype_name(args.x.dtype),
           norm ? "with" : "without");
  WR_CHECK(args.y.dtype == DType::kF32 || (args.y.dtype == DType::kBF16 && !f32));
  WR_CHECK(args.epilogue != LinearEpilogue::kAdd || args.y.dtype == DType::kF32);
  WR_CHECK_EQ(segment.w.k, args.x.shape[1]);
  WR_CHECK_EQ(args.x.shape[0], args.y.shape[0]);
  WR_CHECK_EQ(segment.w.k % 8, 0);
  WR_CHECK_EQ(args.x.stride % 8, 0);
  WR_CHECK(!swiglu || segment.w.n % 2 == 0);
  const int64_t cols = swiglu ? segment.w.n / 2 : segment.w.n;
  WR_CHECK(segment.y_col >= 0 && segment.y_col + cols <= args.y.shape[1],
           "columns {} + {} of {}",
           segment.y_col,
           cols,
           args.y.shape[1]);
  if (args.epilogue == LinearEpilogue::kMax) {
    WR_CHECK(!norm && args.y.dtype == DType::kF32);
    WR_CHECK_EQ(args.maxima.shape[0], args.x.shape[0]);
    WR_CHECK_EQ(args.maxima.shape[1], segment.w.n / kMaxOutputs);
    WR_CHECK_EQ(args.maxima.stride[0], args.maxima.shape[1]);
  }
}

// Returns x, RMS-normalised if norm_weight is set.
ConstActView normed_x(Stream& stream, const LinearArgs& args) {
  if (args.norm_weight.empty()) {
    return args.x;
  }
  const bool f32 = args.segments[0].w.kind == PackedKind::kF32;
  WR_CHECK(!args.normed.empty() && args.normed.dtype == (f32 ? DType::kF32 : DType::kBF16),
           "room for normed x, of the weights' type");
  ActView normed = args.normed;
  normed.shape[0] = args.x.shape[0];
  cuda::rms_norm(stream, {args.x, args.norm_weight, normed, args.norm_eps});
  return normed;
}

void run_sm80_gemm(Stream& stream, const LinearArgs& args) {
  const LinearSegment& segment = args.segments[0];
  const auto m = static_cast<int32_t>(args.x.shape[0]);
  const bool norm_inside = !args.norm_weight.empty() && sm80_gemm_takes_norm(m, segment.w.k);
  const ConstActView x = norm_inside ? args.x : normed_x(stream, args);
  const ActView y = args.y.columns(segment.y_col, args.y.shape[1] - segment.y_col);
  Sm80GemmArgs sm80_gemm_args;
  sm80_gemm_args.w = segment.w.data;
  sm80_gemm_args.x = x.data;
  sm80_gemm_args.x_stride = x.stride;
  sm80_gemm_args.norm_weight = norm_inside ? args.norm_weight.data : nullptr;
  sm80_gemm_args.norm_eps = args.norm_eps;
  sm80_gemm_args.bias = segment.bias;
  sm80_gemm_args.y = y.data;
  sm80_gemm_args.y_stride = y.stride;
  sm80_gemm_args.y_f32 = y.dtype == DType::kF32;
  sm80_gemm_args.epilogue = args.epilogue;
  sm80_gemm_args.m = m;
  sm80_gemm_args.n = segment.w.n;
  sm80_gemm_args.k = segment.w.k;
  sm80_bf16_gemm_small_m(stream, sm80_gemm_args);
}

Sm90GemmArgs sm90_gemm_args(Stream& stream, const LinearArgs& args) {
  const LinearSegment& segment = args.segments[0];
  const bool half_normed = args.half_norm != nullptr;
  WR_CHECK(!half_normed || args.half_norm->begun, "no such norm of {} rows", args.x.shape[0]);
  const ConstActView x = half_normed ? args.half_norm->rows : normed_x(stream, args);
  const ActView y = args.y.columns(segment.y_col, args.y.shape[1] - segment.y_col);
  Sm90GemmArgs sm90_gemm_args;
  sm90_gemm_args.w = segment.w.data;
  sm90_gemm_args.x = x.data;
  sm90_gemm_args.x_stride = x.stride;
  sm90_gemm_args.x_capacity = static_cast<int32_t>(x.capacity);
  sm90_gemm_args.bias = segment.bias;
  sm90_gemm_args.y = y.data;
  sm90_gemm_args.y_stride = y.stride;
  sm90_gemm_args.y_f32 = y.dtype == DType::kF32;
  sm90_gemm_args.epilogue = args.epilogue;
  sm90_gemm_args.maxima = args.maxima.data;
  sm90_gemm_args.term = args.term;
  if (half_normed) {
    sm90_gemm_args.squares = args.half_norm->squares;
    sm90_gemm_args.norm_eps = args.norm_eps;
  }
  sm90_gemm_args.m = static_cast<int32_t>(args.x.shape[0]);
  sm90_gemm_args.n = segment.w.n;
  sm90_gemm_args.k = segment.w.k;
  return sm90_gemm_args;
}

// Adds the first half of the next norm, if there is one.
Sm90GemmArgs with_next_norm(Sm90GemmArgs args, const HalfNorm* next) {
  if (next != nullptr) {
    args.next_weight = next->weight.data;
    args.next_x = next->rows.data;
    args.next_squares = next->squares;
  }
  return args;
}

void run_sm90_warps(Stream& stream, const LinearArgs& args) {
  const DeviceFacts& device = stream.device().facts();
  const Sm90GemmArgs sm90 = with_next_norm(sm90_gemm_args(stream, args), args.next_norm);
  const int32_t parts = invariant_chunks(shape_of(args), device);
  sm90_bf16_gemm_warps(
      stream, sm90, sm90_warp_plan(sm90.m, sm90.n, sm90.k, sm90.epilogue, parts, device.num_sms));
}

void run_sm90_gemm(Stream& stream, const LinearArgs& args) {
  const Sm90GemmArgs sm90 = with_next_norm(sm90_gemm_args(stream, args), args.next_norm);
  sm90_bf16_gemm_small_m(
      stream,
      sm90,
      sm90_gemm_plan(shape_of(args), sm90.m, stream.device().facts(), sm90.term != nullptr));
}

void run_sm90_large_gemm(Stream& stream, const LinearArgs& args) {
  const DeviceFacts& device = stream.device().facts();
  const Sm90GemmArgs sm90 = sm90_gemm_args(stream, args);
  const int32_t chunks = args.batch_invariant ? invariant_chunks(shape_of(args), device) : 1;
  sm90_bf16_gemm_large_m(
      stream, sm90, sm90_large_plan(sm90.m, sm90.n, chunks, device.num_sms, sm90.y_f32));
  if (args.next_norm != nullptr) {
    begin_norm(stream, args.y.f32(), *args.next_norm);
  }
}

// The largest outputs in place of y, by kernels that go on to the next tile while one ends.
void run_sm90_maxima(Stream& stream, const LinearArgs& args) {
  const DeviceFacts& device = stream.device().facts();
  WR_CHECK(leaves_maxima(device, shape_of(args), args.x.shape[0]),
           "{} rows: no maxima here",
           args.x.shape[0]);
  const Sm90GemmArgs sm90 = sm90_gemm_args(stream, args);
  if (sm90.m <= kMaxSm90GemmRows) {
    sm90_bf16_gemm_maxima(stream, sm90);
  } else {
    sm90_bf16_gemm_large_m(stream, sm90, sm90_large_plan(sm90.m, sm90.n, 1, device.num_sms, true));
  }
}

void run_sm90_quant(Stream& stream, const LinearArgs& args) {
  const Sm90GemmArgs sm90 = with_next_norm(sm90_gemm_args(stream, args), args.next_norm);
  const PackedWeight& weight = args.segments[0].w;
  sm90_quant_gemm(
      stream, sm90, weight, sm90_quant_plan(weight, sm90.m, stream.device().facts().num_sms));
}

// Dequantises as many rows of w as scratch holds, multiplies with them, and goes on with the next.
void run_sm90_quant_large(Stream& stream, const LinearArgs& args) {
  WR_CHECK(args.scratch != nullptr);
  const int32_t num_sms = stream.device().facts().num_sms;
  const PackedWeight& weight = args.segments[0].w;
  const Sm90GemmArgs sm90 = sm90_gemm_args(stream, args);
  const bool swiglu = args.epilogue == LinearEpilogue::kSwiGlu;
  const int32_t halves = swiglu ? 2 : 1;  // of w, with rows that belong together
  const int32_t outputs = weight.n / halves;
  const size_t row_bytes = static_cast<size_t>(weight.k) * 2;
  const size_t fit =
      linear_scratch_bytes(sm90.m, weight.k) / (row_bytes * static_cast<size_t>(halves));
  const auto most = static_cast<int32_t>(fit / 128 * 128);
  WR_CHECK_GE(most, 128);
  for (int32_t first = 0; first < outputs; first += most) {
    const int32_t count = std::min(most, outputs - first);
    for (int32_t half = 0; half < halves; ++half) {
      dequantise_tiles(stream,
                       {weight,
                        half * outputs + first,
                        count,
                        args.scratch + half * count * static_cast<int64_t>(row_bytes)});
    }
    Sm90GemmArgs piece = sm90;
    piece.w = args.scratch;
    piece.n = halves * count;
    piece.bias = sm90.bias == nullptr ? nullptr : sm90.bias + first;
    piece.y = static_cast<std::byte*>(sm90.y) + int64_t{first} * (sm90.y_f32 ? 4 : 2);
    Sm90LargePlan plan = sm90_large_plan(
        piece.m, piece.n, sm90_quant_parts(weight.kind, weight.n, weight.k), num_sms, piece.y_f32);
    plan.early_w = false;
    sm90_bf16_gemm_large_m(stream, piece, plan);
  }
  if (args.next_norm != nullptr) {
    begin_norm(stream, args.y.f32(), *args.next_norm);
  }
}

// Whether tiles of many rows take less time than blocks of rows. A sum of many rows does not begin the next norm, which is
// then a kernel of its own.
bool takes_large_tiles(const Sm90GemmArgs& args,
                       const PackedWeight& weight,
                       const Sm90Fp8Plan& small,
                       const Sm90Fp8LargePlan& large,
                       int32_t num_sms) {
  const double norm_us = args.next_weight != nullptr ? 2.5 : 0.0;
  return args.m > kMaxSm90GemmRows && sm90_fp8_large_takes(args) &&
         sm90_fp8_large_us(large, weight, args.m, num_sms) + norm_us <
             sm90_fp8_us(small, args.m, args.n, args.k, num_sms);
}

// For so many rows the kernel that rounds inputs also prefetches the beginning of the matrix to L2, while the preceding
// kernel still runs (docs/experiments/linears_cuda.md).
constexpr int32_t kLeastAheadRows = 9;
constexpr int32_t kMostAheadRows = 32;
constexpr int64_t kAheadBytes = 8'000'000;

// Rounds the inputs of as many rows as scratch holds, multiplies them, and goes on with the next. One row is rounded by the
// product's kernel.
void run_sm90_fp8(Stream& stream, const LinearArgs& args) {
  const int32_t num_sms = stream.device().facts().num_sms;
  const PackedWeight& weight = args.segments[0].w;
  const bool norms = args.half_norm != nullptr && !args.half_norm->begun;
  LinearArgs rest = args;
  if (norms) {  // of x, by the kernel that rounds it
    rest.half_norm = nullptr;
    rest.norm_weight = {};
  }
  const Sm90GemmArgs all = with_next_norm(sm90_gemm_args(stream, rest), args.next_norm);
  if (all.m == 1) {
    WR_CHECK(!norms);
    sm90_fp8_gemm(stream, {all, {}}, weight, sm90_fp8_plan(weight, 1, num_sms));
    return;
  }
  WR_CHECK(args.scratch != nullptr);
  const auto row_bytes =
      static_cast<int64_t>(f8_rows_bytes(weight.inputs, kF8PaddedRows, weight.k) / kF8PaddedRows);
  const auto fit =
      static_cast<int64_t>(linear_scratch_bytes(all.m, weight.k)) / row_bytes - kF8PaddedRows;
  WR_CHECK_GE(fit, 128);
  const int64_t num_parts = ceil_div<int64_t>(all.m, fit);
  const bool grouped = weight.inputs == F8Inputs::kGroup;
  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t first = all.m * part / num_parts;
    Sm90GemmArgs rows = all;
    rows.m = static_cast<int32_t>(all.m * (part + 1) / num_parts - first);
    rows.x = static_cast<const std::byte*>(all.x) + first * all.x_stride * (norms ? 4 : 2);
    rows.y = static_cast<std::byte*>(all.y) + first * all.y_stride * (all.y_f32 ? 4 : 2);
    // With several parts there are more than kMaxQuarteredRows rows, so sums of squares are not in quarters.
    rows.squares = all.squares == nullptr ? nullptr : all.squares + first * (all.k / 64);
    if (all.next_weight != nullptr) {
      rows.next_x = static_cast<std::byte*>(all.next_x) + first * all.n * 2;
      rows.next_squares = all.next_squares + first * (all.n / 64);
    }
    RoundInputsArgs round;
    round.x = rows.x;
    round.x_stride = rows.x_stride;
    round.norm_weight = norms ? args.norm_weight.data : nullptr;
    round.squares = rows.squares;
    round.norm_eps = args.norm_eps;
    round.inputs = weight.inputs;
    round.input_scale = weight.input_scale;
    round.m = rows.m;
    round.k = rows.k;
    round.out = f8_rows_at(args.scratch, weight.inputs, rows.m, rows.k);
    if (!norms && kLeastAheadRows <= rows.m && rows.m <= kMostAheadRows) {
      round.ahead = weight.data;
      round.ahead_bytes =
          std::min(kAheadBytes, weight.n / kFp8UnitRows * fp8_unit_bytes(weight.k, grouped));
    }
    round_inputs(stream, round);
    const Sm90Fp8Plan small = sm90_fp8_plan(weight, rows.m, num_sms);
    const Sm90Fp8LargePlan large = sm90_fp8_large_plan(weight, rows.m, num_sms);
    if (!takes_large_tiles(rows, weight, small, large, num_sms)) {
      sm90_fp8_gemm(stream, {rows, round.out}, weight, small);
      continue;
    }
    HalfNorm next;
    if (args.next_norm != nullptr) {
      next = *args.next_norm;
      next.rows = next.rows.rows(first, rows.m);
      next.squares = rows.next_squares;
      rows.next_weight = nullptr;
    }
    sm90_fp8_gemm_large(stream, {rows, round.out}, weight, large);
    if (args.next_norm != nullptr) {
      begin_norm(stream, args.y.rows(first, rows.m).f32(), next);
    }
  }
}

void run_library(Stream& stream, const LinearArgs& args) {
  const LinearSegment& segment = args.segments[0];
  const bool swiglu = args.epilogue == LinearEpilogue::kSwiGlu;
  const bool add = args.epilogue == LinearEpilogue::kAdd;
  WR_CHECK(args.scratch != nullptr);
  WR_CHECK(!swiglu || !args.product.empty(), "room for gate and up");
  const ConstActView x = normed_x(stream, args);
  ActView product = swiglu ? args.product : args.y.columns(segment.y_col, segment.w.n);
  product.shape[0] = args.x.shape[0];
  product.shape[1] = segment.w.n;
  if (segment.bias != nullptr) {
    bias_rows(stream, product, segment.bias, add);
  }
  LtOperands at;
  at.m = static_cast<int32_t>(x.shape[0]);
  at.x = x.data;
  at.x_stride = x.stride;
  at.w = segment.w.data;
  at.y = product.data;
  at.y_stride = product.stride;
  at.workspace = args.scratch;
  CublasLt::of(stream.device().facts())
      .run(as_cuda(stream).handle(),
           {segment.w.n,
            segment.w.k,
            product.dtype == DType::kF32,
            add || segment.bias != nullptr,
            args.batch_invariant},
           at);
  as_cuda(stream).note_launch("cublaslt");
  if (swiglu) {
    cuda::silu_and_mul(stream, {product, args.y.columns(segment.y_col, segment.w.n / 2)});
  }
}

void run_f32_gemm(Stream& stream, const LinearArgs& args) {
  const LinearSegment& segment = args.segments[0];
  const bool swiglu = args.epilogue == LinearEpilogue::kSwiGlu;
  WR_CHECK(!swiglu || !args.product.empty(), "room for gate and up");
  const View<const float, 2> x = normed_x(stream, args).f32();
  const ActView y = swiglu ? args.product : args.y.columns(segment.y_col, segment.w.n);
  F32GemmArgs gemm;
  gemm.x = x.data;
  gemm.x_stride = x.stride[0];
  gemm.w = reinterpret_cast<const float*>(segment.w.data);
  gemm.bias = segment.bias;
  gemm.y = y.f32().data;
  gemm.y_stride = y.stride;
  gemm.add = args.epilogue == LinearEpilogue::kAdd;
  gemm.m = static_cast<int32_t>(x.shape[0]);
  gemm.n = segment.w.n;
  gemm.k = segment.w.k;
  f32_gemm(stream, gemm);
  if (swiglu) {
    const ActView product = args.product.rows(0, x.shape[0]);
    cuda::silu_and_mul(stream, {product, args.y.columns(segment.y_col, segment.w.n / 2)});
  }
}

}  // namespace

void prepare_linear(const DeviceFacts& device,
                    std::span<const LinearShape> shapes,
                    int64_t max_toks,
                    bool tune) {
  WR_CHECK_GE(linear_scratch_bytes(max_toks, 1), kLtWorkspaceBytes);
  for (const LinearShape& shape : shapes) {
    const OwnRows own = own_rows(shape, device);
    const auto first = static_cast<int32_t>(own.all + 1);
    if (max_toks < first || linear_path(shape, first, device) != LinearPath::kLibrary) {
      continue;
    }
    const LtProduct product = {shape.n,
                               shape.k,
                               shape.epilogue != LinearEpilogue::kSwiGlu && shape.y == DType::kF32,
                               shape.epilogue == LinearEpilogue::kAdd || shape.has_bias,
                               shape.batch_invariant};
    if (tune) {
      CublasLt::of(device).tune(product, first, static_cast<int32_t>(max_toks));
    }
    CublasLt::of(device).prepare(product, first, static_cast<int32_t>(max_toks));
  }
}

void linear(Stream& stream, const LinearArgs& given) {
  check_args(given);
  if (given.x.shape[0] == 0) {
    return;
  }
  if (given.epilogue == LinearEpilogue::kMax) {
    run_sm90_maxima(stream, given);
    return;
  }
  LinearArgs args = given;
  if (args.next_norm != nullptr && !args.next_norm->begun) {
    args.next_norm = nullptr;
  }
  const LinearPath path = linear_path(shape_of(args), args.x.shape[0], stream.device().facts());
  WR_CHECK((path != LinearPath::kSm80Gemm && path != LinearPath::kLibrary &&
            path != LinearPath::kF32Gemm) ||
               (args.half_norm == nullptr && args.next_norm == nullptr),
           "{} rows: no half of a norm here",
           args.x.shape[0]);
  if (args.term != nullptr) {
    WR_CHECK(path == LinearPath::kSm90Gemm || path == LinearPath::kSm90Warps, "no term here");
    return run_sm90_gemm(stream, args);
  }
  switch (path) {
    case LinearPath::kSm80Gemm:
      return run_sm80_gemm(stream, args);
    case LinearPath::kSm90Warps:
      return run_sm90_warps(stream, args);
    case LinearPath::kSm90Gemm:
      return run_sm90_gemm(stream, args);
    case LinearPath::kSm90LargeGemm:
      return run_sm90_large_gemm(stream, args);
    case LinearPath::kLibrary:
      return run_library(stream, args);
    case LinearPath::kF32Gemm:
      return run_f32_gemm(stream, args);
    case LinearPath::kSm90Quant:
      return run_sm90_quant(stream, args);
    case LinearPath::kSm90QuantLarge:
      return run_sm90_quant_large(stream, args);
    case LinearPath::kSm90Fp8:
      return run_sm90_fp8(stream, args);
  }
}

}  // namespace warprow::cuda
