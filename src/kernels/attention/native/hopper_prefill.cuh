// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda/tensor_map.h"
#include "kernels/attention/native/hopper_state.cuh"

// Formula: paged_attention.h, for rows with many query tokens.
// Shapes: NativeParams; head_dim 64 or 128, bf16 cache.
// Mapping: one persistent CTA an SM. Items are 128 query-head rows (query by query, the group's heads side by
//   side) of one batch row and KV head; CTAs take them one by one, a row's longest first. In parts, items may be split
//   by keys into pieces (PromptSplit). Two consumer warpgroups compute 64 rows each and alternate on the tensor cores. The
//   third warpgroup is the producer: one warp loads tiles of 128 keys and values, page by page, by TMA into two stages each
//   (in parts, tiles of 64 into four stages); the other three warps take the next item and load its queries.
// Bytes moved: per item its visible keys and values once, mostly from L2.
// Numerics: bf16 products, float32 sums, online softmax over tiles of 128 keys aligned to absolute positions,
//   weights rounded to bf16 for the product with the values. A query's result is a function of that query and
//   its keys alone. In parts, the order of order.cuh; a part's sums and those before it are both in registers.
// Preconditions: native_schedule ran for this batch with 128 rows a tile; sm_90a.
// Origin: FlashAttention-3 (Shah et al., 2024) for the overlap of softmax and products; own code.
namespace warprow::cuda {
namespace {

// Named barriers with which the two warpgroups alternate on the tensor cores.
struct Turns {
  int group;
  __device__ void wait() const { named_sync(4 + group, kConsumers); }
  __device__ void pass() const { named_arrive(4 + (group ^ 1), kConsumers); }
};

// Counts a warpgroup's half of a piece as stored. Returns true if it was the item's last.
__device__ bool arrive(const NativeParams& p, const HopperItem& item, int group, bool* is_last) {
  named_sync(2 + group, 128);
  if (threadIdx.x % 128 == 0) {
    int32_t* count = p.scratch.prompt_arrivals + item.number * 2 + group;
    *is_last = add_acq_rel(count, 1) + 1 == item.pieces;
    if (*is_last) {
      *count = 0;
    }
  }
  named_sync(2 + group, 128);
  return *is_last;
}

// The consumer loop of a warpgroup over all items.
template <int kDim, bool kParts, bool kSplit>
__device__ void consume(const NativeParams& p, const HopperBlock<kDim, kParts>& block) {
  using State = HopperState<kDim, kParts>;
  constexpr int kKeys = State::Sizes::kKeys;
  const int group = warp_uniform(static_cast<int>(threadIdx.x) / 128);
  const bool releases = threadIdx.x % 32 == 0;
  const auto release = [&](const auto& ring, uint32_t n) {
    if (releases) {
      barrier_arrive(ring.empty(n));
    }
  };
  const auto& keys = block.keys;
  const auto& values = block.values;
  const auto operand_of_keys = [&](uint32_t n) { return wgmma_operand(keys.stage(n), 1024, 16); };
  const auto operand_of_values = [&](uint32_t n) {
    return wgmma_operand(values.stage(n), 1024, State::Sizes::kHalfBytes);
  };
  const Turns turns{group};
  if (group == 1) {
    turns.pass();
  }
  uint32_t n = 0;
  float s[State::kScores];
  float shrink[2];
  PartFactors by[2];
  const float scale = exponent_scale(p.scale, p.soft_cap);
  State state;
  for (uint32_t i = 0;; ++i) {
    block.queries.wait_full(i);
    const HopperItem item = block.item(i);
    if (item.row < 0) {
      break;
    }
    const uint64_t queries = wgmma_operand(block.queries.stage(i) + group * 64 * 128, 1024, 16);
    state.start(p, item);
    const int32_t last_query = (min(item.first_row + kPromptRows, item.num_rows) - 1) / p.group;
    const int32_t all_see_from = p.window > 0 ? item.first_position + last_query - p.window + 1 : 0;
    const int32_t all_see_to =
        p.end_key(item.first_position + item.first_row / p.group, item.seq_len);
    const auto masked = [&](int32_t tile) {
      return tile * kKeys < all_see_from || (tile + 1) * kKeys > all_see_to;
    };
    int32_t border = kParts ? part_end(item.first_tile * kKeys) : 0;
    // The parts of an item's first piece are merged in registers.
    const bool merges = !kSplit || item.piece == 0;
    int32_t slot = kSplit ? item.number * p.prompt_split.slots + item.first_slot : 0;
    keys.wait_full(n);
    turns.wait();
    state.start_scores(s, queries, operand_of_keys(n));
    turns.pass();
    wgmma_wait<0>();
    wgmma_pin(s);
    release(keys, n);
    state.online_softmax(s, shrink, p, item, item.first_tile * kKeys, masked(item.first_tile));
    state.round_weights(s);
    bool first_of_part = true;
#pragma unroll 1
    for (int32_t tile = item.first_tile + 1; tile < item.end_tile; ++tile, ++n) {
      keys.wait_full(n + 1);
      turns.wait();
      state.start_scores(s, queries, operand_of_keys(n + 1));
      values.wait_full(n);
      state.start_values(operand_of_values(n), first_of_part);
      turns.pass();
      wgmma_wait<1>();
      wgmma_pin(s);
      release(keys, n + 1);
      const bool begins_part = kParts && tile * kKeys == border;
      if constexpr (kParts) {
        if (begins_part) {
          border += part_length(border);
          if (merges) {
            state.end_part(by, scale);
          } else {
            state.store_part_sums(State::slot(p, slot));
          }
        }
      }
      state.online_softmax(s, shrink, p, item, tile * kKeys, masked(tile));
      state.finish_weights();
      wgmma_wait<0>();
      wgmma_pin(state.o);
      release(values, n);
      if constexpr (kParts) {
        if (begins_part && merges) {
          state.fold_output(by);
        } else if (begins_part) {
          state.store_output(State::slot(p, slot++), state.o);
        }
      }
      if (!begins_part) {
        state.shrink_output(shrink);
      }
      state.round_weights(s);
      first_of_part = begins_part;
    }
    release(block.queries, i);
    values.wait_full(n);
    const int32_t in_last = item.seq_len - (item.end_tile - 1) * kKeys;
    if (in_last < kKeys) {
      clear_values<kDim, kParts>(values.stage(n), in_last, group);
    }
    state.start_values(operand_of_values(n), first_of_part);
    wgmma_wait<0>();
    wgmma_pin(state.o);
    release(values, n);
    ++n;
    if constexpr (kParts) {
      if (merges) {
        state.end_part(by, scale);
        state.fold_output(by);
      } else {
        state.store_part_sums(State::slot(p, slot));
        state.store_output(State::slot(p, slot), state.o);
      }
    }
    if constexpr (kSplit) {
      if (item.pieces > 1) {
        if (merges) {
          state.store_total(State::slot(p, slot));
        }
        if (!arrive(p, item, group, &block.control->is_last[group])) {
          continue;
        }
        state.merge_stored(p, item.number * p.prompt_split.slots, item.slots, scale);
      }
    }
    state.write(p, item);
  }
  if (group == 0) {
    turns.wait();  // matches the other group's last pass
  }
}

template <int kDim, bool kParts, bool kSplit>
__global__ void __launch_bounds__(kHopperThreads, 1) hopper_kernel(
    const NativeParams p,
    const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ CUtensorMap v_map,
    int32_t box) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using Sizes = HopperSizes<kDim, kParts>;
  extern __shared__ char memory[];
  __shared__ HopperControl<Sizes::kStages> control;
  const uint32_t base = (shared_address(memory) + 1023) / 1024 * 1024;
  const HopperBlock<kDim, kParts> block{
      {shared_address(control.queries), base, Sizes::kQueryBytes},
      {shared_address(control.keys), base + Sizes::kKeysAt, Sizes::kTileBytes},
      {shared_address(control.values), base + Sizes::kValuesAt, Sizes::kTileBytes},
      &control};
  if (threadIdx.x == 0) {
    block.queries.init(kLoaders, kConsumers / 32 + 1);
    block.keys.init(1, kConsumers / 32);
    block.values.init(1, kConsumers / 32);
    fence_async_proxy();
  }
  __syncthreads();
  pdl_wait();
  pdl_release();
  const bool has_work = HopperItem::num_pieces(p) > static_cast<int32_t>(blockIdx.x);
  if (threadIdx.x < kConsumers) {
    raise_registers<232>();
    if (has_work) {
      consume<kDim, kParts, kSplit>(p, block);
    }
  } else {
    lower_registers<40>();
    if (has_work) {
      if (threadIdx.x < kConsumers + 32) {
        load_tiles(p, k_map, v_map, block, box);
      } else {
        load_queries<kDim, kParts, kSplit>(p, block);
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
                       CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

template <int kDim, bool kParts, bool kSplit>
void launch_hopper(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  using Sizes = HopperSizes<kDim, kParts>;
  constexpr auto* kKernel = &hopper_kernel<kDim, kParts, kSplit>;
  allow_shared_bytes<kKernel>(Sizes::kSharedBytes);
  int32_t box = Sizes::kKeys;  // the largest box that divides the pages
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

}  // namespace

template <int kDim>
void native_hopper_prefill(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  if (params.prompt_split.pieces > 1) {
    launch_hopper<kDim, true, true>(stream, params, num_blocks);
  } else if (params.in_parts) {
    launch_hopper<kDim, true, false>(stream, params, num_blocks);
  } else {
    launch_hopper<kDim, false, false>(stream, params, num_blocks);
  }
}

template void native_hopper_prefill<WR_HEAD_DIM>(Stream& stream,
                                                 const NativeParams& params,
                                                 int32_t num_blocks);

}  // namespace warprow::cuda
