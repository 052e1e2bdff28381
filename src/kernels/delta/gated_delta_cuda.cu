// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/delta/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

// Formula, shapes, preconditions: gated_delta.h. qkvz, ba and out are all bf16 or all float32. Between them everything is
// float32; q, k and v are not overwritten.
// Mapping: a CTA a row and value head. It keeps the head's matrix in registers over all of the row's tokens, and takes them
//   in tiles of 16: its threads convolve the tile's channels, its warps norm queries and keys, then each warp runs the
//   recurrence on 16 columns of the matrix, then warps norm the outputs. In a warp eight groups of lanes share the keys and
//   four the columns.
// State: for each value head the last inputs of its own channels [conv_len - 1, 2 * key_dim + value_dim], queries, keys and
//   values, then its matrix. Value heads of one key head each have that head's inputs, so CTAs share nothing.
// Bytes moved: a row's state twice, once a step; qkvz of a key head once for each of its value heads.
// Numerics: float32. A lane sums over its keys in order, then a butterfly over eight lanes: the same for every column, tile
//   and number of tokens. o = exp(g) q^T S + (q^T k) change, with S before the token.
// Preconditions: key_dim and value_dim are multiples of 4 and at most 128, conv_len at most 4. Pages of blocks of the table,
//   lengths and states were written before the kernel before the last one with griddepcontrol.wait in front of its
//   griddepcontrol.launch_dependents; they are read before griddepcontrol.wait.
namespace warprow::cuda {
namespace {

constexpr int kTile = 16;     // tokens
constexpr int kColumns = 16;  // of a warp
constexpr int kKeyLanes = 8;  // that share a column's keys
constexpr int kMaxThreads = 256;
constexpr int kTaps = kMaxCudaConvLen;
constexpr float kNormEps = 1e-6F;  // of queries and keys

template <typename T>
struct Params {
  GatedDeltaShape shape;
  const T* qkvz;
  int64_t qkvz_stride;
  const T* ba;
  int64_t ba_stride;
  bool ba_by_key_head;
  const float* conv;
  const float* rate;
  const float* dt_bias;
  const float* norm_weight;
  float norm_eps;
  float query_scale;
  const int32_t* idx_mapping;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  StatePages pages;
  T* out;
  int64_t out_stride;
};

// One row's tokens and states.
struct Row {
  int32_t first_tok;
  int32_t num_toks;
  int32_t num_before;  // of these, tokens before the checkpoint; 0: none is kept
  const int32_t* own;  // [num_pages] each
  const int32_t* kept;
  const int32_t* start;  // null: zeros
};

template <typename T>
__device__ __forceinline__ Row row_of(const Params<T>& a, int batch_idx, int32_t index) {
  Row row;
  row.first_tok = a.query_start_loc[batch_idx];
  row.num_toks = a.query_start_loc[batch_idx + 1] - row.first_tok;
  const int32_t end = a.seq_lens[batch_idx];
  const int32_t computed = end - row.num_toks;
  row.own = a.pages.table.of_row(index);
  row.kept = row.own + a.pages.num_pages;
  const int32_t* given = row.kept + a.pages.num_pages;
  row.start = computed <= 0 ? nullptr : given[0] != 0 ? given : row.own;
  const int32_t checkpoint = (end - 1) / a.pages.unit * a.pages.unit;
  row.num_before = row.kept[0] != 0 ? max(0, checkpoint - computed) : 0;
  return row;
}

// Walks over a state in its pages, forwards.
struct StateWalk {
  const StatePages& pages;
  const int32_t* cells;
  int32_t page;
  int32_t at;  // in the page
  int32_t block;

  __device__ __forceinline__ StateWalk(const StatePages& pages, const int32_t* cells, int32_t first)
      : pages(pages), cells(cells) {
    const auto floats = static_cast<int32_t>(pages.page_floats);
    page = first / floats;
    at = first - page * floats;
    block = page < pages.num_pages ? cells[page] : 0;
  }
  __device__ __forceinline__ void skip(int32_t floats) {
    const auto size = static_cast<int32_t>(pages.page_floats);
    at += floats;
    if (at >= size) {
      do {
        at -= size;
        ++page;
      } while (at >= size);
      block = page < pages.num_pages ? cells[page] : 0;
    }
  }
  // Null if the block is.
  [[nodiscard]] __device__ __forceinline__ float* here() const {
    return block == 0 ? nullptr : pages.data + block * pages.page_stride + at;
  }
};

// A lane's part of a head's matrix: kKeys keys, in fours at a distance of 32, of four columns.
template <int kKeys>
struct Matrix {
  float4 s[kKeys];

  // The distance from the key before, in keys.
  __device__ static constexpr int key_step(int i) { return i % 4 == 0 ? 4 * kKeyLanes - 3 : 1; }

  __device__ __forceinline__ void load(const StatePages& pages,
                                       const int32_t* cells,
                                       int32_t first,
                                       int first_key,
                                       int key_dim,
                                       int value_dim) {
    if (cells == nullptr) {
#pragma unroll
      for (float4& four : s) {
        four = {};
      }
      return;
    }
    StateWalk walk(pages, cells, first + first_key * value_dim);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (i > 0) {
        walk.skip(key_step(i) * value_dim);
      }
      const float* from = walk.here();
      const bool mine = first_key + i / 4 * 4 * kKeyLanes < key_dim;  // four keys at a time
      s[i] = mine && from != nullptr ? __ldcs(reinterpret_cast<const float4*>(from)) : float4{};
    }
  }
  __device__ __forceinline__ void save(const StatePages& pages,
                                       const int32_t* cells,
                                       int32_t first,
                                       int first_key,
                                       int key_dim,
                                       int value_dim) const {
    StateWalk walk(pages, cells, first + first_key * value_dim);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (i > 0) {
        walk.skip(key_step(i) * value_dim);
      }
      float* to = walk.here();
      if (first_key + i / 4 * 4 * kKeyLanes < key_dim && to != nullptr) {
        __stcs(reinterpret_cast<float4*>(to), s[i]);
      }
    }
  }
};

template <typename T>
__device__ __forceinline__ float2 load_two(const T* p) {
  if constexpr (std::is_same_v<T, float>) {
    return *reinterpret_cast<const float2*>(p);
  } else {
    float2 v;
    unpack2(*reinterpret_cast<const uint32_t*>(p), v.x, v.y);
    return v;
  }
}

__device__ __forceinline__ float silu(float x) { return x / (1.0F + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20.0F ? x : log1pf(expf(x)); }

// A thread's two channels: of queries, keys, values, or the gate of the output, which is not convolved.
struct Channels {
  int in_head;     // among the head's [2 * key_dim + value_dim]; -1: no channels, or the gate's
  int64_t column;  // of qkvz
  bool gate;
  bool any;

  __device__ __forceinline__ Channels(const GatedDeltaShape& s, int head) {
    const int at = 2 * static_cast<int>(threadIdx.x);
    const int key_head = head / (s.num_value_heads / s.num_key_heads);
    const int mixed = 2 * s.key_dim + s.value_dim;
    any = at < mixed + s.value_dim;
    gate = any && at >= mixed;
    in_head = at < mixed ? at : -1;
    if (at < s.key_dim) {
      column = int64_t{key_head} * s.key_dim + at;
    } else if (at < 2 * s.key_dim) {
      column = s.key_size() + int64_t{key_head} * s.key_dim + at - s.key_dim;
    } else if (at < mixed) {
      column = 2 * s.key_size() + int64_t{head} * s.value_dim + at - 2 * s.key_dim;
    } else {
      column = s.num_channels() + int64_t{head} * s.value_dim + at - mixed;
    }
  }
};

// A tile of tokens in shared memory.
template <int kKeys>
struct Tile {
  static constexpr int kKeyDim = kKeys * kKeyLanes;
  float q[kTile][kKeyDim];
  float k[kTile][kKeyDim];
  float v[kTile][128];  // then the outputs
  float z[kTile][128];
  float decay[kTile];
  float beta[kTile];
  float qk[kTile];
};

// The last inputs of a thread's channels, the latest in front.
struct Window {
  float2 seen[kTaps - 1] = {};

  __device__ __forceinline__ void load(const GatedDeltaShape& s,
                                       const StatePages& pages,
                                       const int32_t* cells,
                                       int32_t first,
                                       int channel) {
    if (cells == nullptr || channel < 0) {
      return;
    }
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) {
      if (j < s.conv_len - 1) {
        const StateWalk walk(
            pages, cells, first + (s.conv_len - 2 - j) * s.head_channels() + channel);
        const float* from = walk.here();
        seen[j] = from == nullptr ? float2{} : *reinterpret_cast<const float2*>(from);
      }
    }
  }
  __device__ __forceinline__ void save(const GatedDeltaShape& s,
                                       const StatePages& pages,
                                       const int32_t* cells,
                                       int32_t first,
                                       int channel) const {
    if (channel < 0) {
      return;
    }
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) {
      if (j < s.conv_len - 1) {
        const StateWalk walk(
            pages, cells, first + (s.conv_len - 2 - j) * s.head_channels() + channel);
        if (float* to = walk.here(); to != nullptr) {
          *reinterpret_cast<float2*>(to) = seen[j];
        }
      }
    }
  }
};

// Fills the tile with n tokens from `tok` on: convolved queries, keys and values, and gates of the output.
template <typename T, int kKeys>
__device__ __forceinline__ void convolve(const Params<T>& a,
                                         const Channels& channels,
                                         const float2 (&weight)[kTaps],
                                         Window& window,
                                         int64_t tok,
                                         int n,
                                         Tile<kKeys>& tile) {
  if (!channels.any) {
    return;
  }
  const T* x = a.qkvz + tok * a.qkvz_stride + channels.column;
  float2 in[kTile];
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    in[t] = t < n ? load_two(x + t * a.qkvz_stride) : float2{};
  }
  const GatedDeltaShape& s = a.shape;
  const int at = 2 * static_cast<int>(threadIdx.x);
  const int mixed = 2 * s.key_dim + s.value_dim;
  float* to = at < s.key_dim       ? &tile.q[0][at]
              : at < 2 * s.key_dim ? &tile.k[0][at - s.key_dim]
              : at < mixed         ? &tile.v[0][at - 2 * s.key_dim]
                                   : &tile.z[0][at - mixed];
  const int stride = at < 2 * s.key_dim ? Tile<kKeys>::kKeyDim : 128;
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    if (t < n) {
      float2 y = in[t];
      if (!channels.gate) {
        float2 sum = {0.0F, 0.0F};
#pragma unroll
        for (int j = kTaps - 1; j > 0; --j) {
          sum.x = fmaf(weight[j].x, window.seen[j - 1].x, sum.x);
          sum.y = fmaf(weight[j].y, window.seen[j - 1].y, sum.y);
        }
        sum.x = fmaf(weight[0].x, in[t].x, sum.x);
        sum.y = fmaf(weight[0].y, in[t].y, sum.y);
#pragma unroll
        for (int j = kTaps - 2; j > 0; --j) {
          window.seen[j] = window.seen[j - 1];
        }
        window.seen[0] = in[t];
        y = {silu(sum.x), silu(sum.y)};
      }
      *reinterpret_cast<float2*>(to + t * stride) = y;
    }
  }
}

// Norms a token's query and key, and computes its gates; a warp.
template <typename T, int kKeys>
__device__ __forceinline__ void prepare(
    const Params<T>& a, int head, int64_t tok, int t, Tile<kKeys>& tile) {
  constexpr int kEach = kKeys * kKeyLanes / 32;
  const GatedDeltaShape& s = a.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float q[kEach];
  float k[kEach];
  float qq = 0.0F;
  float kk = 0.0F;
  float qk = 0.0F;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = lane + 32 * i;
    q[i] = at < s.key_dim ? tile.q[t][at] : 0.0F;
    k[i] = at < s.key_dim ? tile.k[t][at] : 0.0F;
    qq = fmaf(q[i], q[i], qq);
    kk = fmaf(k[i], k[i], kk);
    qk = fmaf(q[i], k[i], qk);
  }
  qq = sum_of_lanes(qq);
  kk = sum_of_lanes(kk);
  qk = sum_of_lanes(qk);
  const float of_q = a.query_scale / sqrtf(qq + kNormEps);
  const float of_k = 1.0F / sqrtf(kk + kNormEps);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    tile.q[t][lane + 32 * i] = q[i] * of_q;
    tile.k[t][lane + 32 * i] = k[i] * of_k;
  }
  if (lane == 0) {
    const int each = s.num_value_heads / s.num_key_heads;
    const int b = a.ba_by_key_head ? head / each * 2 * each + head % each : head;
    const int apart = a.ba_by_key_head ? each : s.num_value_heads;
    const T* ba = a.ba + tok * a.ba_stride + b;
    tile.decay[t] = expf(a.rate[head] * softplus(to_float(ba[apart]) + a.dt_bias[head]));
    tile.beta[t] = 1.0F / (1.0F + expf(-to_float(ba[0])));
    tile.qk[t] = qk * of_q * of_k;
  }
}

// Advances a warp's columns by token t of the tile and leaves their outputs in place of the values.
template <int kKeys>
__device__ __forceinline__ void advance(
    Matrix<kKeys>& m, Tile<kKeys>& tile, int t, int first_key, int first_column, int value_dim) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float k[kKeys];
  float4 known = {};
  float4 attended = {};
#pragma unroll
  for (int i = 0; i < kKeys; i += 4) {
    const float4 keys = *reinterpret_cast<const float4*>(&tile.k[t][first_key + i * kKeyLanes]);
    const float4 queries = *reinterpret_cast<const float4*>(&tile.q[t][first_key + i * kKeyLanes]);
    k[i] = keys.x, k[i + 1] = keys.y, k[i + 2] = keys.z, k[i + 3] = keys.w;
    const float q[4] = {queries.x, queries.y, queries.z, queries.w};
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const float4 s = m.s[i + u];
      known.x = fmaf(s.x, k[i + u], known.x);
      known.y = fmaf(s.y, k[i + u], known.y);
      known.z = fmaf(s.z, k[i + u], known.z);
      known.w = fmaf(s.w, k[i + u], known.w);
      attended.x = fmaf(s.x, q[u], attended.x);
      attended.y = fmaf(s.y, q[u], attended.y);
      attended.z = fmaf(s.z, q[u], attended.z);
      attended.w = fmaf(s.w, q[u], attended.w);
    }
  }
  // Lanes 0 to 15 end with k^T S of a column each, lanes 16 to 31 with q^T S.
  const bool upper = (lane & 16) != 0;
  const bool second = (lane & 8) != 0;
  const bool odd = (lane & 4) != 0;
  const auto other = [](float v, int step) { return __shfl_xor_sync(~0U, v, step); };
  const float4 give = upper ? known : attended;
  float4 four = upper ? attended : known;
  four.x += other(give.x, 16);
  four.y += other(give.y, 16);
  four.z += other(give.z, 16);
  four.w += other(give.w, 16);
  float2 two = second ? float2{four.z, four.w} : float2{four.x, four.y};
  two.x += other(second ? four.x : four.z, 8);
  two.y += other(second ? four.y : four.w, 8);
  float one = odd ? two.y : two.x;
  one += other(odd ? two.x : two.y, 4);
  const int column = first_column + (second ? 2 : 0) + (odd ? 1 : 0);
  const float decay = tile.decay[t];
  const float value = column < value_dim ? tile.v[t][column] : 0.0F;
  const float change = (value - decay * one) * tile.beta[t];
  const auto from = [&](int of) { return __shfl_sync(~0U, change, of * 4 + lane % 4); };
  const float4 changes = {from(0), from(1), from(2), from(3)};
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    float4& s = m.s[i];
    s.x = fmaf(k[i], changes.x, s.x * decay);
    s.y = fmaf(k[i], changes.y, s.y * decay);
    s.z = fmaf(k[i], changes.z, s.z * decay);
    s.w = fmaf(k[i], changes.w, s.w * decay);
  }
  const float2 pair = second ? float2{changes.z, changes.w} : float2{changes.x, changes.y};
  if (upper && column < value_dim) {
    tile.v[t][column] = fmaf(tile.qk[t], odd ? pair.y : pair.x, one * decay);
  }
}

// The gated norm of a token's outputs; a warp.
template <typename T, int kKeys>
__device__ __forceinline__ void finish(
    const Params<T>& a, int head, int64_t tok, int t, const Tile<kKeys>& tile) {
  constexpr int kEach = 4;
  const int dim = a.shape.value_dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float x[kEach];
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = lane + 32 * i;
    x[i] = at < dim ? tile.v[t][at] : 0.0F;
    squares = fmaf(x[i], x[i], squares);
  }
  const float factor = 1.0F / sqrtf(sum_of_lanes(squares) / static_cast<float>(dim) + a.norm_eps);
  T* out = a.out + tok * a.out_stride + int64_t{head} * dim;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = lane + 32 * i;
    if (at < dim) {
      store(out + at, x[i] * factor * a.norm_weight[at] * silu(tile.z[t][at]));
    }
  }
}

template <typename T, int kKeys>
__global__ void __launch_bounds__(kMaxThreads, 2) advance_heads(
    const __grid_constant__ Params<T> a) {
  __shared__ __align__(16) Tile<kKeys> tile;
  const GatedDeltaShape& s = a.shape;
  const auto head = static_cast<int>(blockIdx.x);
  // The last rows of a batch have the most tokens.
  const auto batch_idx = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const int32_t index = a.idx_mapping[batch_idx];
  if (index < 0) {
    pdl_wait();
    return;
  }
  const Row row = row_of(a, batch_idx, index);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto warps = static_cast<int>(blockDim.x) / 32;
  const int first_key = lane / 4 * 4;
  const int first_column = warp * kColumns + lane % 4 * 4;
  const bool has_columns = first_column < s.value_dim;
  const auto of_window = static_cast<int32_t>(head * s.head_state_floats());
  const int32_t of_matrix = of_window + (s.conv_len - 1) * s.head_channels() + first_column;
  Matrix<kKeys> m;
  m.load(a.pages, has_columns ? row.start : nullptr, of_matrix, first_key, s.key_dim, s.value_dim);
  const Channels channels(s, head);
  Window window;
  window.load(s, a.pages, row.start, of_window, channels.in_head);
  float2 weight[kTaps] = {};  // of the latest input first
  if (channels.in_head >= 0) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      if (j < s.conv_len) {
        weight[j] = load_two(a.conv + (s.conv_len - 1 - j) * s.num_channels() + channels.column);
      }
    }
  }
  pdl_wait();
  pdl_release();
  const auto save = [&](const int32_t* cells) {
    if (has_columns) {
      m.save(a.pages, cells, of_matrix, first_key, s.key_dim, s.value_dim);
    }
    window.save(s, a.pages, cells, of_window, channels.in_head);
  };
  for (int done = 0; done < row.num_toks;) {
    if (done > 0 && done == row.num_before) {
      save(row.kept);
    }
    const int limit = done < row.num_before ? row.num_before : row.num_toks;
    const int n = min(kTile, limit - done);
    const int64_t tok = int64_t{row.first_tok} + done;
    convolve(a, channels, weight, window, tok, n, tile);
    __syncthreads();
    for (int t = warp; t < n; t += warps) {
      prepare(a, head, tok + t, t, tile);
    }
    __syncthreads();
    if (warp * kColumns < s.value_dim) {
      for (int t = 0; t < n; ++t) {
        advance(m, tile, t, first_key, first_column, s.value_dim);
      }
    }
    __syncthreads();
    for (int t = warp; t < n; t += warps) {
      finish(a, head, tok + t, t, tile);
    }
    __syncthreads();
    done += n;
  }
  save(row.own);
}

template <typename T, int kKeys>
void launch_heads(Stream& stream, const GatedDeltaArgs& args) {
  const GatedDeltaShape& shape = args.shape;
  Params<T> params{.shape = shape,
                   .qkvz = static_cast<const T*>(args.qkvz.data),
                   .qkvz_stride = args.qkvz.stride,
                   .ba = static_cast<const T*>(args.ba.data),
                   .ba_stride = args.ba.stride,
                   .ba_by_key_head = args.ba_by_key_head,
                   .conv = args.conv,
                   .rate = args.rate,
                   .dt_bias = args.dt_bias,
                   .norm_weight = args.norm_weight.data,
                   .norm_eps = args.norm_eps,
                   .query_scale = 1.0F / std::sqrt(static_cast<float>(shape.key_dim)),
                   .idx_mapping = args.idx_mapping.data,
                   .query_start_loc = args.query_start_loc.data,
                   .seq_lens = args.seq_lens.data,
                   .pages = args.pages,
                   .out = static_cast<T*>(args.out.data),
                   .out_stride = args.out.stride};
  const int warps = std::max(ceil_div(shape.value_dim, kColumns),
                             ceil_div(2 * shape.key_dim + 2 * shape.value_dim, 64));
  // A row has a token at least.
  const int64_t rows = std::min(args.out.shape[0], args.idx_mapping.shape[0]);
  const dim3 grid(static_cast<unsigned>(shape.num_value_heads), static_cast<unsigned>(rows));
  launch(stream,
         "gated_delta",
         {grid, static_cast<unsigned>(warps * 32)},
         advance_heads<T, kKeys>,
         params);
}

template <typename T>
void launch_of_type(Stream& stream, const GatedDeltaArgs& args) {
  args.shape.key_dim <= 4 * kKeyLanes ? launch_heads<T, 4>(stream, args)
                                      : launch_heads<T, 16>(stream, args);
}

}  // namespace

void gated_delta(Stream& stream, const GatedDeltaArgs& args) {
  const GatedDeltaShape& shape = args.shape;
  WR_CHECK_EQ(args.qkvz.shape[0], args.out.shape[0]);
  WR_CHECK_EQ(args.qkvz.shape[1], shape.num_channels() + shape.value_size());
  WR_CHECK_EQ(args.ba.shape[1], 2 * int64_t{shape.num_value_heads});
  WR_CHECK_EQ(args.out.shape[1], shape.value_size());
  WR_CHECK(args.qkvz.dtype == args.out.dtype && args.ba.dtype == args.out.dtype,
           "qkvz, ba and out have different types");
  WR_CHECK(fits_cuda(shape), "sizes of a gated delta net");
  WR_CHECK(args.qkvz.stride % 2 == 0 && args.pages.page_floats % 4 == 0 &&
               args.pages.page_stride % 4 == 0,
           "alignment of a gated delta net's inputs and states");
  WR_CHECK_GE(args.pages.num_pages * args.pages.page_floats, shape.state_floats());
  if (args.out.shape[0] == 0) {
    return;
  }
  if (args.out.dtype == DType::kF32) {
    launch_of_type<float>(stream, args);
  } else {
    launch_of_type<Bf16>(stream, args);
  }
}

}  // namespace warprow::cuda
