// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/attention/native_launch.h"
#include "kernels/attention/native_ptx.cuh"
#include "kernels/attention/native_wgmma.cuh"

#include <algorithm>
#include <cuda_bf16.h>

// Formula: paged_attention.h, for rows with many query tokens.
// Shapes: NativeParams; head_dim 64 or 128, bf16 cache.
// Mapping: a persistent block an SM; items are 128 query-head rows (query by query, the group's heads
//   side by side) of one batch row and KV head, longest first, dealt out in snake order. Two
//   warpgroups compute on 64 rows each, taking turns on the matrix unit; a warp of a third brings
//   tiles of 128 keys and values through two stages each, by the copy engine, page by page.
// Bytes moved: per item its visible keys and values once, from L2 mostly.
// Numerics: bf16 products, float32 sums, online softmax over tiles of 128 keys aligned to absolute
//   positions, weights rounded to bf16 before they meet the values. A query's result is a function of
//   that query and its keys alone.
// Preconditions: native_schedule ran for this batch with 128 rows a tile; sm_90a.
// Origin: FlashAttention-3 (Shah et al., 2024) for the overlap of softmax and products; own code.
namespace warprow::cuda {
namespace {

constexpr int kHopperRows = 128;  // of an item
constexpr int kHopperKeys = 128;  // of a tile
constexpr int kConsumers = 256;
constexpr int kHopperThreads = kConsumers + 128;
constexpr int kHopperStages = 2;

template <int kDim>
struct HopperSizes {
  static constexpr int kHalves = kDim / 64;                // an operand's rows are 64 elements wide
  static constexpr int kHalfBytes = 128 * 128;             // 128 rows of it
  static constexpr int kTileBytes = kHalves * kHalfBytes;  // queries, keys or values
  static constexpr int kKeysAt = kTileBytes;
  static constexpr int kValuesAt = kKeysAt + kHopperStages * kTileBytes;
  static constexpr int kBarriersAt = kValuesAt + kHopperStages * kTileBytes;
  static constexpr int kSharedBytes = kBarriersAt + 128 + 1024;  // and room to align
};

// The barriers of one ring, keys' or values': full and empty of each stage.
struct Ring {
  uint32_t barriers;
  uint32_t data;
  uint32_t tile_bytes;

  [[nodiscard]] __device__ uint32_t full(uint32_t n) const {
    return barriers + n % kHopperStages * 8;
  }
  [[nodiscard]] __device__ uint32_t empty(uint32_t n) const { return full(n) + 8 * kHopperStages; }
  [[nodiscard]] __device__ uint32_t stage(uint32_t n) const {
    return data + n % kHopperStages * tile_bytes;
  }
  [[nodiscard]] __device__ static uint32_t phase(uint32_t n) { return n / kHopperStages % 2; }
  __device__ void wait_full(uint32_t n) const { barrier_wait(full(n), phase(n)); }
  __device__ void wait_empty(uint32_t n) const { barrier_wait(empty(n), phase(n) ^ 1); }
};

struct HopperItem {
  int32_t row, kv_head;
  int32_t first_row, num_rows;
  int32_t first_token, first_position, seq_len;
  int32_t first_tile, end_tile;  // of keys

  __device__ void find(const NativeParams& p, int32_t number) {
    const int32_t* before = p.scratch.prefill_tiles;
    const int32_t n = p.num_rows - p.first_prefill_row;
    const int32_t query_tile = before[n] - 1 - number / p.num_kv_heads;
    kv_head = number % p.num_kv_heads;
    int32_t low = 0;  // the last row with before[row] <= query_tile
    int32_t high = n;
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      (before[middle] <= query_tile ? low : high) = middle;
    }
    row = p.first_prefill_row + low;
    first_row = (query_tile - before[low]) * kHopperRows;
    first_token = p.query_start_loc[row];
    const int32_t queries = p.query_start_loc[row + 1] - first_token;
    num_rows = queries * p.group;
    seq_len = p.seq_lens[row];
    first_position = seq_len - queries;
    const int32_t last_query = (min(first_row + kHopperRows, num_rows) - 1) / p.group;
    const int32_t end_key = p.causal ? min(seq_len, first_position + last_query + 1) : seq_len;
    const int32_t first_key =
        p.window > 0 ? max(0, first_position + first_row / p.group - p.window + 1) : 0;
    first_tile = first_key / kHopperKeys;
    end_tile = (end_key + kHopperKeys - 1) / kHopperKeys;
  }
};

// The block's i-th item; snake order evens out items that get smaller and smaller.
__device__ __forceinline__ int32_t snake(int32_t i) {
  const auto blocks = static_cast<int32_t>(gridDim.x);
  const auto block = static_cast<int32_t>(blockIdx.x);
  return i * blocks + (i % 2 == 0 ? block : blocks - 1 - block);
}

// One warp: brings the tiles of all items. A box is `box` tokens of a page, 64 elements wide.
template <int kDim>
__device__ void bring_tiles(const NativeParams& p,
                            const CUtensorMap& k_map,
                            const CUtensorMap& v_map,
                            const Ring& keys,
                            const Ring& values,
                            int32_t num_items,
                            int32_t box) {
  using Sizes = HopperSizes<kDim>;
  const int lane = threadIdx.x % 32;
  const int half = lane % Sizes::kHalves;
  const int within = lane / Sizes::kHalves * box;  // token in the tile
  uint32_t n = 0;
  for (int32_t i = 0; snake(i) < num_items; ++i) {
    HopperItem item;
    item.find(p, snake(i));
    const int32_t* table = p.block_table + p.idx_mapping[item.row] * p.table_stride;
    for (int32_t tile = item.first_tile; tile < item.end_tile; ++tile, ++n) {
      const int32_t token = tile * kHopperKeys + within;
      const bool has = within < kHopperKeys && token < item.seq_len;
      const int32_t block = has ? table[token / p.block_size] : 0;
      const int32_t offset = token % p.block_size;
      const uint32_t bytes = __popc(__ballot_sync(0xffffffffU, has)) * box * 128;
      const uint32_t to = half * Sizes::kHalfBytes + within * 128;
      keys.wait_empty(n);
      if (lane == 0) {
        barrier_arrive_expecting(keys.full(n), bytes);
      }
      __syncwarp();
      if (has) {
        copy_box(keys.stage(n) + to, k_map, keys.full(n), half * 64, offset, item.kv_head, block);
      }
      values.wait_empty(n);
      if (lane == 0) {
        barrier_arrive_expecting(values.full(n), bytes);
      }
      __syncwarp();
      if (has) {
        copy_box(
            values.stage(n) + to, v_map, values.full(n), half * 64, offset, item.kv_head, block);
      }
    }
  }
}

// A warpgroup's 64 rows of an item: lane (g, t) of warp w has rows 16 w + g and 16 w + g + 8, and of
// every 8 columns 2 t and 2 t + 1.
template <int kDim>
struct HopperState {
  using Sizes = HopperSizes<kDim>;
  float o[kDim / 2];
  uint32_t weights[kHopperKeys / 4];
  float max[2];  // of scores before scaling
  float sum[2];
  int32_t position[2];

  [[nodiscard]] static __device__ int32_t packed_row(const HopperItem& item, int i) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    return item.first_row + thread / 32 * 16 + i * 8 + thread % 32 / 4;
  }

  __device__ void start(const NativeParams& p, const HopperItem& item) {
#pragma unroll
    for (float& v : o) {
      v = 0.0F;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      max[i] = kNoMax;
      sum[i] = 0.0F;
      position[i] = item.first_position + packed_row(item, i) / p.group;
    }
  }

  // Starts the scores of a tile; s is complete after a wait.
  __device__ static void start_scores(float (&s)[64], uint32_t queries, uint32_t keys) {
    wgmma_pin(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int at = step / 4 * Sizes::kHalfBytes + step % 4 * 32;
      wgmma_scores(
          s, wgmma_operand(queries + at, 1024, 16), wgmma_operand(keys + at, 1024, 16), step > 0);
    }
    wgmma_commit();
  }
  __device__ void start_values(uint32_t values) {
    wgmma_pin(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kHopperKeys / 16; ++step) {
      wgmma_values(
          o, weights + step * 4, wgmma_operand(values + step * 2048, 1024, Sizes::kHalfBytes));
    }
    wgmma_commit();
  }

  // Scores to weights, still float32 and in place; returns by how much earlier sums shrink.
  __device__ void weigh(float (&s)[64],
                        float (&shrink)[2],
                        const NativeParams& p,
                        const HopperItem& item,
                        int32_t first_key,
                        bool masked) {
    float scale_log2 = p.scale * kLog2E;
    if (p.soft_cap > 0.0F) {
#pragma unroll
      for (float& v : s) {
        v = to_log2_score(v, scale_log2, p.scale, p.soft_cap);
      }
      scale_log2 = 1.0F;
    }
    if (masked) {
      const int column = first_key + static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const int32_t at = position[i / 2 % 2];
        const int32_t high = p.causal ? min(at + 1, item.seq_len) : item.seq_len;
        const int32_t low = p.window > 0 ? at - p.window + 1 : 0;
        const int32_t key = column + i / 4 * 8 + i % 2;
        s[i] = key >= low && key < high ? s[i] : -INFINITY;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max[r];
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        top = fmaxf(top, fmaxf(s[n * 4 + 2 * r], s[n * 4 + 2 * r + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
      shrink[r] = exp2_fast((max[r] - top) * scale_log2);
      max[r] = top;
      const float base = top * scale_log2;
      float added = 0.0F;
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        float& a = s[n * 4 + 2 * r];
        float& b = s[n * 4 + 2 * r + 1];
        a = exp2_fast(fmaf(a, scale_log2, -base));
        b = exp2_fast(fmaf(b, scale_log2, -base));
        added += a + b;
      }
      sum[r] = sum[r] * shrink[r] + added;
    }
  }
  __device__ void shrink_output(const float (&shrink)[2]) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) {
      o[i] *= shrink[i / 2 % 2];
    }
  }
  __device__ void round_weights(const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      weights[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    }
  }

  __device__ void write(const NativeParams& p, const HopperItem& item) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float all = sum[i];
      all += __shfl_xor_sync(0xffffffffU, all, 1);
      all += __shfl_xor_sync(0xffffffffU, all, 2);
      const int32_t packed = packed_row(item, i);
      if (packed >= item.num_rows) {
        continue;
      }
      const int32_t query = packed / p.group;
      const int32_t head = item.kv_head * p.group + packed - query * p.group;
      const int64_t token = item.first_token + query;
      float top = max[i] * (p.soft_cap > 0.0F ? 1.0F : p.scale * kLog2E);
      float shrink = 1.0F;
      if (p.sinks != nullptr) {
        const float sink = p.sinks[head] * kLog2E;
        const float higher = fmaxf(top, sink);
        shrink = exp2_fast(top - higher);
        all = all * shrink + exp2_fast(sink - higher);
        top = higher;
      }
      const float inverse = all > 0.0F ? shrink / all : 0.0F;
      auto* to =
          static_cast<__nv_bfloat16*>(p.out) + token * p.out_stride + head * kDim + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        *reinterpret_cast<uint32_t*>(to + d * 8) =
            pack_bf16(o[d * 4 + 2 * i] * inverse, o[d * 4 + 2 * i + 1] * inverse);
      }
      if (p.lse != nullptr && lane % 4 == 0) {
        p.lse[token * p.lse_stride + head] = (top + log2f(all)) * kLn2;
      }
    }
  }
};

// A warpgroup puts its 64 rows of queries where the matrix unit wants them.
template <int kDim>
__device__ void place_queries(const NativeParams& p, const HopperItem& item, char* queries) {
  using Sizes = HopperSizes<kDim>;
  const int group = threadIdx.x / 128;
  constexpr int kChunks = kDim / 8;
  named_sync(1 + group, 128);  // the queries before are done with
#pragma unroll 4
  for (int i = threadIdx.x % 128; i < 64 * kChunks; i += 128) {
    const int r = group * 64 + i / kChunks;
    const int chunk = i % kChunks;
    const int32_t packed = item.first_row + r;
    uint4 value = {0, 0, 0, 0};
    if (packed < item.num_rows) {
      const int32_t query = packed / p.group;
      const int32_t head = item.kv_head * p.group + packed - query * p.group;
      value = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.q) +
                                              (item.first_token + query) * p.q_stride +
                                              head * kDim + chunk * 8);
    }
    *reinterpret_cast<uint4*>(queries + chunk / 8 * Sizes::kHalfBytes + r * 128 +
                              (((chunk ^ r) & 7) * 16)) = value;
  }
  fence_async_proxy();
  named_sync(1 + group, 128);
}

// Values behind the sequence's end may be anything, also what no weight of zero can silence.
template <int kDim>
__device__ void clear_values(char* stage, int32_t first, int group) {
  using Sizes = HopperSizes<kDim>;
  for (int i = threadIdx.x % 128; i < (kHopperKeys - first) * 8 * Sizes::kHalves; i += 128) {
    const int row = first + i / (8 * Sizes::kHalves);
    const int chunk = i % (8 * Sizes::kHalves);
    *reinterpret_cast<uint4*>(stage + chunk / 8 * Sizes::kHalfBytes + row * 128 + chunk % 8 * 16) =
        uint4{0, 0, 0, 0};
  }
  fence_async_proxy();
  named_sync(1 + group, 128);
}

// Whose turn it is on the matrix unit: warpgroups hand it to each other.
struct Turns {
  int group;
  __device__ void wait() const { named_sync(3 + group, kConsumers); }
  __device__ void pass() const { named_arrive(3 + (group ^ 1), kConsumers); }
};

// A warpgroup's part of all items.
template <int kDim>
__device__ void consume(
    const NativeParams& p, const Ring& keys, const Ring& values, char* memory, int32_t num_items) {
  using Sizes = HopperSizes<kDim>;
  const int group = threadIdx.x / 128;
  const bool releases = threadIdx.x % 32 == 0;
  const uint32_t queries = shared_address(memory) + group * 64 * 128;
  const Turns turns{group};
  if (group == 1) {
    turns.pass();
  }
  uint32_t n = 0;
  float s[64];
  HopperState<kDim> state;
  for (int32_t i = 0; snake(i) < num_items; ++i) {
    HopperItem item;
    item.find(p, snake(i));
    place_queries<kDim>(p, item, memory);
    state.start(p, item);
    const int32_t last_query = (min(item.first_row + kHopperRows, item.num_rows) - 1) / p.group;
    const int32_t all_see_from = p.window > 0 ? item.first_position + last_query - p.window + 1 : 0;
    const int32_t all_see_to =
        p.causal ? item.first_position + item.first_row / p.group + 1 : item.seq_len;
    const auto masked = [&](int32_t tile) {
      return tile * kHopperKeys < all_see_from || (tile + 1) * kHopperKeys > all_see_to;
    };
    float shrink[2];
    keys.wait_full(n);
    turns.wait();
    state.start_scores(s, queries, keys.stage(n));
    turns.pass();
    wgmma_wait<0>();
    wgmma_pin(s);
    if (releases) {
      barrier_arrive(keys.empty(n));
    }
    state.weigh(s, shrink, p, item, item.first_tile * kHopperKeys, masked(item.first_tile));
    state.round_weights(s);
#pragma unroll 1
    for (int32_t tile = item.first_tile + 1; tile < item.end_tile; ++tile, ++n) {
      keys.wait_full(n + 1);
      turns.wait();
      state.start_scores(s, queries, keys.stage(n + 1));
      values.wait_full(n);
      state.start_values(values.stage(n));
      turns.pass();
      wgmma_wait<1>();
      wgmma_pin(s);
      if (releases) {
        barrier_arrive(keys.empty(n + 1));
      }
      state.weigh(s, shrink, p, item, tile * kHopperKeys, masked(tile));
      wgmma_wait<0>();
      wgmma_pin(state.o);
      if (releases) {
        barrier_arrive(values.empty(n));
      }
      state.shrink_output(shrink);
      state.round_weights(s);
    }
    values.wait_full(n);
    const int32_t in_last = item.seq_len - (item.end_tile - 1) * kHopperKeys;
    if (in_last < kHopperKeys) {
      char* stage = memory + (values.stage(n) - shared_address(memory));
      clear_values<kDim>(stage, in_last, group);
    }
    state.start_values(values.stage(n));
    wgmma_wait<0>();
    wgmma_pin(state.o);
    if (releases) {
      barrier_arrive(values.empty(n));
    }
    ++n;
    state.write(p, item);
  }
  if (group == 0) {
    turns.wait();  // the pass that the other group made last
  }
}

template <int kDim>
__global__ void __launch_bounds__(kHopperThreads, 1) hopper_kernel(
    const NativeParams p,
    const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ CUtensorMap v_map,
    int32_t box) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using Sizes = HopperSizes<kDim>;
  extern __shared__ char raw[];
  char* memory = raw + (1024 - shared_address(raw) % 1024) % 1024;
  const uint32_t base = shared_address(memory);
  const Ring keys{base + Sizes::kBarriersAt, base + Sizes::kKeysAt, Sizes::kTileBytes};
  const Ring values{
      base + Sizes::kBarriersAt + 16 * kHopperStages, base + Sizes::kValuesAt, Sizes::kTileBytes};
  if (threadIdx.x < kHopperStages) {
    for (const Ring& ring : {keys, values}) {
      barrier_init(ring.full(threadIdx.x), 1);
      barrier_init(ring.empty(threadIdx.x), kConsumers / 32);
    }
    fence_async_proxy();
  }
  __syncthreads();
  pdl_wait();
  pdl_release();
  const int32_t num_items =
      p.scratch.prefill_tiles[p.num_rows - p.first_prefill_row] * p.num_kv_heads;
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x < kConsumers + 32) {
      bring_tiles<kDim>(p, k_map, v_map, keys, values, num_items, box);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    consume<kDim>(p, keys, values, memory, num_items);
  }
#endif
}

// The cache as the copy engine sees it: elements, tokens of a block, heads, blocks.
template <int kDim>
CUtensorMap cache_map(const NativeParams& p, const char* base, int32_t box) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    WR_CUDA(cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  constexpr cuuint64_t kAnyBlocks = cuuint64_t{1} << 31;
  CUtensorMap map;
  const cuuint64_t dims[4] = {kDim,
                              static_cast<cuuint64_t>(p.block_size),
                              static_cast<cuuint64_t>(p.num_kv_heads),
                              kAnyBlocks};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(p.token_bytes),
                                 static_cast<cuuint64_t>(p.head_bytes),
                                 static_cast<cuuint64_t>(p.block_bytes)};
  const cuuint32_t boxes[4] = {64, static_cast<cuuint32_t>(box), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result = encode(&map,
                                 CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                 4,
                                 const_cast<char*>(base),
                                 dims,
                                 strides,
                                 boxes,
                                 steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  WR_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: {}", static_cast<int>(result));
  return map;
}

template <int kDim>
void launch_hopper(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  using Sizes = HopperSizes<kDim>;
  auto* kernel = &hopper_kernel<kDim>;
  static const bool raised = [&] {
    WR_CUDA(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kSharedBytes));
    return true;
  }();
  static_cast<void>(raised);
  int32_t box = kHopperKeys;  // the largest that pages of this size are made of
  while (params.block_size % box != 0) {
    box /= 2;
  }
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(num_blocks));
  shape.block = dim3(kHopperThreads);
  shape.shared_bytes = Sizes::kSharedBytes;
  launch(stream,
         "attention_prefill",
         shape,
         kernel,
         params,
         cache_map<kDim>(params, params.k, box),
         cache_map<kDim>(params, params.v, box),
         box);
}

}  // namespace
}  // namespace warprow::cuda
