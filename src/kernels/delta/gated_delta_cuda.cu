// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/device.h"
#include "kernels/cuda/cluster_memory.cuh"
#include "kernels/cuda/mbarrier.cuh"
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
//   four the columns. A few rows with many tokens would leave most SMs without work: on Hopper a cluster of four CTAs
//   divides the columns of a head, with 8 in a warp, and its CTAs exchange outputs through shared memory.
// Drafts: the state after the last token that is not a draft is stored when the CTA gets there, as a checkpoint is. For the
//   accepted drafts the same code runs in a second kernel, without outputs. Its CTAs take several rows each, since most rows
//   have no accepted drafts.
// State: for each value head the last inputs of its own channels [conv_len - 1, 2 * key_dim + value_dim], queries, keys and
//   values, then its matrix. Value heads of one key head each have that head's inputs, so CTAs share nothing.
// Bytes moved: a row's state twice, once a step; qkvz of a key head once for each of its value heads.
// Numerics: float32. A lane sums over its keys in order, then a butterfly over eight lanes: the same for every column, tile
//   and number of tokens. o = exp(g) q^T S + (q^T k) change, with S before the token.
// Preconditions: key_dim and value_dim are multiples of 4 and at most 128, conv_len at most 4. Block table, lengths and states
//   are read before griddepcontrol.wait. So between the kernels that wrote them and this one there is a kernel that calls
//   griddepcontrol.wait before griddepcontrol.launch_dependents.
namespace warprow::cuda {
namespace {

constexpr int kTile = 16;         // tokens
constexpr int kKeyLanes = 8;      // that share a column's keys
constexpr int kSplit = 4;         // CTAs of a cluster
constexpr int kSplitDim = 128;    // of the values of a head that a cluster divides
constexpr int kSplitWorkers = 4;  // warps of such a CTA that run the recurrence
constexpr int kSplitThreads = (kSplitWorkers + 5) * 32;
constexpr int kMaxThreads = 256;
constexpr int kMaxHeadPages = 128;
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
  const int32_t* cu_num_logits;  // null: there are no drafts
  const int32_t* num_sampled;    // null: a step; else its accepted drafts
  StatePages pages;
  int32_t first_row;
  int32_t num_rows;
  T* out;
  int64_t out_stride;
};

// One row's tokens and states.
struct Row {
  int32_t first_tok;
  int32_t num_toks;
  int32_t num_before;  // of these, tokens before the checkpoint; 0: none is kept
  int32_t num_stored;  // of these, tokens behind which the state is stored; the others are drafts
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
  row.num_stored = row.num_toks;
  if (a.cu_num_logits == nullptr) {
    return row;
  }
  const int32_t drafts = max(0, a.cu_num_logits[batch_idx + 1] - a.cu_num_logits[batch_idx] - 1);
  row.num_stored -= drafts;
  if (a.num_sampled != nullptr) {
    row.first_tok += row.num_stored;
    row.num_toks = min(max(0, a.num_sampled[batch_idx] - 1), drafts);
    row.num_stored = row.num_toks;
    row.num_before = 0;
    row.start = row.own;
  }
  return row;
}

// Walks over the state of a head in its pages, forwards. The cells are those from the page on in which it begins, and
// offsets count from that page's begin. None of them is a null block.
struct StateWalk {
  const StatePages& pages;
  const int32_t* cells;
  int32_t at;  // in the page
  int64_t block;

  __device__ __forceinline__ StateWalk(const StatePages& of, const int32_t* of_head, int32_t offset)
      : pages(of), cells(of_head), at(offset) {
    settle();
    block = *cells;
  }
  __device__ __forceinline__ void skip(int32_t floats) {
    at += floats;
    if (settle()) {
      block = *cells;
    }
  }
  [[nodiscard]] __device__ __forceinline__ float* here() const {
    return pages.data + block * pages.page_stride + at;
  }

 private:
  // Returns whether it went to another page.
  __device__ __forceinline__ bool settle() {
    const auto size = static_cast<int32_t>(pages.page_floats);
    const bool beyond = at >= size;
    while (at >= size) {
      at -= size;
      ++cells;
    }
    return beyond;
  }
};

// Two or four adjacent numbers.
template <int kCount>
struct Numbers;
template <>
struct Numbers<2> {
  using Vector = float2;
};
template <>
struct Numbers<4> {
  using Vector = float4;
};

// Only clusters have two columns a lane, so code for older GPUs does not use these two.
[[maybe_unused]] __device__ __forceinline__ void unpack(const float2& from, float (&to)[2]) {
  to[0] = from.x, to[1] = from.y;
}
__device__ __forceinline__ void unpack(const float4& from, float (&to)[4]) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}
[[maybe_unused]] __device__ __forceinline__ float2 pack(const float (&from)[2]) {
  return {from[0], from[1]};
}
__device__ __forceinline__ float4 pack(const float (&from)[4]) {
  return {from[0], from[1], from[2], from[3]};
}

// A lane's part of a head's matrix: kKeys keys, in fours at a distance of 32, of kColumns columns.
template <int kKeys, int kColumns>
struct Matrix {
  using Vector = typename Numbers<kColumns>::Vector;
  float s[kKeys][kColumns];

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
      for (int i = 0; i < kKeys; ++i) {
        unpack(Vector{}, s[i]);
      }
      return;
    }
    StateWalk walk(pages, cells, first + first_key * value_dim);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (i > 0) {
        walk.skip(key_step(i) * value_dim);
      }
      const bool mine = first_key + i / 4 * 4 * kKeyLanes < key_dim;  // four keys at a time
      unpack(mine ? __ldcs(reinterpret_cast<const Vector*>(walk.here())) : Vector{}, s[i]);
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
      if (first_key + i / 4 * 4 * kKeyLanes < key_dim) {
        __stcs(reinterpret_cast<Vector*>(walk.here()), pack(s[i]));
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

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0F + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20.0F ? x : log1pf(expf(x)); }

// A thread's two channels: of queries, keys, values, or the gate of the output, which is not convolved.
struct Channels {
  int in_head;     // among the head's [2 * key_dim + value_dim]; -1: no channels, or the gate's
  int64_t column;  // of qkvz
  int at;          // among those of the part: queries, keys, values, gates
  bool gate;
  bool any;

  // thread: among those that convolve; part: of so many that divide the head's values.
  __device__ __forceinline__
  Channels(const GatedDeltaShape& s, int thread, int head, int part, int parts) {
    at = 2 * thread;
    const int key_head = s.key_head(head);
    const int columns = s.value_dim / parts;
    const int keys = 2 * s.key_dim;
    const int first = part * columns;
    any = at < keys + 2 * columns;
    gate = any && at >= keys + columns;
    in_head = at < keys ? at : at < keys + columns ? at + first : -1;
    if (at < s.key_dim) {
      column = int64_t{key_head} * s.key_dim + at;
    } else if (at < keys) {
      column = s.key_size() + int64_t{key_head} * s.key_dim + at - s.key_dim;
    } else if (at < keys + columns) {
      column = 2 * s.key_size() + int64_t{head} * s.value_dim + first + at - keys;
    } else {
      column = s.num_channels() + int64_t{head} * s.value_dim + first + at - keys - columns;
    }
  }
};

// A tile of tokens in shared memory: queries, keys and gates, and values with output gates.
template <int kKeys>
struct KeyTile {
  static constexpr int kDim = kKeys * kKeyLanes;
  float q[kTile][kDim];
  float k[kTile][kDim];
  float decay[kTile];
  float beta[kTile];
  float qk[kTile];
};
template <int kWidth>
struct ValueTile {
  float v[kTile][kWidth];  // then the outputs
  float z[kTile][kWidth];  // after silu
};

// What a CTA loads to shared memory before its first tile. Without it, each later access would wait for global memory.
struct HeadConstants {
  int32_t start[kMaxHeadPages];  // cells of the head's pages
  int32_t own[kMaxHeadPages];
  float norm[128];
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
        seen[j] = *reinterpret_cast<const float2*>(walk.here());
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
        *reinterpret_cast<float2*>(walk.here()) = seen[j];
      }
    }
  }
};

// Fills the tile with n tokens from `tok` on: convolved queries, keys and values, and gates of the output.
template <typename T, int kKeys, int kWidth>
__device__ __forceinline__ void convolve(const Params<T>& a,
                                         const Channels& channels,
                                         const float2 (&weight)[kTaps],
                                         Window& window,
                                         int64_t tok,
                                         int n,
                                         int parts,
                                         KeyTile<kKeys>& keys,
                                         ValueTile<kWidth>& values) {
  // The inputs of accepted drafts have no gate of an output.
  if (!channels.any || (channels.gate && a.num_sampled != nullptr)) {
    return;
  }
  const T* x = a.qkvz + tok * a.qkvz_stride + channels.column;
  float2 in[kTile];
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    in[t] = t < n ? load_two(x + t * a.qkvz_stride) : float2{};
  }
  const GatedDeltaShape& s = a.shape;
  const int at = channels.at;
  const int mixed = 2 * s.key_dim + s.value_dim / parts;
  float* to = at < s.key_dim       ? &keys.q[0][at]
              : at < 2 * s.key_dim ? &keys.k[0][at - s.key_dim]
              : at < mixed         ? &values.v[0][at - 2 * s.key_dim]
                                   : &values.z[0][at - mixed];
  const int stride = at < 2 * s.key_dim ? KeyTile<kKeys>::kDim : kWidth;
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    if (t < n) {
      float2 sum = in[t];
      if (!channels.gate) {
        sum = {};
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
      }
      *reinterpret_cast<float2*>(to + t * stride) = {silu(sum.x), silu(sum.y)};
    }
  }
}

// The gates of a head's tokens. Each thread computes those of one token of a tile.
template <typename T>
struct Gates {
  const T* b;  // of the batch's first token
  int64_t stride;
  int32_t apart;  // from b to a
  float rate;
  float dt_bias;

  __device__ __forceinline__ Gates(const Params<T>& p, int head)
      : stride(p.ba_stride), rate(p.rate[head]), dt_bias(p.dt_bias[head]) {
    const int each = p.shape.num_value_heads / p.shape.num_key_heads;
    b = p.ba + (p.ba_by_key_head ? head / each * 2 * each + head % each : head);
    apart = p.ba_by_key_head ? each : p.shape.num_value_heads;
  }
  // b and a.
  __device__ __forceinline__ float2 load(int64_t tok) const {
    const T* from = b + tok * stride;
    return {to_float(from[0]), to_float(from[apart])};
  }
  template <int kKeys>
  __device__ __forceinline__ void put(const float2& ba, int t, KeyTile<kKeys>& tile) const {
    tile.decay[t] = expf(rate * softplus(ba.y + dt_bias));
    tile.beta[t] = 1.0F / (1.0F + expf(-ba.x));
  }
};

// Norms a token's query and key; a warp.
template <int kKeys>
__device__ __forceinline__ void prepare(const GatedDeltaShape& s,
                                        float query_scale,
                                        int t,
                                        KeyTile<kKeys>& tile) {
  constexpr int kEach = kKeys * kKeyLanes / 32;
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
  const float of_q = query_scale * rsqrtf(qq + kNormEps);
  const float of_k = rsqrtf(kk + kNormEps);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    tile.q[t][lane + 32 * i] = q[i] * of_q;
    tile.k[t][lane + 32 * i] = k[i] * of_k;
  }
  if (lane == 0) {
    tile.qk[t] = qk * of_q * of_k;
  }
}

// Advances a warp's columns by token t of the tile, and overwrites the token's values with the outputs. first_column: the
// lane's, in the tile.
template <int kKeys, int kColumns, int kWidth>
__device__ __forceinline__ void advance(Matrix<kKeys, kColumns>& m,
                                        const KeyTile<kKeys>& tile,
                                        ValueTile<kWidth>& values,
                                        int t,
                                        int first_key,
                                        int first_column,
                                        int num_columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float k[kKeys];
  float known[kColumns] = {};
  float attended[kColumns] = {};
#pragma unroll
  for (int i = 0; i < kKeys; i += 4) {
    const float4 keys = *reinterpret_cast<const float4*>(&tile.k[t][first_key + i * kKeyLanes]);
    const float4 queries = *reinterpret_cast<const float4*>(&tile.q[t][first_key + i * kKeyLanes]);
    k[i] = keys.x, k[i + 1] = keys.y, k[i + 2] = keys.z, k[i + 3] = keys.w;
    const float q[4] = {queries.x, queries.y, queries.z, queries.w};
#pragma unroll
    for (int u = 0; u < 4; ++u) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        known[c] = fmaf(m.s[i + u][c], k[i + u], known[c]);
        attended[c] = fmaf(m.s[i + u][c], q[u], attended[c]);
      }
    }
  }
  // Lanes 0 to 15 end with k^T S of a column each (with two columns a lane, two lanes have the same), lanes 16 to 31 with
  // q^T S.
  const bool upper = (lane & 16) != 0;
  const bool second = (lane & 8) != 0;
  const bool odd = (lane & 4) != 0;
  const auto other = [](float v, int step) { return __shfl_xor_sync(~0U, v, step); };
  float all[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    all[c] = (upper ? attended[c] : known[c]) + other(upper ? known[c] : attended[c], 16);
  }
  constexpr int kHalf = kColumns / 2;
  float half[kHalf];
#pragma unroll
  for (int c = 0; c < kHalf; ++c) {
    half[c] = (second ? all[kHalf + c] : all[c]) + other(second ? all[c] : all[kHalf + c], 8);
  }
  float one;
  if constexpr (kColumns == 4) {
    one = (odd ? half[1] : half[0]) + other(odd ? half[0] : half[1], 4);
  } else {
    one = half[0] + other(half[0], 4);
  }
  const int mine = kColumns == 4 ? (second ? 2 : 0) + (odd ? 1 : 0) : (second ? 1 : 0);
  const int column = first_column + mine;
  const float decay = tile.decay[t];
  const float value = column < num_columns ? values.v[t][column] : 0.0F;
  const float change = (value - decay * one) * tile.beta[t];
  float changes[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    changes[c] = __shfl_sync(~0U, change, c * (16 / kColumns) + lane % 4);
  }
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      m.s[i][c] = fmaf(k[i], changes[c], m.s[i][c] * decay);
    }
  }
  float of_mine = changes[0];
#pragma unroll
  for (int c = 1; c < kColumns; ++c) {
    of_mine = mine == c ? changes[c] : of_mine;
  }
  if (upper && (kColumns == 4 || !odd) && column < num_columns) {
    values.v[t][column] = fmaf(tile.qk[t], of_mine, one * decay);
  }
}

// The gated norm of a token's outputs; a warp. get(row, i): element 32 * i + lane of a row that begins there.
template <typename T, int kWidth, typename Get>
__device__ __forceinline__ void finish(const Params<T>& a,
                                       int head,
                                       int64_t tok,
                                       int t,
                                       const float (&norm)[128],
                                       const ValueTile<kWidth>& values,
                                       const Get& get) {
  constexpr int kEach = 4;
  const int dim = a.shape.value_dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float x[kEach];
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    x[i] = lane + 32 * i < dim ? get(values.v[t], i) : 0.0F;
    squares = fmaf(x[i], x[i], squares);
  }
  const float factor = rsqrtf(sum_of_lanes(squares) / static_cast<float>(dim) + a.norm_eps);
  T* out = a.out + tok * a.out_stride + int64_t{head} * dim;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = lane + 32 * i;
    if (at < dim) {
      store(out + at, x[i] * factor * norm[at] * get(values.z[t], i));
    }
  }
}

// A CTA's row and head, and where in the pages the head's state lies.
template <typename T>
struct Place {
  int head;
  int32_t first_page;  // in which the head's state begins
  int32_t of_window;   // offsets from that page's begin
  int32_t of_matrix;
  Row row;

  // Returns false for a row of padding.
  __device__ __forceinline__ bool find(const Params<T>& a, int of_head, int batch_idx) {
    const int32_t index = a.idx_mapping[batch_idx];
    if (index < 0) {
      return false;
    }
    head = of_head;
    row = row_of(a, batch_idx, index);
    const auto page_floats = static_cast<int32_t>(a.pages.page_floats);
    const auto state = static_cast<int32_t>(head * a.shape.head_state_floats());
    first_page = state / page_floats;
    of_window = state - first_page * page_floats;
    of_matrix = of_window + (a.shape.conv_len - 1) * a.shape.head_channels();
    return true;
  }
  __device__ __forceinline__ void bring(const Params<T>& a, HeadConstants& to) const {
    const auto threads = static_cast<int>(blockDim.x);
    for (int i = static_cast<int>(threadIdx.x); i < kMaxHeadPages; i += threads) {
      if (first_page + i < a.pages.num_pages) {
        to.own[i] = row.own[first_page + i];
        to.start[i] = row.start == nullptr ? 0 : row.start[first_page + i];
      }
      if (i < a.shape.value_dim) {
        to.norm[i] = a.norm_weight[i];
      }
    }
    __syncthreads();
  }
  // Tokens of the tile that begins behind `done` ones.
  [[nodiscard]] __device__ __forceinline__ int tile_toks(int done) const {
    const int limit = done < row.num_before   ? row.num_before
                      : done < row.num_stored ? row.num_stored
                                              : row.num_toks;
    return min(kTile, limit - done);
  }
  // Whether the state behind `done` tokens is the checkpoint.
  [[nodiscard]] __device__ __forceinline__ bool keeps(int done) const {
    return done > 0 && done == row.num_before;
  }
};

// The batch_idx of a CTA that has one row. The last rows of a batch have the most tokens.
template <typename T>
__device__ __forceinline__ int row_of_cta(const Params<T>& a) {
  return a.first_row + static_cast<int>(gridDim.y - 1 - blockIdx.y);
}

// The convolution's weights of a thread's channels, that of the latest input first.
template <typename T>
__device__ __forceinline__ void load_weights(const Params<T>& a,
                                             const Channels& channels,
                                             float2 (&weight)[kTaps]) {
  if (channels.in_head >= 0) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      if (j < a.shape.conv_len) {
        weight[j] = load_two(a.conv + (a.shape.conv_len - 1 - j) * a.shape.num_channels() +
                             channels.column);
      }
    }
  }
}

template <int kKeys>
struct HeadShared {
  KeyTile<kKeys> keys;
  ValueTile<128> values;
  HeadConstants constants;
};

// A head of a row. wait(): called before the first read of what earlier kernels of the step write.
template <typename T, int kKeys, typename Wait>
__device__ __forceinline__ void advance_head(const Params<T>& a,
                                             const Place<T>& place,
                                             HeadShared<kKeys>& shared,
                                             const Wait& wait) {
  constexpr int kColumns = 4;  // of a lane
  constexpr int kWarpColumns = 4 * kColumns;
  const GatedDeltaShape& s = a.shape;
  HeadConstants& constants = shared.constants;
  KeyTile<kKeys>& keys = shared.keys;
  ValueTile<128>& values = shared.values;
  place.bring(a, constants);
  const Row& row = place.row;
  const int32_t* start = row.start == nullptr ? nullptr : constants.start;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const auto warps = static_cast<int>(blockDim.x) / 32;
  const int first_key = lane / 4 * 4;
  const int first_column = warp * kWarpColumns + lane % 4 * kColumns;
  const int32_t of_columns = place.of_matrix + first_column;
  const bool has_columns = first_column < s.value_dim;
  Matrix<kKeys, kColumns> m;
  m.load(a.pages, has_columns ? start : nullptr, of_columns, first_key, s.key_dim, s.value_dim);
  const Channels channels(s, thread, place.head, 0, 1);
  Window window;
  window.load(s, a.pages, start, place.of_window, channels.in_head);
  float2 weight[kTaps] = {};
  load_weights(a, channels, weight);
  const Gates<T> gates(a, place.head);
  wait();
  const auto save = [&](const int32_t* cells) {
    if (has_columns) {
      m.save(a.pages, cells, of_columns, first_key, s.key_dim, s.value_dim);
    }
    window.save(s, a.pages, cells, place.of_window, channels.in_head);
  };
  for (int done = 0; done < row.num_toks;) {
    if (place.keeps(done)) {
      save(row.kept + place.first_page);
    }
    const int n = place.tile_toks(done);
    const int64_t tok = int64_t{row.first_tok} + done;
    const float2 ba = thread < n ? gates.load(tok + thread) : float2{};
    convolve(a, channels, weight, window, tok, n, 1, keys, values);
    if (thread < n) {
      gates.put(ba, thread, keys);
    }
    __syncthreads();
    for (int t = warp; t < n; t += warps) {
      prepare(s, a.query_scale, t, keys);
    }
    __syncthreads();
    if (warp * kWarpColumns < s.value_dim) {
      for (int t = 0; t < n; ++t) {
        advance(m, keys, values, t, first_key, first_column, s.value_dim);
      }
    }
    done += n;
    if (done == row.num_stored) {
      save(constants.own);
    }
    __syncthreads();
    for (int t = warp; t < n && a.num_sampled == nullptr; t += warps) {
      finish(a, place.head, tok + t, t, constants.norm, values, [lane](const float* of, int i) {
        return of[32 * i + lane];
      });
    }
    __syncthreads();
  }
}

template <typename T, int kKeys>
__global__ void __launch_bounds__(kMaxThreads, 2) advance_heads(
    const __grid_constant__ Params<T> a) {
  __shared__ __align__(16) HeadShared<kKeys> shared;
  Place<T> place;
  if (!place.find(a, static_cast<int>(blockIdx.x), row_of_cta(a))) {
    pdl_wait();
    return;
  }
  advance_head(a, place, shared, [] {
    pdl_wait();
    pdl_release();
  });
}

// Advances the states by a step's accepted drafts. The grid covers all rows of a step, of which few have accepted drafts.
template <typename T, int kKeys>
__global__ void __launch_bounds__(kMaxThreads, 2) take_accepted(
    const __grid_constant__ Params<T> a) {
  __shared__ __align__(16) HeadShared<kKeys> shared;
  pdl_wait();
  pdl_release();
  for (auto i = static_cast<int>(blockIdx.y); i < a.num_rows; i += static_cast<int>(gridDim.y)) {
    Place<T> place;
    if (!place.find(a, static_cast<int>(blockIdx.x), i)) {
      return;  // the rows of the batch come first
    }
    if (place.row.num_toks > 0) {
      advance_head(a, place, shared, [] {});
    }
  }
}

// A head of a row by a cluster: each CTA has a part of the columns. Four of its warps run the recurrence on a tile, while
// the others finish the tile before and prepare the next one. All warps of the cluster synchronise once a tile.
template <typename T>
__global__ void WR_CLUSTER_DIMS(kSplit) __launch_bounds__(kSplitThreads, 1)
advance_split_heads(const __grid_constant__ Params<T> a) {
#if __CUDA_ARCH__ >= 900
  constexpr int kColumns = 2;  // of a lane
  constexpr int kWidth = kSplitDim / kSplit;
  constexpr int kHelpers = kSplitThreads - kSplitWorkers * 32;
  static_assert(kSplitWorkers * 4 * kColumns == kWidth);
  __shared__ __align__(16) KeyTile<16> keys[2];
  __shared__ __align__(16) ValueTile<kWidth> values[3];  // of the tile before, this one, the next
  __shared__ HeadConstants constants;
  const GatedDeltaShape& s = a.shape;
  const int part = static_cast<int>(blockIdx.x) % kSplit;
  Place<T> place;
  if (!place.find(a, static_cast<int>(blockIdx.x) / kSplit, row_of_cta(a))) {
    pdl_wait();
    return;
  }
  place.bring(a, constants);
  const Row& row = place.row;
  const int32_t* start = row.start == nullptr ? nullptr : constants.start;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x < kSplitWorkers * 32) {
    const int first_key = lane / 4 * 4;
    const int first_column =
        static_cast<int>(threadIdx.x) / 32 * 4 * kColumns + lane % 4 * kColumns;
    const int32_t of_columns = place.of_matrix + part * kWidth + first_column;
    Matrix<16, kColumns> m;
    m.load(a.pages, start, of_columns, first_key, s.key_dim, s.value_dim);
    pdl_wait();
    pdl_release();
    cluster_sync();  // the first tile is prepared
    int i = 0;
    for (int done = 0; done < row.num_toks; ++i) {
      const auto save = [&](const int32_t* cells) {
        m.save(a.pages, cells, of_columns, first_key, s.key_dim, s.value_dim);
      };
      if (place.keeps(done)) {
        save(row.kept + place.first_page);
      }
      const int n = place.tile_toks(done);
      for (int t = 0; t < n; ++t) {
        advance(m, keys[i % 2], values[i % 3], t, first_key, first_column, kWidth);
      }
      done += n;
      if (done == row.num_stored) {
        save(constants.own);
      }
      cluster_sync();
    }
    cluster_sync();  // the last tile is finished
    return;
  }
  const int thread = static_cast<int>(threadIdx.x) - kSplitWorkers * 32;
  const int warp = thread / 32;
  const Channels channels(s, thread, place.head, part, kSplit);
  // Every part has the inputs of queries and keys; one stores them.
  const int saved = part > 0 && channels.in_head < 2 * s.key_dim ? -1 : channels.in_head;
  Window window;
  window.load(s, a.pages, start, place.of_window, channels.in_head);
  float2 weight[kTaps] = {};
  load_weights(a, channels, weight);
  const Gates<T> gates(a, place.head);
  pdl_wait();
  pdl_release();
  const auto prepare_tile = [&](int i, int done) {
    if (place.keeps(done)) {
      window.save(s, a.pages, row.kept + place.first_page, place.of_window, saved);
    }
    if (done > 0 && done == row.num_stored) {
      window.save(s, a.pages, constants.own, place.of_window, saved);
    }
    const int n = place.tile_toks(done);
    const int64_t tok = int64_t{row.first_tok} + done;
    const float2 ba = thread < n ? gates.load(tok + thread) : float2{};
    convolve(a, channels, weight, window, tok, n, kSplit, keys[i % 2], values[i % 3]);
    if (thread < n) {
      gates.put(ba, thread, keys[i % 2]);
    }
    named_sync(1, kHelpers);
    for (int t = warp; t < n; t += kHelpers / 32) {
      prepare(s, a.query_scale, t, keys[i % 2]);
    }
  };
  const auto finish_tile = [&](int i, int done, int n) {
    for (int t = warp * kSplit + part; t < n; t += kHelpers / 32 * kSplit) {
      finish(a,
             place.head,
             int64_t{row.first_tok} + done + t,
             t,
             constants.norm,
             values[i % 3],
             [lane](const float* of, int rank) { return load_remote(of + lane, rank); });
    }
  };
  if (row.num_toks > 0) {
    prepare_tile(0, 0);
  }
  cluster_sync();
  int i = 0;
  int before = 0;  // tokens before the tile before, and of that tile
  int before_toks = 0;
  for (int done = 0; done < row.num_toks; ++i) {
    const int n = place.tile_toks(done);
    finish_tile(i + 2, before, before_toks);  // i - 1 in turn of three
    if (done + n < row.num_toks) {
      prepare_tile(i + 1, done + n);
    }
    before = done;
    before_toks = n;
    done += n;
    cluster_sync();
  }
  finish_tile(i + 2, before, before_toks);
  if (row.num_stored == row.num_toks) {
    window.save(s, a.pages, constants.own, place.of_window, saved);
  }
  cluster_sync();
#endif
}

int warps_of(const GatedDeltaShape& shape) {
  return std::max(ceil_div(shape.value_dim, 16), ceil_div(shape.key_dim + shape.value_dim, 32));
}

template <typename T, int kKeys>
void launch_heads(Stream& stream, Params<T> params, int64_t first, int64_t rows) {
  if (rows > 0) {
    const GatedDeltaShape& shape = params.shape;
    params.first_row = static_cast<int32_t>(first);
    const dim3 grid(static_cast<unsigned>(shape.num_value_heads), static_cast<unsigned>(rows));
    launch(stream,
           "gated_delta",
           {grid, static_cast<unsigned>(warps_of(shape) * 32)},
           advance_heads<T, kKeys>,
           params);
  }
}

// About twice as many CTAs as fit on the SMs at once; CTAs take rows in turn.
template <typename T, int kKeys>
void launch_accepted(Stream& stream, const Params<T>& params) {
  const GatedDeltaShape& shape = params.shape;
  const int32_t ctas = 4 * stream.device().facts().num_sms;
  const int32_t rows = std::clamp(ctas / shape.num_value_heads, 1, params.num_rows);
  const dim3 grid(static_cast<unsigned>(shape.num_value_heads), static_cast<unsigned>(rows));
  launch(stream,
         "gated_delta",
         {grid, static_cast<unsigned>(warps_of(shape) * 32)},
         take_accepted<T, kKeys>,
         params);
}

template <typename T>
void launch_split_heads(Stream& stream, Params<T> params, int64_t first, int64_t rows) {
  params.first_row = static_cast<int32_t>(first);
  const dim3 grid(static_cast<unsigned>(params.shape.num_value_heads * kSplit),
                  static_cast<unsigned>(rows));
  launch(stream, "gated_delta", {grid, kSplitThreads}, advance_split_heads<T>, params);
}

// Whether clusters take the rows behind the decode rows: there is an SM for each CTA, and the rows have several tiles.
bool splits_heads(const DeviceFacts& device,
                  const GatedDeltaShape& shape,
                  int64_t rows,
                  int64_t toks) {
  return device.compute_capability >= 90 && shape.value_dim == kSplitDim &&
         shape.key_dim == kSplitDim && rows > 0 &&
         rows * shape.num_value_heads * kSplit <= device.num_sms && toks >= 2 * kTile * rows;
}

template <typename T, int kKeys>
void launch_all(Stream& stream, const GatedDeltaArgs& args) {
  const GatedDeltaShape& shape = args.shape;
  const int64_t toks = args.out.shape[0];
  const int64_t rows = std::min(toks, args.idx_mapping.shape[0]);  // a row has a token at least
  const Params<T> params{.shape = shape,
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
                         .cu_num_logits = args.cu_num_logits.data,
                         .num_sampled = args.num_sampled.data,
                         .pages = args.pages,
                         .first_row = 0,
                         .num_rows = static_cast<int32_t>(rows),
                         .out = static_cast<T*>(args.out.data),
                         .out_stride = args.out.stride};
  if (params.num_sampled != nullptr) {
    launch_accepted<T, kKeys>(stream, params);
    return;
  }
  const int64_t decodes = std::min<int64_t>(args.num_decode_rows, rows);
  if (splits_heads(stream.device().facts(), shape, rows - decodes, toks - decodes)) {
    launch_split_heads(stream, params, decodes, rows - decodes);
    launch_heads<T, kKeys>(stream, params, 0, decodes);
  } else {
    launch_heads<T, kKeys>(stream, params, 0, rows);
  }
}

template <typename T>
void launch_of_type(Stream& stream, const GatedDeltaArgs& args) {
  args.shape.key_dim <= 4 * kKeyLanes ? launch_all<T, 4>(stream, args)
                                      : launch_all<T, 16>(stream, args);
}

}  // namespace

void gated_delta(Stream& stream, const GatedDeltaArgs& args) {
  const GatedDeltaShape& shape = args.shape;
  WR_CHECK_EQ(args.qkvz.shape[0], args.out.shape[0]);
  WR_CHECK_EQ(args.qkvz.shape[1],
              shape.num_channels() + (args.num_sampled.empty() ? shape.value_size() : 0));
  WR_CHECK_EQ(args.ba.shape[1], 2 * int64_t{shape.num_value_heads});
  WR_CHECK_EQ(args.out.shape[1], shape.value_size());
  WR_CHECK(args.qkvz.dtype == args.out.dtype && args.ba.dtype == args.out.dtype,
           "qkvz, ba and out have different types");
  WR_CHECK(fits_cuda(shape), "sizes of a gated delta net");
  WR_CHECK(args.qkvz.stride % 2 == 0 && args.pages.page_floats % 4 == 0 &&
               args.pages.page_stride % 4 == 0,
           "alignment of a gated delta net's inputs and states");
  WR_CHECK_GE(args.pages.num_pages * args.pages.page_floats, shape.state_floats());
  WR_CHECK_LE(shape.head_state_floats() / args.pages.page_floats + 2, kMaxHeadPages);
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
