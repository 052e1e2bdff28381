// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/plain/plain_attention.h"
#include "kernels/cuda/vector_access.cuh"

#include <algorithm>

namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;  // and keys of a tile
constexpr int kWarps = kThreads / 32;
template <typename T>
struct Params {
  const T* q;
  int64_t q_stride;
  T* out;
  int64_t out_stride;
  float* lse;  // or null
  int64_t lse_stride;
  const float* sinks;  // or null
  const T* k;
  const T* v;
  int64_t block_stride;
  int64_t head_stride;
  int64_t token_stride;
  BlockTableView block_table;
  const int32_t* idx_mapping;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  int32_t num_rows;
  int32_t block_size;
  int32_t group;
  int32_t dim_k;
  int32_t dim_v;
  int32_t window;  // 0: none
  float scale;
  float soft_cap;
  bool causal;
};

// A query's place in the cache: keys `begin` to end - 1 of the row's blocks.
struct Query {
  const int32_t* blocks = nullptr;  // null: a padding token
  int32_t begin = 0;
  int32_t end = 0;
};

template <typename T>
__device__ __forceinline__ Query query_of(const Params<T>& p, int32_t tok) {
  if (tok >= p.query_start_loc[p.num_rows]) {
    return {};
  }
  int32_t row = 0;  // the last one that begins at or before the token
  for (int32_t above = p.num_rows; above - row > 1;) {
    const int32_t middle = (row + above) / 2;
    (p.query_start_loc[middle] <= tok ? row : above) = middle;
  }
  const int32_t index = p.idx_mapping[row];
  const int32_t len = p.seq_lens[row];
  if (index < 0 || len <= 0) {
    return {};
  }
  const int32_t position = len - p.query_start_loc[row + 1] + tok;
  Query query;
  query.blocks = p.block_table.of_row(index);
  query.begin = p.window > 0 ? max(0, position - p.window + 1) : 0;
  query.end = p.causal ? position + 1 : p.window > 0 ? min(position + p.window, len) : len;
  return query;
}

__device__ __forceinline__ float max_of_block(float v, float (&maxima)[kWarps]) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    v = fmaxf(v, __shfl_xor_sync(~0U, v, step));
  }
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = v;
  }
  __syncthreads();
  v = maxima[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) {
    v = fmaxf(v, maxima[i]);
  }
  return v;
}

template <typename T>
__device__ __forceinline__ float score_of(const Params<T>& p, const float* q, const T* key) {
  float dot = 0.0F;
  for (int d = 0; d < p.dim_k; d += kVec) {
    float k[kVec];
    load8(key + d, k);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      dot = __fmaf_rn(q[d + i], k[i], dot);
    }
  }
  const float score = __fmul_rn(dot, p.scale);
  return p.soft_cap > 0.0F ? p.soft_cap * tanhf(score / p.soft_cap) : score;
}

// kElements: of the output, in a thread.
template <typename T, int kElements>
__global__ void __launch_bounds__(kThreads) attend(const __grid_constant__ Params<T> p) {
  __shared__ float q[kElements * kThreads];
  __shared__ float weights[kThreads];
  __shared__ int64_t places[kThreads];  // of the tile's keys, in elements
  __shared__ float maxima[kWarps];
  pdl_wait();
  pdl_release();
  const auto tok = static_cast<int32_t>(blockIdx.x);
  const auto head = static_cast<int32_t>(blockIdx.y);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const Query query = query_of(p, tok);
  if (query.blocks == nullptr) {
    return;
  }
  for (int d = thread; d < p.dim_k; d += kThreads) {
    q[d] = to_float(p.q[tok * p.q_stride + int64_t{head} * p.dim_k + d]);
  }
  float top = -INFINITY;
  float sum = 0.0F;
  float out[kElements] = {};
  for (int32_t first = query.begin / kThreads * kThreads; first < query.end; first += kThreads) {
    __syncthreads();  // q is written; the weights of the tile before are read
    const int32_t key = first + thread;
    float score = -INFINITY;
    if (key >= query.begin && key < query.end) {
      const int64_t place = query.blocks[key / p.block_size] * p.block_stride +
                            key % p.block_size * p.token_stride + head / p.group * p.head_stride;
      places[thread] = place;
      score = score_of(p, q, p.k + place);
    }
    const float higher = fmaxf(top, max_of_block(score, maxima));
    weights[thread] = expf(__fsub_rn(score, higher));
    __syncthreads();
    const float shrink = expf(__fsub_rn(top, higher));
    // Keys that the query does not see are not read: there may be NaN.
    const int32_t from = max(query.begin - first, 0);
    const int32_t to = min(query.end - first, kThreads);
    float tile_sum = 0.0F;
    float tile_out[kElements] = {};
    for (int32_t i = from; i < to; ++i) {
      const float weight = weights[i];
      const T* value = p.v + places[i];
      tile_sum = __fadd_rn(tile_sum, weight);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int32_t d = thread + e * kThreads;
        if (d < p.dim_v) {
          tile_out[e] = __fmaf_rn(weight, to_float(value[d]), tile_out[e]);
        }
      }
    }
    sum = __fmaf_rn(sum, shrink, tile_sum);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      out[e] = __fmaf_rn(out[e], shrink, tile_out[e]);
    }
    top = higher;
  }
  float shrink = 1.0F;
  if (p.sinks != nullptr) {
    const float higher = fmaxf(top, p.sinks[head]);
    shrink = expf(__fsub_rn(top, higher));
    sum = __fmaf_rn(sum, shrink, expf(__fsub_rn(p.sinks[head], higher)));
    top = higher;
  }
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const int32_t d = thread + e * kThreads;
    if (d < p.dim_v) {
      store(p.out + tok * p.out_stride + int64_t{head} * p.dim_v + d,
            __fdiv_rn(__fmul_rn(out[e], shrink), sum));
    }
  }
  if (p.lse != nullptr && thread == 0) {
    p.lse[tok * p.lse_stride + head] = __fadd_rn(top, logf(sum));
  }
}

void check_args(const PagedAttentionArgs& args) {
  const KvLayerView& kv = args.kv;
  const int64_t rows = args.seq_lens.shape[0];
  WR_CHECK((kv.dtype == DType::kF32 || kv.dtype == DType::kBF16) && args.q.dtype == kv.dtype &&
               args.out.dtype == kv.dtype,
           "cache, queries and outputs of one type wanted, float32 or bf16");
  WR_CHECK(kv.head_dim_k % kVec == 0 && kv.head_dim_v % kVec == 0 &&
               kv.head_dim_k <= kMaxPlainHeadDim && kv.head_dim_v <= kMaxPlainHeadDim,
           "head sizes {} and {}",
           kv.head_dim_k,
           kv.head_dim_v);
  const size_t bytes = dtype_bytes(kv.dtype);
  WR_CHECK(rows_fit_vec(kv.k, kv.block_stride, bytes) &&
           rows_fit_vec(kv.k, kv.head_stride, bytes) && rows_fit_vec(kv.k, kv.token_stride, bytes));
  WR_CHECK_GT(kv.num_kv_heads, 0);
  WR_CHECK_EQ(args.num_q_heads % kv.num_kv_heads, 0);
  WR_CHECK_EQ(args.q.shape[0], args.out.shape[0]);
  WR_CHECK_EQ(args.q.shape[1], int64_t{args.num_q_heads} * kv.head_dim_k);
  WR_CHECK_EQ(args.out.shape[1], int64_t{args.num_q_heads} * kv.head_dim_v);
  WR_CHECK_EQ(args.idx_mapping.shape[0], rows);
  WR_CHECK_EQ(args.query_start_loc.shape[0], rows + 1);
}

template <typename T, int kElements>
void launch_elements(Stream& stream, const PagedAttentionArgs& args) {
  const KvLayerView& kv = args.kv;
  const Params<T> params{.q = static_cast<const T*>(args.q.data),
                         .q_stride = args.q.stride,
                         .out = static_cast<T*>(args.out.data),
                         .out_stride = args.out.stride,
                         .lse = args.lse.data,
                         .lse_stride = args.lse.stride[0],
                         .sinks = args.sinks.data,
                         .k = reinterpret_cast<const T*>(kv.k),
                         .v = reinterpret_cast<const T*>(kv.v),
                         .block_stride = kv.block_stride,
                         .head_stride = kv.head_stride,
                         .token_stride = kv.token_stride,
                         .block_table = args.block_table,
                         .idx_mapping = args.idx_mapping.data,
                         .query_start_loc = args.query_start_loc.data,
                         .seq_lens = args.seq_lens.data,
                         .num_rows = static_cast<int32_t>(args.seq_lens.shape[0]),
                         .block_size = kv.block_size,
                         .group = args.num_q_heads / kv.num_kv_heads,
                         .dim_k = kv.head_dim_k,
                         .dim_v = kv.head_dim_v,
                         .window = args.window,
                         .scale = args.scale,
                         .soft_cap = args.soft_cap,
                         .causal = args.causal};
  const dim3 grid(static_cast<unsigned>(args.q.shape[0]), static_cast<unsigned>(args.num_q_heads));
  launch(stream, "plain_attention", {grid, kThreads}, attend<T, kElements>, params);
}

template <typename T>
void launch_type(Stream& stream, const PagedAttentionArgs& args) {
  static_assert(kMaxPlainHeadDim == 4 * kThreads);
  if (std::max(args.kv.head_dim_k, args.kv.head_dim_v) <= 2 * kThreads) {
    launch_elements<T, 2>(stream, args);
  } else {
    launch_elements<T, 4>(stream, args);
  }
}

}  // namespace

void plain_attention(Stream& stream, const PagedAttentionArgs& args) {
  check_args(args);
  if (args.q.shape[0] == 0 || args.seq_lens.shape[0] == 0) {
    return;
  }
  if (args.kv.dtype == DType::kF32) {
    launch_type<float>(stream, args);
  } else {
    launch_type<Bf16>(stream, args);
  }
}

}  // namespace warprow::cuda
