// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/experts/combine_experts.h"
#include "kernels/linear/finish.cuh"

#include <algorithm>

// Formula, shapes, preconditions: combine_experts.h. x is float32 or bf16.
// Mapping: a thread has eight elements of a row; CTAs take rows in turn.
// Bytes moved: T * num_chosen * width elements of x, T * width float32 (twice with `add`), T * width bf16 with next_norm.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kCtasOfSm = 4;
constexpr int kAtOnce = 8;  // choices whose values a thread loads together

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
};

// Eight elements as they lie in memory.
template <typename X>
struct Eight {
  uint4 words[sizeof(X) / 2];
};

// In assembly, as the compiler otherwise waits for one element before it loads the next.
template <typename X>
__device__ __forceinline__ void load_if(bool valid, const X* from, Eight<X>& to) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(X)) / 2; ++i) {
    uint4& words = to.words[i];
    words = {};
    asm volatile(
        "{\n"
        ".reg .pred valid;\n"
        "setp.ne.b32 valid, %5, 0;\n"
        "@valid ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n"
        "}\n"
        : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w)
        : "l"(reinterpret_cast<const uint4*>(from) + i), "r"(valid ? 1 : 0));
  }
}

// The first half of a norm, for eight columns of a row from `col` on, with the bits of leave_squares. There a lane has four
// columns; here it has those of two adjacent lanes.
template <typename X>
__device__ __forceinline__ void begin_norm(const Sums<X>& a,
                                           int64_t row,
                                           int col,
                                           const float (&y)[kVec]) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned lanes = 0xffU << (lane & 24U);
  float quarters[2];
  float weighted_y[kVec];
  load8(a.next_weight + col, weighted_y);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 four{y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]};
    quarters[i] = quarter_of_squares<4, 2>(four, lanes);
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    weighted_y[i] = __fmul_rn(y[i], weighted_y[i]);
  }
  store8(a.next_rows + row * a.width + col, weighted_y);
  const int64_t sum = (row * a.width + col) / 64;
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

template <typename X>
__global__ void __launch_bounds__(kThreads) combine_rows(const Sums<X> a) {
  const int col = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kVec;
  // The experts' products waited for the lists and weights, so these may be read before pdl_wait.
  const int rows = a.num_rows == nullptr ? a.max_rows : min(a.max_rows, __ldcg(a.num_rows));
  bool waited = false;
  for (auto row = static_cast<int64_t>(blockIdx.x); row < rows; row += gridDim.x) {
    const int32_t* places = a.places + row * a.num_chosen;
    const float* weights = a.weights + row * a.weights_stride;
    int32_t place[kAtOnce];
    float weight[kAtOnce];
    const auto load_choices = [&](int first) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const bool is_choice = first + j < a.num_chosen;
        place[j] = is_choice ? __ldcg(places + first + j) : 0;
        weight[j] = is_choice ? __ldcg(weights + first + j) : 0.0F;
      }
    };
    load_choices(0);
    if (!waited) {
      pdl_wait();
      pdl_release();
      waited = true;
    }
    if (col >= a.width) {
      continue;
    }
    float* y = a.y + row * a.y_stride + col;
    float old[kVec] = {};
    if (a.add) {
      load8(y, old);
    }
    float sum[kVec] = {};
    for (int first = 0; first < a.num_chosen; first += kAtOnce) {
      if (first > 0) {
        load_choices(first);
      }
      Eight<X> eight[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        load_if(first + j < a.num_chosen, a.x + place[j] * a.x_stride + col, eight[j]);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (first + j < a.num_chosen) {
          float x[kVec];
          load8(reinterpret_cast<const X*>(eight[j].words), x);
#pragma unroll
          for (int i = 0; i < kVec; ++i) {
            sum[i] = fmaf(weight[j], x[i], sum[i]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      sum[i] = __fadd_rn(sum[i], old[i]);
    }
    store8(y, sum);
    if (a.next_weight != nullptr) {
      begin_norm(a, row, col, sum);
    }
  }
  if (!waited) {
    pdl_wait();
  }
}

template <typename X>
void launch_sums(Stream& stream, const CombineExpertsArgs& args) {
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
                     .quartered = args.y.shape[0] <= kMaxQuarteredRows};
  const int32_t parts = ceil_div(sums.width, kThreads * kVec);
  const int32_t most = stream.device().facts().num_sms * kCtasOfSm / parts;
  const dim3 grid(static_cast<unsigned>(std::clamp(most, 1, sums.max_rows)),
                  static_cast<unsigned>(parts));
  launch(stream, "combine_experts", {grid, kThreads}, combine_rows<X>, sums);
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
