// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda/tensor_map.h"
#include "kernels/attention/native/params.h"
#include "kernels/attention/native/scores.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"

#include <algorithm>
#include <cuda_bf16.h>

// Formula: paged_attention.h, for rows with many query tokens.
// Shapes: NativeParams; head_dim 64 or 128, bf16 cache.
// Mapping: one persistent CTA an SM. Items are 128 query-head rows (query by query, the group's heads side by
//   side) of one batch row and KV head; CTAs take them one by one, a row's longest first. Two consumer
//   warpgroups compute 64 rows each and alternate on the tensor cores. The third warpgroup is the producer:
//   one warp loads tiles of 128 keys and values, page by page, by TMA into two stages each; the other three
//   warps take the next item and load its queries.
// Bytes moved: per item its visible keys and values once, mostly from L2.
// Numerics: bf16 products, float32 sums, online softmax over tiles of 128 keys aligned to absolute positions,
//   weights rounded to bf16 for the product with the values. A query's result is a function of that query and
//   its keys alone.
// Preconditions: native_schedule ran for this batch with 128 rows a tile; sm_90a.
// Origin: FlashAttention-3 (Shah et al., 2024) for the overlap of softmax and products; own code.
namespace warprow::cuda {
namespace {

constexpr int kHopperRows = 128;  // of an item
constexpr int kHopperKeys = 128;  // of a tile
constexpr int kConsumers = 256;
constexpr int kHopperThreads = kConsumers + 128;
constexpr int kLoaders = 96;  // threads that load queries
constexpr int kHopperStages = 2;

template <int kDim>
struct HopperSizes {
  static constexpr int kHalves = kDim / 64;     // a swizzled operand row is 64 elements wide
  static constexpr int kHalfBytes = 128 * 128;  // 128 such rows
  static constexpr int kTileBytes = kHalves * kHalfBytes;  // queries, keys or values
  static constexpr int kKeysAt = kHopperStages * kTileBytes;
  static constexpr int kValuesAt = kKeysAt + kHopperStages * kTileBytes;
  static constexpr int kSharedBytes = kValuesAt + kHopperStages * kTileBytes + 1024;  // to align
};

using HopperRing = Ring<kHopperStages>;

struct HopperItem {
  int32_t row, kv_head;  // row < 0: there is no item
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

// Shared memory of a CTA besides the tiles.
struct HopperControl {
  uint64_t barriers[3][2 * kHopperStages];
  HopperItem items[kHopperStages];
  int32_t next;  // the number of the next item to load
};

struct HopperBlock {
  HopperRing queries, keys, values;
  HopperControl* control;

  [[nodiscard]] __device__ const HopperItem& item(uint32_t i) const {
    return control->items[i % kHopperStages];
  }
};

// Starts the load of an item's queries into the swizzled layout that wgmma reads.
template <int kDim>
__device__ void copy_queries(const NativeParams& p,
                             const HopperItem& item,
                             int thread,
                             uint32_t to) {
  using Sizes = HopperSizes<kDim>;
  constexpr int kChunks = kDim / 8;
  for (int at = thread; at < kHopperRows * kChunks; at += kLoaders) {
    const int r = at / kChunks;
    const int chunk = at % kChunks;
    const int32_t packed = item.first_row + r;
    const bool valid = packed < item.num_rows;
    const int32_t query = valid ? packed / p.group : 0;
    const int32_t head = item.kv_head * p.group + (valid ? packed - query * p.group : 0);
    const auto* from = static_cast<const __nv_bfloat16*>(p.q) +
                       (item.first_token + query) * p.q_stride + head * kDim + chunk * 8;
    copy16_async(
        to + chunk / 8 * Sizes::kHalfBytes + r * 128 + (((chunk ^ r) & 7) * 16), from, valid);
  }
  copy_commit();
}

// Three producer warps: take items and load their queries, one item ahead of the consumers.
template <int kDim>
__device__ void load_queries(const NativeParams& p, const HopperBlock& block) {
  const int thread = static_cast<int>(threadIdx.x) - kConsumers - 32;
  const int32_t num_items =
      p.scratch.prefill_tiles[p.num_rows - p.first_prefill_row] * p.num_kv_heads;
  auto number = static_cast<int32_t>(blockIdx.x);
  for (uint32_t i = 0; number < num_items; ++i) {
    HopperItem item;
    item.find(p, number);
    block.queries.wait_empty(i);
    copy_queries<kDim>(p, item, thread, block.queries.stage(i));
    if (thread == 0) {
      block.control->items[i % kHopperStages] = item;
      // A launch takes as many as there are items, so the count wraps to 0 at the last.
      block.control->next = static_cast<int32_t>(
          atomicInc(&p.scratch.counts->prefill_taken, num_items - 1) + gridDim.x);
    }
    copy_wait<0>();
    fence_async_proxy();
    barrier_arrive(block.queries.full(i));
    named_sync(1, kLoaders);
    number = block.control->next;
    named_sync(1, kLoaders);
    if (number >= num_items) {
      block.queries.wait_empty(i + 1);
      if (thread == 0) {
        block.control->items[(i + 1) % kHopperStages].row = -1;
      }
      barrier_arrive(block.queries.full(i + 1));
    }
  }
}

// One producer warp: loads the key and value tiles of all items. A TMA box is `box` tokens of a page, 64
// elements wide.
template <int kDim>
__device__ void load_tiles(const NativeParams& p,
                           const CUtensorMap& k_map,
                           const CUtensorMap& v_map,
                           const HopperBlock& block,
                           int32_t box) {
  using Sizes = HopperSizes<kDim>;
  const int lane = threadIdx.x % 32;
  const int half = lane % Sizes::kHalves;
  const int within = lane / Sizes::kHalves * box;  // token in the tile
  uint32_t n = 0;
  for (uint32_t i = 0;; ++i) {
    block.queries.wait_full(i);
    const HopperItem item = block.item(i);
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(block.queries.empty(i));
    }
    if (item.row < 0) {
      return;
    }
    const int32_t* table = p.block_table.of_row(p.idx_mapping[item.row]);
    for (int32_t tile = item.first_tile; tile < item.end_tile; ++tile, ++n) {
      const int32_t token = tile * kHopperKeys + within;
      const bool has = within < kHopperKeys && token < item.seq_len;
      const int32_t page = has ? table[token / p.block_size] : 0;
      const int32_t offset = token % p.block_size;
      const uint32_t bytes = __popc(__ballot_sync(0xffffffffU, has)) * box * 128;
      const uint32_t to = half * Sizes::kHalfBytes + within * 128;
      const auto bring = [&](const HopperRing& ring, const CUtensorMap& map) {
        ring.wait_empty(n);
        if (lane == 0) {
          barrier_arrive_expecting(ring.full(n), bytes);
        }
        __syncwarp();
        if (has) {
          tma_load_4d(ring.stage(n) + to, map, ring.full(n), half * 64, offset, item.kv_head, page);
        }
      };
      bring(block.keys, k_map);
      bring(block.values, v_map);
    }
  }
}

// A warpgroup's 64 rows of an item. Lane (g, t) of warp w has rows 16 w + g and 16 w + g + 8, and of every 8
// columns 2 t and 2 t + 1.
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

  // Starts the wgmma of a tile's scores; s is complete after wgmma_wait.
  __device__ static void start_scores(float (&s)[64], uint32_t queries, uint32_t keys) {
    wgmma_pin(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int at = step / 4 * Sizes::kHalfBytes + step % 4 * 32;
      wgmma(s, wgmma_operand(queries + at, 1024, 16), wgmma_operand(keys + at, 1024, 16), step > 0);
    }
    wgmma_commit();
  }
  __device__ void start_values(uint32_t values) {
    wgmma_pin(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kHopperKeys / 16; ++step) {
      wgmma_transposed(
          o, weights + step * 4, wgmma_operand(values + step * 2048, 1024, Sizes::kHalfBytes));
    }
    wgmma_commit();
  }

  // Turns scores into weights, in place and still float32. Returns in `shrink` the factor for earlier sums.
  __device__ void online_softmax(float (&s)[64],
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
    if (!__any_sync(0xffffffffU, shrink[0] != 1.0F || shrink[1] != 1.0F)) {
      return;  // most tiles do not raise the maximum
    }
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

  // Writes a row's output in vectors of 16 bytes. Four lanes exchange their values of 32 columns, so that
  // each has 8 adjacent ones.
  __device__ void write_row(__nv_bfloat16* row, int i, float scale, bool valid) const {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int d = 0; d < kDim / 8; d += 4) {
      uint32_t v[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float* from = o + (d + c) * 4 + 2 * i;
        v[c] = pack_bf16(from[0] * scale, from[1] * scale);
      }
#pragma unroll
      for (int c = 0; c < 4; c += 2) {
        const uint32_t got = __shfl_xor_sync(0xffffffffU, t % 2 == 0 ? v[c + 1] : v[c], 1);
        (t % 2 == 0 ? v[c + 1] : v[c]) = got;
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint32_t got = __shfl_xor_sync(0xffffffffU, t < 2 ? v[c + 2] : v[c], 2);
        (t < 2 ? v[c + 2] : v[c]) = got;
      }
      if (valid) {
        *reinterpret_cast<uint4*>(row + (d + t) * 8) = uint4{v[0], v[1], v[2], v[3]};
      }
    }
  }

  __device__ void write(const NativeParams& p, const HopperItem& item) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float all = sum[i];
      all += __shfl_xor_sync(0xffffffffU, all, 1);
      all += __shfl_xor_sync(0xffffffffU, all, 2);
      const int32_t packed = packed_row(item, i);
      const bool valid = packed < item.num_rows;
      const int32_t query = valid ? packed / p.group : 0;
      const int32_t head = item.kv_head * p.group + (valid ? packed - query * p.group : 0);
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
      auto* row = static_cast<__nv_bfloat16*>(p.out) + token * p.out_stride + head * kDim;
      write_row(row, i, inverse, valid);
      if (valid && p.lse != nullptr && threadIdx.x % 4 == 0) {
        p.lse[token * p.lse_stride + head] = (top + log2f(all)) * kLn2;
      }
    }
  }
};

// V past seq_len may be NaN, and 0 x NaN = NaN: zero it.
template <int kDim>
__device__ void clear_values(uint32_t stage, int32_t first, int group) {
  using Sizes = HopperSizes<kDim>;
  for (int i = threadIdx.x % 128; i < (kHopperKeys - first) * 8 * Sizes::kHalves; i += 128) {
    const int row = first + i / (8 * Sizes::kHalves);
    const int chunk = i % (8 * Sizes::kHalves);
    clear16(stage + chunk / 8 * Sizes::kHalfBytes + row * 128 + chunk % 8 * 16);
  }
  fence_async_proxy();
  named_sync(2 + group, 128);
}

// Named barriers with which the two warpgroups alternate on the tensor cores.
struct Turns {
  int group;
  __device__ void wait() const { named_sync(4 + group, kConsumers); }
  __device__ void pass() const { named_arrive(4 + (group ^ 1), kConsumers); }
};

// The consumer loop of a warpgroup over all items.
template <int kDim>
__device__ void consume(const NativeParams& p, const HopperBlock& block) {
  const int group = threadIdx.x / 128;
  const bool releases = threadIdx.x % 32 == 0;
  const auto release = [&](const HopperRing& ring, uint32_t n) {
    if (releases) {
      barrier_arrive(ring.empty(n));
    }
  };
  const HopperRing& keys = block.keys;
  const HopperRing& values = block.values;
  const Turns turns{group};
  if (group == 1) {
    turns.pass();
  }
  uint32_t n = 0;
  float s[64];
  float shrink[2];
  HopperState<kDim> state;
  for (uint32_t i = 0;; ++i) {
    block.queries.wait_full(i);
    const HopperItem item = block.item(i);
    if (item.row < 0) {
      break;
    }
    const uint32_t queries = block.queries.stage(i) + group * 64 * 128;
    state.start(p, item);
    const int32_t last_query = (min(item.first_row + kHopperRows, item.num_rows) - 1) / p.group;
    const int32_t all_see_from = p.window > 0 ? item.first_position + last_query - p.window + 1 : 0;
    const int32_t all_see_to =
        p.causal ? item.first_position + item.first_row / p.group + 1 : item.seq_len;
    const auto masked = [&](int32_t tile) {
      return tile * kHopperKeys < all_see_from || (tile + 1) * kHopperKeys > all_see_to;
    };
    keys.wait_full(n);
    turns.wait();
    state.start_scores(s, queries, keys.stage(n));
    turns.pass();
    wgmma_wait<0>();
    wgmma_pin(s);
    release(keys, n);
    state.online_softmax(
        s, shrink, p, item, item.first_tile * kHopperKeys, masked(item.first_tile));
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
      release(keys, n + 1);
      state.online_softmax(s, shrink, p, item, tile * kHopperKeys, masked(tile));
      wgmma_wait<0>();
      wgmma_pin(state.o);
      release(values, n);
      state.shrink_output(shrink);
      state.round_weights(s);
    }
    release(block.queries, i);
    values.wait_full(n);
    const int32_t in_last = item.seq_len - (item.end_tile - 1) * kHopperKeys;
    if (in_last < kHopperKeys) {
      clear_values<kDim>(values.stage(n), in_last, group);
    }
    state.start_values(values.stage(n));
    wgmma_wait<0>();
    wgmma_pin(state.o);
    release(values, n);
    ++n;
    state.write(p, item);
  }
  if (group == 0) {
    turns.wait();  // matches the other group's last pass
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
  extern __shared__ char memory[];
  __shared__ HopperControl control;
  const uint32_t base = (shared_address(memory) + 1023) / 1024 * 1024;
  const auto ring = [&](int which, int at) {
    return HopperRing{shared_address(control.barriers[which]), base + at, Sizes::kTileBytes};
  };
  const HopperBlock block{ring(0, 0), ring(1, Sizes::kKeysAt), ring(2, Sizes::kValuesAt), &control};
  if (threadIdx.x == 0) {
    block.queries.init(kLoaders, kConsumers / 32 + 1);
    block.keys.init(1, kConsumers / 32);
    block.values.init(1, kConsumers / 32);
    fence_async_proxy();
  }
  __syncthreads();
  pdl_wait();
  pdl_release();
  if (threadIdx.x < kConsumers) {
    raise_registers<232>();
    if (p.scratch.prefill_tiles[p.num_rows - p.first_prefill_row] * p.num_kv_heads >
        static_cast<int32_t>(blockIdx.x)) {
      consume<kDim>(p, block);
    }
  } else {
    lower_registers<40>();
    if (p.scratch.prefill_tiles[p.num_rows - p.first_prefill_row] * p.num_kv_heads >
        static_cast<int32_t>(blockIdx.x)) {
      if (threadIdx.x < kConsumers + 32) {
        load_tiles<kDim>(p, k_map, v_map, block, box);
      } else {
        load_queries<kDim>(p, block);
      }
    }
  }
#endif
}

// Tensor map of the cache: elements, tokens of a block, heads, blocks.
template <int kDim>
CUtensorMap cache_map(const NativeParams& p, const char* base, int32_t box) {
  return tensor_map<4>(base,
                       {kDim,
                        static_cast<uint64_t>(p.block_size),
                        static_cast<uint64_t>(p.num_kv_heads),
                        uint64_t{1} << 31},
                       {static_cast<uint64_t>(p.token_bytes),
                        static_cast<uint64_t>(p.head_bytes),
                        static_cast<uint64_t>(p.block_bytes)},
                       {64, static_cast<uint32_t>(box), 1, 1},
                       CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

}  // namespace

template <int kDim>
void native_hopper_prefill(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  using Sizes = HopperSizes<kDim>;
  constexpr auto* kKernel = &hopper_kernel<kDim>;
  allow_shared_bytes<kKernel>(Sizes::kSharedBytes);
  int32_t box = kHopperKeys;  // the largest box that divides the pages
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
         kKernel,
         params,
         cache_map<kDim>(params, params.k, box),
         cache_map<kDim>(params, params.v, box),
         box);
}

template void native_hopper_prefill<WR_HEAD_DIM>(Stream& stream,
                                                 const NativeParams& params,
                                                 int32_t num_blocks);

}  // namespace warprow::cuda
