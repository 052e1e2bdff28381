// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/experts/combine_experts.h"
#include "kernels/linear/finish.cuh"
#include "kernels/linear/half_norm.cuh"

#include <algorithm>

// Formula, shapes, preconditions: combine_experts.h. x is float32 or bf16.
// Mapping: a thread has eight elements of a row, and CTAs take rows in turn; of few rows with few choices it has four.
// Bytes moved: T * num_chosen * width elements of x, T * width float32 (twice with `add`), T * width bf16 with next_norm.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;

template <typename X>
struct Sums {
  const X* x;
  int64_t x_stride;
  const float* weights;
  int64_t weights_stride;
  const int32_t* places;
  const int32_t* num_rows;
  float* y;
  int64_t y_stride;
  int32_t max_rows;
  int32_t width;
  int32_t num_chosen;
  bool add;
  // The norm that follows; null: none.
  const float* next_weight;
  Bf16* next_rows;
  float* next_squares;
  bool quartered;
  // The next kernel may start before the preceding one has ended. Else, if a norm follows, the product behind it starts two kernels
  // late, and so loads its weights late.
  bool releases_early;
};

// kCols elements as they lie in memory.
template <typename X, int kCols>
struct Elements {
  static constexpr int kWords = kCols * static_cast<int>(sizeof(X)) / 4;
  uint32_t words[kWords];
};

// In assembly, as the compiler otherwise waits for one element before it loads the next.
template <typename X, int kCols>
__device__ __forceinline__ void load_if(bool valid, const X* from, Elements<X, kCols>& to) {
  if constexpr (to.kWords == 2) {
    to.words[0] = to.words[1] = 0;
    asm volatile(
        "{\n"
        ".reg .pred valid;\n"
        "setp.ne.b32 valid, %3, 0;\n"
        "@valid ld.global.v2.b32 {%0, %1}, [%2];\n"
        "}\n"
        : "+r"(to.words[0]), "+r"(to.words[1])
        : "l"(from), "r"(valid ? 1 : 0));
  }
#pragma unroll
  for (int i = 0; i + 4 <= to.kWords; i += 4) {
    uint32_t* words = to.words + i;
    words[0] = words[1] = words[2] = words[3] = 0;
    asm volatile(
        "{\n"
        ".reg .pred valid;\n"
        "setp.ne.b32 valid, %5, 0;\n"
        "@valid ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n"
        "}\n"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(reinterpret_cast<const uint32_t*>(from) + i), "r"(valid ? 1 : 0));
  }
}

template <typename X, int kCols>
__device__ __forceinline__ void unpack(const Elements<X, kCols>& from, float (&v)[kCols]) {
#pragma unroll
  for (int i = 0; i < from.kWords; ++i) {
    if constexpr (sizeof(X) == 4) {
      v[i] = __uint_as_float(from.words[i]);
    } else {
      unpack2(from.words[i], v[2 * i], v[2 * i + 1]);
    }
  }
}

// The first half of a norm, for a thread's columns of a row from `col` on, with the bits of leave_squares. There a lane has
// four columns; with eight it has those of two adjacent lanes.
template <typename X, int kCols>
__device__ __forceinline__ void begin_norm(const Sums<X>& a,
                                           int64_t row,
                                           int col,
                                           const float (&y)[kCols]) {
  const unsigned lane = threadIdx.x % 32;
  float4 weight[kCols / 4];
#pragma unroll
  for (int i = 0; i < kCols / 4; ++i) {
    weight[i] = __ldg(reinterpret_cast<const float4*>(a.next_weight + col) + i);
  }
  uint2 rows[kCols / 4];
#pragma unroll
  for (int i = 0; i < kCols / 4; ++i) {
    const float4 v = weighted({y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]}, weight[i]);
    rows[i] = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
  }
  Bf16* to = a.next_rows + row * a.width + col;
  const int64_t sum = (row * a.width + col) / 64;
  if constexpr (kCols == 4) {
    *reinterpret_cast<uint2*>(to) = rows[0];
    leave_squares(
        a.next_squares, sum, {y[0], y[1], y[2], y[3]}, 0xffffU << (lane & 16U), a.quartered);
    return;
  } else {
    *reinterpret_cast<uint4*>(to) = {rows[0].x, rows[0].y, rows[1].x, rows[1].y};
    const unsigned lanes = 0xffU << (lane & 24U);
    float quarters[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 four{y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]};
      quarters[i] = quarter_of_squares<4, 2>(four, lanes);
    }
    if (a.quartered) {
      if (lane % 8 < 2) {
        reinterpret_cast<float2*>(a.next_squares)[sum * 2 + lane % 8] = {quarters[0], quarters[1]};
      }
      return;
    }
#pragma unroll
    for (float& quarter : quarters) {
      quarter = __fadd_rn(quarter, __shfl_xor_sync(lanes, quarter, 1));
    }
    if (lane % 8 == 0) {
      a.next_squares[sum] = __fadd_rn(quarters[0], quarters[1]);
    }
  }
}

// Instances. kFew: for few rows of up to four choices, a row a CTA.
template <bool kFew>
struct Sizes {
  static constexpr int kCols = kFew ? 4 : 8;    // of a thread
  static constexpr int kAtOnce = kFew ? 4 : 8;  // choices whose values a thread loads together
  static constexpr int kCtas = kFew ? 16 : 4;   // that an SM should hold
};

template <typename X, bool kFew>
__global__ void __launch_bounds__(kThreads, Sizes<kFew>::kCtas) combine_rows(const Sums<X> a) {
  constexpr int kCols = Sizes<kFew>::kCols;
  constexpr int kAtOnce = Sizes<kFew>::kAtOnce;
  const bool early = kFew || a.releases_early;
  if (early) {
    // The next kernel may start now: it only loads weights before it waits for this one.
    pdl_release();
  }
  const int col = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kCols;
  int32_t place[kAtOnce];
  float weight[kAtOnce];
  const auto load_choices = [&](int row, int first) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const bool is_choice = first + j < a.num_chosen;
      place[j] = is_choice ? __ldcg(a.places + int64_t{row} * a.num_chosen + first + j) : 0;
      weight[j] = is_choice ? __ldcg(a.weights + row * a.weights_stride + first + j) : 0.0F;
    }
  };
  // The experts' products waited for the lists and weights, so these may be read before pdl_wait. Of the first row they are
  // read whether it is real or not, beside the number of rows.
  load_choices(static_cast<int>(blockIdx.x), 0);
  const int rows = a.num_rows == nullptr ? a.max_rows : min(a.max_rows, __ldcg(a.num_rows));
  pdl_wait();
  if (!early) {
    pdl_release();
  }
  for (auto row = static_cast<int32_t>(blockIdx.x); row < rows; row += kFew ? rows : gridDim.x) {
    if (!kFew && row >= gridDim.x) {
      load_choices(row, 0);
    }
    if (col >= a.width) {
      continue;
    }
    auto* y = reinterpret_cast<float4*>(a.y + row * a.y_stride + col);
    float4 old[kCols / 4] = {};
    if (a.add) {
#pragma unroll
      for (int i = 0; i < kCols / 4; ++i) {
        old[i] = y[i];
      }
    }
    float sum[kCols] = {};
    int first = 0;
    do {
      if (!kFew && first > 0) {
        load_choices(row, first);
      }
      Elements<X, kCols> x[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        load_if(first + j < a.num_chosen, a.x + place[j] * a.x_stride + col, x[j]);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (first + j < a.num_chosen) {
          float v[kCols];
          unpack(x[j], v);
#pragma unroll
          for (int i = 0; i < kCols; ++i) {
            sum[i] = fmaf(weight[j], v[i], sum[i]);
          }
        }
      }
      first += kAtOnce;
    } while (!kFew && first < a.num_chosen);
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) {
      float* four = sum + 4 * i;
      const float4 v = sum_of({four[0], four[1], four[2], four[3]}, old[i]);
      y[i] = v;
      four[0] = v.x;
      four[1] = v.y;
      four[2] = v.z;
      four[3] = v.w;
    }
    if (a.next_weight != nullptr) {
      begin_norm(a, row, col, sum);
    }
  }
}

template <typename X>
void launch_sums(Stream& stream, const CombineExpertsArgs& args) {
  constexpr int32_t kEarlyRows = 4;
  const HalfNorm* next = args.next_norm;
  const Sums<X> sums{.x = static_cast<const X*>(args.x.data),
                     .x_stride = args.x.stride,
                     .weights = args.weights.data,
                     .weights_stride = args.weights.stride[0],
                     .places = args.lists.places.data,
                     .num_rows = args.lists.num_rows,
                     .y = args.y.data,
                     .y_stride = args.y.stride[0],
                     .max_rows = static_cast<int32_t>(args.y.shape[0]),
                     .width = static_cast<int32_t>(args.y.shape[1]),
                     .num_chosen = args.lists.num_chosen,
                     .add = args.add,
                     .next_weight = next == nullptr ? nullptr : next->weight.data,
                     .next_rows = next == nullptr ? nullptr : static_cast<Bf16*>(next->rows.data),
                     .next_squares = next == nullptr ? nullptr : next->squares,
                     .quartered = args.y.shape[0] <= kMaxQuarteredRows,
                     .releases_early = next == nullptr && args.y.shape[0] <= kEarlyRows};
  // Of few rows and choices CTAs with so few registers that they find room beside those of sm90_mxfp4_unit_gemm.
  constexpr int32_t kFewRows = 48;
  if constexpr (sizeof(X) == 2) {
    if (sums.num_chosen <= Sizes<true>::kAtOnce && sums.max_rows <= kFewRows) {
      const int32_t parts = ceil_div(sums.width, kThreads * Sizes<true>::kCols);
      const dim3 grid(static_cast<unsigned>(sums.max_rows), static_cast<unsigned>(parts));
      launch(stream, "combine_experts", {grid, kThreads}, combine_rows<X, true>, sums);
      return;
    }
  }
  const int32_t parts = ceil_div(sums.width, kThreads * Sizes<false>::kCols);
  const int32_t most = stream.device().facts().num_sms * Sizes<false>::kCtas / parts;
  const dim3 grid(static_cast<unsigned>(std::clamp(most, 1, sums.max_rows)),
                  static_cast<unsigned>(parts));
  launch(stream, "combine_experts", {grid, kThreads}, combine_rows<X, false>, sums);
}

}  // namespace

void combine_experts(Stream& stream, const CombineExpertsArgs& args) {
  const bool wide = args.x.dtype == DType::kF32;
  WR_CHECK(wide || args.x.dtype == DType::kBF16);
  WR_CHECK_GE(args.x.shape[0], args.y.shape[0] * args.lists.num_chosen);
  WR_CHECK_EQ(args.x.shape[1], args.y.shape[1]);
  WR_CHECK_EQ(args.weights.shape[0], args.y.shape[0]);
  WR_CHECK(args.y.shape[1] % kVec == 0 &&
               rows_fit_vec(args.x.data, args.x.stride, dtype_bytes(args.x.dtype)) &&
               rows_fit_vec(args.y.data, args.y.stride[0], sizeof(float)),
           "rows of {} elements",
           args.y.shape[1]);
  WR_CHECK(args.next_norm == nullptr ||
               (args.y.shape[1] % 64 == 0 && args.next_norm->rows.dtype == DType::kBF16),
           "no norm of rows of {} elements",
           args.y.shape[1]);
  if (args.y.shape[0] == 0) {
    return;
  }
  wide ? launch_sums<float>(stream, args) : launch_sums<Bf16>(stream, args);
}

}  // namespace warprow::cuda
