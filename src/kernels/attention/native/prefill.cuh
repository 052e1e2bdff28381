// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/native/order.cuh"
#include "kernels/attention/native/params.h"
#include "kernels/attention/native/scores.cuh"
#include "kernels/cuda/ptx.cuh"

#include <cuda_bf16.h>
#include <type_traits>

// Formula: paged_attention.h, for rows with any number of query tokens.
// Shapes: NativeParams; head_dim 64, 128, or in parts 256; a cache of bf16, or in parts of 8-bit floats.
// Mapping: a CTA for 64 or 128 query-head rows (query by query, the group's heads side by side, so that they
//   share key tiles) of one batch row and KV head; the last tiles of a row first, because they see the most
//   keys. Four warps of 16 or 32 rows; tiles of 64 keys go through two stages in shared memory. With heads of 256 the
//   outputs of the parts before are in shared memory too, since registers hold one part's. Tiles of an 8-bit cache become
//   halves in shared memory, once for all warps.
// Bytes moved: per item its visible keys and values once, mostly from L2.
// Numerics: bf16 products, float32 sums, online softmax over tiles of 64 keys aligned to absolute positions,
//   weights rounded to bf16 for the product with the values. A query's result is a function of that query and
//   its keys alone: bit-equal for any batch, chunking, block size and tile width. In parts, the order of order.cuh.
// Preconditions: native_schedule ran for this batch and this tile width.
// Origin: FlashAttention-2 (Dao, 2023); our own layout and pipeline.
namespace warprow::cuda {
namespace {

constexpr int kPrefillWarps = 4;
constexpr int kPrefillThreads = 32 * kPrefillWarps;

// Whether the outputs of the parts before are in shared memory.
constexpr bool total_in_shared(int dim) { return dim > 128; }

// kWide: m16 tiles of a warp. A stage has a tile as the cache has it; with an 8-bit cache one tile of halves follows.
template <int kDim, int kWide, KvFormat kFormat>
struct PrefillSizes {
  static constexpr bool kF8 = kFormat != KvFormat::kBF16;
  static constexpr int kRows = 16 * kPrefillWarps * kWide;
  static constexpr int kChunks = kDim / 8;
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kQueryBytes = kRows * kRowBytes;
  static constexpr int kHalfBytes = kPrefillKeys * kRowBytes;  // keys or values as operands
  static constexpr int kStoredChunks =
      kDim * Operands<kFormat>::kBytes / 16;  // of a token in the cache
  static constexpr int kStoredBytes =
      kPrefillKeys * kStoredChunks * 16;  // keys or values in a stage
  static constexpr int kStageBytes = 2 * kStoredBytes;
  static constexpr int kTileAt = kQueryBytes + 2 * kStageBytes;
  static constexpr int kTotalAt = kTileAt + (kF8 ? 2 * kHalfBytes : 0);
  static constexpr int kSharedBytes =
      kTotalAt + (total_in_shared(kDim) ? kRows * kDim * static_cast<int>(sizeof(float)) : 0);
  static constexpr int kTokensAtOnce = kPrefillThreads / kChunks;
};

__device__ __forceinline__ uint32_t swizzled(int row, int chunk, int row_bytes) {
  return row * row_bytes + ((chunk ^ (row & 7)) * 16);
}

// The queries and keys of one CTA.
struct PrefillItem {
  int32_t row, kv_head;
  int32_t first_row, num_rows;  // query-head rows: the item's first, the batch row's number
  int32_t first_token;          // of the batch row's queries
  int32_t first_position;
  int32_t seq_len;
  int32_t first_key, end_key;  // the range of keys that any of its queries sees

  // Returns false if the grid has more CTAs than there are items.
  __device__ bool find(const NativeParams& p, int32_t rows_per_tile) {
    __shared__ int32_t found[2];
    const int32_t* before = p.scratch.prefill_tiles;
    const int32_t n = p.num_rows - p.first_prefill_row;
    const int32_t num_tiles = before[n];
    const auto item = static_cast<int32_t>(blockIdx.x / p.num_kv_heads);
    if (item >= num_tiles) {
      return false;
    }
    const int32_t number = num_tiles - 1 - item;
    for (int32_t i = threadIdx.x; i < n; i += kPrefillThreads) {
      const int32_t start = before[i];
      if (start <= number && number < before[i + 1]) {
        found[0] = p.first_prefill_row + i;
        found[1] = number - start;
      }
    }
    __syncthreads();
    row = found[0];
    kv_head = static_cast<int32_t>(blockIdx.x % p.num_kv_heads);
    first_row = found[1] * rows_per_tile;
    first_token = p.query_start_loc[row];
    const int32_t queries = p.query_start_loc[row + 1] - first_token;
    num_rows = queries * p.group;
    seq_len = p.seq_lens[row];
    first_position = seq_len - queries;
    const int32_t last_row = min(first_row + rows_per_tile, num_rows) - 1;
    end_key = p.end_key(first_position + last_row / p.group, seq_len);
    first_key = p.window > 0 ? max(0, first_position + first_row / p.group - p.window + 1) : 0;
    return true;
  }
};

// Loads key and value tiles into shared memory by cp.async.
template <int kDim, KvFormat kFormat>
struct KeyFeed {
  int64_t held = 0;  // lane l: offset of segment held_first + l in the cache
  int32_t held_first = -1;

  __device__ void issue(const NativeParams& p, const PrefillItem& item, int tile, uint32_t stage) {
    using Sizes = PrefillSizes<kDim, 1, kFormat>;
    constexpr int kTokensAtOnce = kPrefillThreads / Sizes::kStoredChunks;
    constexpr int kSegments = kPrefillKeys / kSegmentToks;
    const int lane = threadIdx.x % 32;
    const int32_t first = tile * kSegments;
    if (held_first < 0 || first >= held_first + 32) {
      held_first = first;
      const int32_t token = (first + lane) * kSegmentToks;
      if (token < item.seq_len) {
        const int32_t block = token / p.block_size;
        const int32_t* table = p.block_table.of_row(p.idx_mapping[item.row]);
        held = table[block] * p.block_bytes + (token - block * p.block_size) * p.token_bytes +
               item.kv_head * p.head_bytes;
      }
    }
    const int chunk = static_cast<int>(threadIdx.x) % Sizes::kStoredChunks;
    const int slot = static_cast<int>(threadIdx.x) / Sizes::kStoredChunks;
    constexpr int kPasses = (kSegmentToks + kTokensAtOnce - 1) / kTokensAtOnce;
#pragma unroll
    for (int i = 0; i < kSegments; ++i) {
      const int64_t place = __shfl_sync(0xffffffffU, held, first - held_first + i);
#pragma unroll
      for (int j = 0; j < kPasses; ++j) {
        const int within = slot + j * kTokensAtOnce;
        if (kTokensAtOnce > kSegmentToks && within >= kSegmentToks) {
          continue;
        }
        const int token = i * kSegmentToks + within;
        const bool valid = tile * kPrefillKeys + token < item.seq_len;
        const int64_t from = place + within * p.token_bytes + chunk * 16;
        const uint32_t to = stage + (Sizes::kF8 ? (token * Sizes::kStoredChunks + chunk) * 16
                                                : swizzled(token, chunk, Sizes::kRowBytes));
        copy16_async(to, valid ? p.k + from : p.k, valid);
        copy16_async(to + Sizes::kStoredBytes, valid ? p.v + from : p.v, valid);
      }
    }
    copy_commit();
  }
};

// With an 8-bit cache: replaces the queries by halves, in the order of order.cuh. Call it after a barrier behind their copy.
template <typename Sizes, KvFormat kFormat>
__device__ void round_queries(uint32_t queries) {
  using Two = Operands<kFormat>;
#pragma unroll 1
  for (int i = threadIdx.x; i < Sizes::kRows * Sizes::kChunks / 2; i += kPrefillThreads) {
    const int row = i / (Sizes::kChunks / 2);
    const int chunk = i % (Sizes::kChunks / 2) * 2;
    const uint32_t first = queries + swizzled(row, chunk, Sizes::kRowBytes);
    const uint32_t second = queries + swizzled(row, chunk + 1, Sizes::kRowBytes);
    const uint4 a = load_shared_four(first);
    const uint4 b = load_shared_four(second);
    store_shared_four(first, {Two::query(a.x), Two::query(a.z), Two::query(b.x), Two::query(b.z)});
    store_shared_four(second, {Two::query(a.y), Two::query(a.w), Two::query(b.y), Two::query(b.w)});
  }
}

// With an 8-bit cache: makes a tile of halves from a stage.
template <typename Sizes, KvFormat kFormat>
__device__ void expand_tile(uint32_t stage, uint32_t tile) {
  using Two = Operands<kFormat>;
#pragma unroll 2
  for (int i = threadIdx.x; i < kPrefillKeys * Sizes::kStoredChunks; i += kPrefillThreads) {
    const int row = i / Sizes::kStoredChunks;
    const int chunk = i % Sizes::kStoredChunks * 2;
    const uint32_t first = tile + swizzled(row, chunk, Sizes::kRowBytes);
    const uint32_t second = tile + swizzled(row, chunk + 1, Sizes::kRowBytes);
    const uint4 k = load_shared_four(stage + i * 16);
    store_shared_four(
        first, {Two::low_pair(k.x), Two::low_pair(k.y), Two::low_pair(k.z), Two::low_pair(k.w)});
    store_shared_four(
        second,
        {Two::high_pair(k.x), Two::high_pair(k.y), Two::high_pair(k.z), Two::high_pair(k.w)});
    const uint4 v = load_shared_four(stage + Sizes::kStoredBytes + i * 16);
    store_shared_four(
        first + Sizes::kHalfBytes,
        {Two::low_pair(v.x), Two::high_pair(v.x), Two::low_pair(v.y), Two::high_pair(v.y)});
    store_shared_four(
        second + Sizes::kHalfBytes,
        {Two::low_pair(v.z), Two::high_pair(v.z), Two::low_pair(v.w), Two::high_pair(v.w)});
  }
}

template <typename Sizes>
__device__ void copy_queries(const NativeParams& p, const PrefillItem& item, uint32_t to) {
  constexpr int kDim = Sizes::kRowBytes / 2;
  const int chunk = static_cast<int>(threadIdx.x) % Sizes::kChunks;
#pragma unroll 4
  for (int r = static_cast<int>(threadIdx.x) / Sizes::kChunks; r < Sizes::kRows;
       r += Sizes::kTokensAtOnce) {
    const int32_t packed = item.first_row + r;
    const bool valid = packed < item.num_rows;
    const int32_t query = valid ? packed / p.group : 0;
    const int32_t head = item.kv_head * p.group + (valid ? packed - query * p.group : 0);
    const auto* from = static_cast<const __nv_bfloat16*>(p.q) +
                       (item.first_token + query) * p.q_stride + head * kDim + chunk * 8;
    copy16_async(to + swizzled(r, chunk, Sizes::kRowBytes), from, valid);
  }
}

// A warp's rows: lane (g, t) has rows g and g + 8 of each m16 tile. In parts, `total` has the parts before.
template <int kDim, int kWide, bool kParts, KvFormat kFormat>
struct PrefillState {
  using Two = Operands<kFormat>;
  using Sizes = PrefillSizes<kDim, kWide, kFormat>;
  static constexpr int kKeyTiles = kPrefillKeys / 8;
  static constexpr int kDimTiles = kDim / 8;
  float o[kWide][kDimTiles][4];
  float max[kWide][2];  // of scores before scaling
  float sum[kWide][2];
  int32_t position[kWide][2];
  struct Outputs {
    float o[kWide][kDimTiles][4] = {};
    __device__ float& at(int m, int d, int i) { return o[m][d][i]; }
  };
  struct SharedOutputs {
    float* o;  // of this thread, kPrefillThreads apart
    __device__ float& at(int m, int d, int i) const {
      return o[((m * kDimTiles + d) * 4 + i) * kPrefillThreads];
    }
  };
  struct Total : std::conditional_t<total_in_shared(kDim), SharedOutputs, Outputs> {
    float max[kWide][2];
    float sum[kWide][2] = {};
  };
  struct None {};
  std::conditional_t<kParts, Total, None> total;

  // shared: of the CTA.
  __device__ void start(const NativeParams& p, const PrefillItem& item, char* shared) {
    if constexpr (kParts && total_in_shared(kDim)) {
      total.o = reinterpret_cast<float*>(shared + Sizes::kTotalAt) + threadIdx.x;
#pragma unroll
      for (int i = 0; i < kWide * kDimTiles * 4; ++i) {
        total.o[i * kPrefillThreads] = 0.0F;
      }
    }
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < kWide; ++m) {
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          o[m][d][i] = 0.0F;
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        max[m][i] = kNoMax;
        sum[m][i] = 0.0F;
        const int32_t packed = item.first_row + (warp * kWide + m) * 16 + i * 8 + lane / 4;
        position[m][i] = item.first_position + packed / p.group;
        if constexpr (kParts) {
          total.max[m][i] = kNoMax;
        }
      }
    }
  }

  // Merges the part into the parts before, and begins the next one.
  __device__ void end_part(float scale) {
#pragma unroll
    for (int m = 0; m < kWide; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const PartFactors by =
            merge_part(total.max[m][i], total.sum[m][i], max[m][i], sum_of_lanes(sum[m][i]), scale);
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
          for (int c = 2 * i; c < 2 * i + 2; ++c) {
            float& before = total.at(m, d, c);
            before = merged(before, o[m][d][c], by);
            o[m][d][c] = 0.0F;
          }
        }
        max[m][i] = kNoMax;
        sum[m][i] = 0.0F;
      }
    }
  }

  __device__ void score(float (&s)[kWide][kKeyTiles][4], uint32_t queries, uint32_t keys) const {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int query_row = warp * kWide * 16 + lane % 16;
    const int key = lane % 8 + (lane / 16) * 8;
#pragma unroll
    for (int m = 0; m < kWide; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[m][n][i] = 0.0F;
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      uint32_t a[kWide][4];
#pragma unroll
      for (int m = 0; m < kWide; ++m) {
        load_matrices(
            a[m], queries + swizzled(query_row + m * 16, 2 * step + lane / 16, Sizes::kRowBytes));
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b[4];
        load_matrices(b, keys + swizzled(n * 8 + key, 2 * step + (lane / 8) % 2, Sizes::kRowBytes));
#pragma unroll
        for (int m = 0; m < kWide; ++m) {
          Two::mma(s[m][n], a[m], b[0], b[1]);
          Two::mma(s[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  __device__ void mask(float (&s)[kWide][kKeyTiles][4],
                       const NativeParams& p,
                       const PrefillItem& item,
                       int32_t first_key) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kWide; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t at = position[m][i / 2];
        const int32_t high = p.end_key(at, item.seq_len);
        const int32_t low = p.window > 0 ? at - p.window + 1 : 0;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          const int32_t key = first_key + n * 8 + (lane % 4) * 2 + i % 2;
          s[m][n][i] = key >= low && key < high ? s[m][n][i] : -INFINITY;
        }
      }
    }
  }

  // Online softmax: turns the scores of one m16 tile into weights under the new maxima.
  __device__ void online_softmax(float (&s)[kKeyTiles][4], int m, float scale_log2) {
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = max[m][i];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        top = fmaxf(top, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
      shrink[i] = shrink_factor(max[m][i], top, scale_log2);
      max[m][i] = top;
      const float base = __fmul_rn(top, scale_log2);
      float added = 0.0F;
      float rounded = __fmul_rn(sum[m][i], shrink[i]);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        s[n][2 * i] = weight_of(s[n][2 * i], scale_log2, base);
        s[n][2 * i + 1] = weight_of(s[n][2 * i + 1], scale_log2, base);
        if constexpr (kParts) {
          rounded = add_weights<kFormat>(rounded, Two::pack(s[n][2 * i], s[n][2 * i + 1]));
        } else {
          added += s[n][2 * i] + s[n][2 * i + 1];
        }
      }
      sum[m][i] = kParts ? rounded : sum[m][i] * shrink[i] + added;
    }
    if (__any_sync(0xffffffffU, shrink[0] != 1.0F || shrink[1] != 1.0F)) {
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          o[m][d][i] *= shrink[i / 2];
        }
      }
    }
  }

  __device__ void add_values(const float (&s)[kWide][kKeyTiles][4], uint32_t values) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kPrefillKeys / 16; ++step) {
      uint32_t a[kWide][4];
#pragma unroll
      for (int m = 0; m < kWide; ++m) {
        a[m][0] = Two::pack(s[m][2 * step][0], s[m][2 * step][1]);
        a[m][1] = Two::pack(s[m][2 * step][2], s[m][2 * step][3]);
        a[m][2] = Two::pack(s[m][2 * step + 1][0], s[m][2 * step + 1][1]);
        a[m][3] = Two::pack(s[m][2 * step + 1][2], s[m][2 * step + 1][3]);
      }
#pragma unroll
      for (int d = 0; d < kDimTiles; d += 2) {
        uint32_t b[4];
        load_matrices_transposed(
            b, values + swizzled(step * 16 + lane % 16, d + lane / 16, Sizes::kRowBytes));
#pragma unroll
        for (int m = 0; m < kWide; ++m) {
          Two::mma(o[m][d], a[m], b[0], b[1]);
          Two::mma(o[m][d + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // tile: of keys and values, as operands.
  __device__ void add_tile(const NativeParams& p,
                           const PrefillItem& item,
                           const HeadScales& scales,
                           uint32_t queries,
                           uint32_t tile,
                           int32_t first_key,
                           bool masked) {
    float s[kWide][kKeyTiles][4];
    score(s, queries, tile);
    const float scale_log2 = scales.exponent;
    if (p.soft_cap > 0.0F) {
#pragma unroll
      for (int m = 0; m < kWide; ++m) {
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            s[m][n][i] = to_log2_score(s[m][n][i], scale_log2, scales.score, p.soft_cap);
          }
        }
      }
    }
    if (masked) {
      mask(s, p, item, first_key);
    }
#pragma unroll
    for (int m = 0; m < kWide; ++m) {
      online_softmax(s[m], m, scale_log2);
    }
    add_values(s, tile + Sizes::kHalfBytes);
  }

  // The factor of a row's outputs, and its log-sum-exp.
  __device__ Finish
  finish_row(const NativeParams& p, const HeadScales& scales, int32_t head, int m, int i) const {
    if constexpr (kParts) {
      return finish<kFormat>(total.max[m][i], total.sum[m][i], scales, p.sinks, head);
    }
    return finish_lanes(max[m][i], sum[m][i], scales.exponent, p.sinks, head);
  }

  __device__ void write_row(
      const NativeParams& p, const PrefillItem& item, const HeadScales& scales, int m, int i) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int32_t packed = item.first_row + (warp * kWide + m) * 16 + i * 8 + lane / 4;
    const bool valid = packed < item.num_rows;
    const int32_t query = valid ? packed / p.group : 0;
    const int32_t head = item.kv_head * p.group + (valid ? packed - query * p.group : 0);
    const Finish end = finish_row(p, scales, head, m, i);
    if (!valid) {
      return;
    }
    const int64_t token = item.first_token + query;
    auto* to =
        static_cast<__nv_bfloat16*>(p.out) + token * p.out_stride + head * kDim + (lane % 4) * 2;
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
      uint32_t two;
      if constexpr (kParts) {
        two = pack_bf16(finished(total.at(m, d, 2 * i), end.inverse),
                        finished(total.at(m, d, 2 * i + 1), end.inverse));
      } else {
        two = pack_bf16(o[m][d][2 * i] * end.inverse, o[m][d][2 * i + 1] * end.inverse);
      }
      *reinterpret_cast<uint32_t*>(to + d * 8) = two;
    }
    if (p.lse != nullptr && lane % 4 == 0) {
      p.lse[token * p.lse_stride + head] = end.lse;
    }
  }
};

template <int kDim, int kWide, bool kParts, KvFormat kFormat>
__global__ void __launch_bounds__(kPrefillThreads) prefill_kernel(const NativeParams p) {
  using Sizes = PrefillSizes<kDim, kWide, kFormat>;
  extern __shared__ __align__(16) char shared[];
  pdl_wait();
  pdl_release();
  PrefillItem item;
  if (!item.find(p, Sizes::kRows)) {
    return;
  }
  const uint32_t queries = shared_address(shared);
  const uint32_t ring = queries + Sizes::kQueryBytes;
  KeyFeed<kDim, kFormat> feed;
  PrefillState<kDim, kWide, kParts, kFormat> state;
  copy_queries<Sizes>(p, item, queries);
  int tile = item.first_key / kPrefillKeys;
  const int end = (item.end_key + kPrefillKeys - 1) / kPrefillKeys;
  feed.issue(p, item, tile, ring);
  state.start(p, item, shared);
  // Keys that every query of the item sees need no mask.
  const int32_t last_query = (min(item.first_row + Sizes::kRows, item.num_rows) - 1) / p.group;
  const int32_t all_see_from = p.window > 0 ? item.first_position + last_query - p.window + 1 : 0;
  const int32_t all_see_to =
      p.end_key(item.first_position + item.first_row / p.group, item.seq_len);
  int stage = 0;
  const HeadScales scales = head_scales<kFormat>(p, item.kv_head);
  int32_t border = kParts ? part_end(tile * kPrefillKeys) : 0;
  if constexpr (Sizes::kF8) {
    copy_wait<0>();
    __syncthreads();
    round_queries<Sizes, kFormat>(queries);
  }
#pragma unroll 1
  for (; tile < end; ++tile) {
    copy_wait<0>();
    __syncthreads();
    if (tile + 1 < end) {
      feed.issue(p, item, tile + 1, ring + (stage ^ 1) * Sizes::kStageBytes);
    }
    uint32_t operands = ring + stage * Sizes::kStageBytes;
    if constexpr (Sizes::kF8) {
      expand_tile<Sizes, kFormat>(operands, queries + Sizes::kTileAt);
      operands = queries + Sizes::kTileAt;
      __syncthreads();
    }
    const int32_t first_key = tile * kPrefillKeys;
    if constexpr (kParts) {
      if (first_key == border) {
        state.end_part(scales.exponent);
        border = part_end(first_key);
      }
    }
    const bool masked = first_key < all_see_from || first_key + kPrefillKeys > all_see_to;
    state.add_tile(p, item, scales, queries, operands, first_key, masked);
    stage ^= 1;
  }
  if constexpr (kParts) {
    state.end_part(scales.exponent);
  }
#pragma unroll
  for (int m = 0; m < kWide; ++m) {
    state.write_row(p, item, scales, m, 0);
    state.write_row(p, item, scales, m, 1);
  }
}

template <int kDim, int kWide, bool kParts, KvFormat kFormat>
void launch_prefill(Stream& stream, const NativeParams& params, int64_t num_tiles) {
  using Sizes = PrefillSizes<kDim, kWide, kFormat>;
  constexpr auto* kKernel = &prefill_kernel<kDim, kWide, kParts, kFormat>;
  allow_shared_bytes<kKernel>(Sizes::kSharedBytes);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(num_tiles * params.num_kv_heads));
  shape.block = dim3(kPrefillThreads);
  shape.shared_bytes = Sizes::kSharedBytes;
  launch(stream, "attention_prefill", shape, kKernel, params);
}

}  // namespace

template <int kDim, KvFormat kFormat>
void native_prefill(Stream& stream, const NativeParams& params, int64_t num_tiles, bool wide) {
  if constexpr (total_in_shared(kDim) || kFormat != KvFormat::kBF16) {
    WR_CHECK(params.in_parts && !wide, "heads of {} in tiles of 64 rows and in parts", kDim);
    launch_prefill<kDim, 1, true, kFormat>(stream, params, num_tiles);
  } else if (params.in_parts) {
    launch_prefill<kDim, 1, true, kFormat>(stream, params, num_tiles);
  } else if (wide) {
    launch_prefill<kDim, 2, false, kFormat>(stream, params, num_tiles);
  } else {
    launch_prefill<kDim, 1, false, kFormat>(stream, params, num_tiles);
  }
}

template void native_prefill<WR_HEAD_DIM, KvFormat::WR_KV_FORMAT>(Stream& stream,
                                                                  const NativeParams& params,
                                                                  int64_t num_tiles,
                                                                  bool wide);

}  // namespace warprow::cuda
