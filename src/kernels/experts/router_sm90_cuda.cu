// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/cluster_memory.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/experts/route_experts.cuh"
#include "kernels/experts/router_plan.h"
#include "kernels/linear/finish.cuh"

#include <cuda_runtime.h>

// Formula, shapes: route_experts.h, with the router's product.
// Mapping: one cluster. A CTA multiplies all rows with some tiles of 16 experts, over one part of k: a warp has a chain of
//   m16n8k16 with experts as m and eight rows as n. Sums go to the CTA that has the row, one row of each eight. There four lanes
//   find an expert's place in the order of its row. Choices go to all CTAs; each finds the places of its rows' slots, and the
//   last one makes the work list.
// Bytes moved: w once, x once a CTA of a part from L2. w is loaded before the kernel waits for the preceding one.
// Numerics: as the product with `parts` of k by sm90_bf16_gemm_small_m or sm90_bf16_gemm_warps, and route_experts_cuda.cu
//   behind it, bit for bit.
// Preconditions: routes_with_product.
// Origin: own design.
namespace warprow::cuda {
namespace {

constexpr int kThreads = kRouterWarps * 32;
constexpr int kSteps = 64;  // inputs of a step

struct Params {
  Routing routing;
  RouterPlan plan;
  const std::byte* w;
  const std::byte* x;
  const float* bias;
  int64_t x_stride;  // bytes
  int32_t k;
};

// Starts to copy a part of some rows to shared memory, a warp a row.
__device__ __forceinline__ void copy_rows(
    uint32_t to, int pitch, const std::byte* from, int64_t stride, int num_rows, int bytes) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < num_rows; row += kRouterWarps) {
    for (int at = lane * 16; at < bytes; at += 32 * 16) {
      copy16_async(to + row * pitch + at, from + row * stride + at);
    }
  }
  copy_commit();
}

// The operands of 32 inputs, as m16n8k16 takes them.
struct Operands {
  uint32_t w[2][4];
  uint32_t x[4];

  __device__ __forceinline__ void read(uint32_t w_row, uint32_t x_row) {
    load_matrices(x, x_row);
    load_matrices(w[0], w_row);
    load_matrices(w[1], w_row + 32);
  }
  __device__ __forceinline__ void multiply(float (&sum)[4]) const {
    mma_bf16(sum, w[0], x[0], x[1]);
    mma_bf16(sum, w[1], x[2], x[3]);
  }
};

// A chain over a part of k. Operands are read three products ahead, those behind the part's end without use.
__device__ __forceinline__ void multiply(uint32_t w_row,
                                         uint32_t x_row,
                                         int num_steps,
                                         float (&sum)[4]) {
  constexpr int kHalf = 64;  // bytes of 32 inputs
  Operands operands[4];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    operands[i].read(w_row + i * kHalf, x_row + i * kHalf);
  }
  for (int half = 0; half < 2 * num_steps; half += 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int ahead = (half + i + 3) * kHalf;
      operands[(i + 3) % 4].read(w_row + ahead, x_row + ahead);
      if (i < 2 || half + i < 2 * num_steps) {
        operands[i].multiply(sum);
      }
    }
  }
}

// Shared memory of a CTA.
struct Memory {
  uint32_t w;          // rows of w
  uint32_t x;          // rows of x
  float* sums;         // [parts, eights, experts]  products of the CTA's rows
  float* logits;       // [eights, kPerLane * 32]  of the CTA's rows
  uint32_t* keys;      // [eights, kPerLane * 32]  their order
  int32_t* choices;    // [T, num_chosen]  of all rows
  int32_t* counts;     // [kPerLane * 32]  how often experts are chosen
  float* biases;       // [kPerLane * 32]  of logits
  float* preferences;  // [kPerLane * 32]  added to sigmoids for the choice
};

// The key by which experts are chosen, larger first; 0 for what is no expert. None has all bits set, so that there is a next one.
__device__ __forceinline__ uint32_t key_of(const Routing& a,
                                           const Memory& memory,
                                           float logit,
                                           int expert) {
  if (expert >= a.num_experts) {
    return 0;
  }
  const float score = a.by_sigmoid ? __fadd_rn(sigmoid(logit), memory.preferences[expert]) : logit;
  return min(max(ordered(score), 1U), ~1U);
}

// Adds the parts of products of the CTA's rows: logits and keys. A warp has 32 experts of a row.
template <int kPerLane>
__device__ __forceinline__ void finish_logits(const Params& p, const Memory& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const RouterPlan& plan = p.plan;
  for (int unit = static_cast<int>(threadIdx.x) / 32; unit < plan.eights * kPerLane;
       unit += kRouterWarps) {
    const int eight = unit / kPerLane;
    const int expert = unit % kPerLane * 32 + lane;
    float logit = 0.0F;
    if (expert < p.routing.num_experts) {
      const float* from = memory.sums + eight * plan.experts + expert;
      logit = *from;
      for (int part = 1; part < plan.parts; ++part) {
        logit = __fadd_rn(logit, from[part * plan.eights * plan.experts]);
      }
      logit = scaled(logit, 1.0F, memory.biases[expert]);
    }
    memory.logits[unit * 32 + lane] = logit;
    memory.keys[unit * 32 + lane] = key_of(p.routing, memory, logit, expert);
  }
}

// The place of each expert among those of its row: how many have larger keys, or equal ones and lower numbers. The first
// num_chosen are the row's choices, for all CTAs. Four lanes share an expert.
template <int kPerLane>
__device__ __forceinline__ void choose(const Params& p,
                                       const Memory& memory,
                                       int rank,
                                       int num_rows) {
  constexpr int kExperts = kPerLane * 32;
  constexpr int kAtOnce = 8;  // experts of a warp
  const Routing& a = p.routing;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int unit = static_cast<int>(threadIdx.x) / 32; unit < p.plan.eights * (kExperts / kAtOnce);
       unit += kRouterWarps) {
    const int eight = unit / (kExperts / kAtOnce);
    const int expert = unit % (kExperts / kAtOnce) * kAtOnce + lane / 4;
    const uint32_t* keys = memory.keys + eight * kExperts;
    const uint32_t mine = keys[expert];
    int before = 0;
#pragma unroll 8
    for (int four = lane % 4; four < kExperts / 4; four += 4) {
      const uint4 others = reinterpret_cast<const uint4*>(keys)[four];
      const uint32_t least = four < expert / 4 ? mine : mine + 1;
      before += (others.x >= least ? 1 : 0) + (others.y >= least ? 1 : 0) +
                (others.z >= least ? 1 : 0) + (others.w >= least ? 1 : 0);
    }
    // Equal keys of the expert's own four.
    const int other = expert / 4 * 4 + lane % 4;
    before += other < expert && keys[other] == mine ? 1 : 0;
    before += __shfl_xor_sync(~0U, before, 1);
    before += __shfl_xor_sync(~0U, before, 2);
    const int row = eight * 8 + rank;
    if (mine > 0 && before < a.num_chosen && row < num_rows) {
      const int32_t* to = memory.choices + row * a.num_chosen + before;
      store_remote(to, lane % 4, expert);
      store_remote(to, lane % 4 + 4, expert);
    }
  }
}

// Weights of the CTA's rows, by a warp each, the last warps first.
template <int kPerLane>
__device__ __forceinline__ void write_weights(const Params& p,
                                              const Memory& memory,
                                              int rank,
                                              int num_rows) {
  const Routing& a = p.routing;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int eight = kRouterWarps - 1 - static_cast<int>(threadIdx.x) / 32;
  const int row = eight * 8 + rank;
  if (row >= num_rows) {
    return;
  }
  const float* logits = memory.logits + eight * kPerLane * 32;
  float logit[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    logit[i] = logits[i * 32 + lane];
  }
  const int32_t* choices = memory.choices + row * a.num_chosen;
  const int32_t choice = choices[min(lane, a.num_chosen - 1)];
  write_weight(a, row, logit, choice, logits[choice], logits[choices[0]]);
}

// Places of the slots of the CTA's rows, by a warp each.
__device__ __forceinline__ void write_places(const Params& p,
                                             const Memory& memory,
                                             int rank,
                                             int num_rows) {
  const Routing& a = p.routing;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_slots = num_rows * a.num_chosen;
  for (int eight = 0; eight * 8 + rank < num_rows; ++eight) {
    const int first = (eight * 8 + rank) * a.num_chosen;
    for (int slot = first + static_cast<int>(threadIdx.x) / 32; slot < first + a.num_chosen;
         slot += kRouterWarps) {
      const int32_t mine = memory.choices[slot];
      int before = 0;
      for (int other = lane; other < num_slots; other += 32) {
        const int32_t expert = memory.choices[other];
        before += expert < mine || (expert == mine && other < slot) ? 1 : 0;
      }
      const int32_t place = __reduce_add_sync(~0U, before);
      if (lane == 0) {
        a.places[slot] = place;
        a.slots[place] = slot;
      }
    }
  }
}

// The work list and each expert's first place, by one CTA. A lane has kPerLane adjacent experts.
template <int kPerLane>
__device__ __forceinline__ void write_tiles(const Params& p, const Memory& memory, int num_rows) {
  const Routing& a = p.routing;
  for (int slot = static_cast<int>(threadIdx.x); slot < num_rows * a.num_chosen; slot += kThreads) {
    atomicAdd(memory.counts + memory.choices[slot], 1);
  }
  __syncthreads();
  if (threadIdx.x >= 32) {
    return;
  }
  const auto lane = static_cast<int>(threadIdx.x);
  int32_t count[kPerLane];
  uint32_t own = 0;  // tiles, and in the lower half slots
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    count[i] = memory.counts[lane * kPerLane + i];
    own += static_cast<uint32_t>((count[i] + a.tile_places - 1) / a.tile_places) << 16 |
           static_cast<uint32_t>(count[i]);
  }
  const uint32_t sum = sum_up_to_lane(own, lane);
  const uint32_t all = __shfl_sync(~0U, sum, 31);
  auto first = static_cast<int32_t>((sum - own) & 0xffffU);
  auto tile = static_cast<int32_t>((sum - own) >> 16);
  auto* tiles = reinterpret_cast<int4*>(a.tiles);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane * kPerLane + i;
    if (expert < a.num_experts) {
      a.first[expert] = first;
    }
    for (int at = 0; at < count[i]; at += a.tile_places) {
      tiles[++tile] = {expert, first + at, min(a.tile_places, count[i] - at), 0};
    }
    first += count[i];
  }
  if (lane == 0) {
    a.first[a.num_experts] = static_cast<int32_t>(all & 0xffffU);
    tiles[0] = {static_cast<int32_t>(all >> 16), 0, 0, 0};
  }
}

template <int kPerLane>
__global__ void WR_CLUSTER_DIMS(kRouterCtas) __launch_bounds__(kThreads, 1)
router_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char data[];
  __shared__ int32_t counts[kPerLane * 32];
  __shared__ float biases[kPerLane * 32];
  __shared__ float preferences[kPerLane * 32];
  const Routing& a = p.routing;
  const RouterPlan& plan = p.plan;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = cluster_rank();
  cluster_arrive();
  Memory memory;
  memory.w = shared_address(data);
  memory.x = memory.w + router_x_at(plan);
  memory.sums = reinterpret_cast<float*>(data + router_sums_at(plan));
  memory.logits = reinterpret_cast<float*>(data + router_logits_at(plan));
  memory.keys = reinterpret_cast<uint32_t*>(memory.logits + plan.eights * kPerLane * 32);
  memory.choices = reinterpret_cast<int32_t*>(memory.keys + plan.eights * kPerLane * 32);
  memory.counts = counts;
  memory.biases = biases;
  memory.preferences = preferences;

  // This CTA's part of k and tiles. There are 1, 2 or 4 parts.
  const int parts_log2 = plan.parts / 2;
  const int part = rank & (plan.parts - 1);
  const int steps = p.k / kSteps;
  const int first_step = steps * part >> parts_log2;
  const int num_steps = (steps * (part + 1) >> parts_log2) - first_step;
  const int bytes = num_steps * kSteps * 2;
  const int first_expert = (rank >> parts_log2) * plan.tiles * 16;
  const int num_experts = max(0, min(plan.tiles * 16, a.num_experts - first_expert));
  const int64_t row_bytes = int64_t{p.k} * 2;
  const std::byte* own_w = p.w + first_expert * row_bytes + first_step * kSteps * 2;
  copy_rows(memory.w, plan.pitch, own_w, row_bytes, num_experts, bytes);
  if (const auto expert = static_cast<int>(threadIdx.x); expert < kPerLane * 32) {
    counts[expert] = 0;
    const bool is_expert = expert < a.num_experts;
    biases[expert] = is_expert && p.bias != nullptr ? __ldg(p.bias + expert) : 0.0F;
    preferences[expert] = is_expert && a.bias != nullptr ? __ldg(a.bias + expert) : 0.0F;
  }
  // Written at the beginning of the step, several kernels before the preceding one.
  const int num_rows = a.rows();

  pdl_wait();
  pdl_release();
  copy_rows(memory.x, plan.pitch, p.x + first_step * kSteps * 2, p.x_stride, num_rows, bytes);
  copy_wait<0>();
  __syncthreads();
  cluster_wait();  // all CTAs have begun, so that their shared memory can be written
  for (int tile = warp, eight = 0;; tile += kRouterWarps) {
    for (; tile >= plan.tiles && eight * 8 < num_rows; ++eight) {
      tile -= plan.tiles;
    }
    if (eight * 8 >= num_rows) {
      break;
    }
    if (tile * 16 >= num_experts) {
      continue;
    }
    // Rows beyond the last have the values of the last, and their products are not used.
    const int row = min(eight * 8 + lane % 8, num_rows - 1);
    const int expert = min(tile * 16 + lane % 16, num_experts - 1);
    float sum[4] = {};
    multiply(memory.w + expert * plan.pitch + lane / 16 * 16,
             memory.x + row * plan.pitch + lane / 8 * 16,
             num_steps,
             sum);
    // Row `i` of an eight goes to CTA i.
    const float* to = memory.sums + (part * plan.eights + eight) * plan.experts + first_expert +
                      tile * 16 + lane / 4;
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      store_remote(to + v / 2 * 8, lane % 4 * 2 + v % 2, sum[v]);
    }
  }
  cluster_sync();
  finish_logits<kPerLane>(p, memory);
  __syncthreads();
  choose<kPerLane>(p, memory, rank, num_rows);
  cluster_sync();
  if (rank == kRouterCtas - 1) {
    write_tiles<kPerLane>(p, memory, num_rows);
  }
  write_places(p, memory, rank, num_rows);
  write_weights<kPerLane>(p, memory, rank, num_rows);
}

template <int kPerLane>
void launch_router(Stream& stream, const Params& params) {
  constexpr auto* kKernel = &router_kernel<kPerLane>;
  allow_shared_bytes<kKernel>(params.plan.shared_bytes);
  launch(stream, "router", {kRouterCtas, kThreads, params.plan.shared_bytes}, kKernel, params);
}

}  // namespace

void route_with_product(Stream& stream,
                        const Routing& routing,
                        const RouterProduct& product,
                        int32_t parts) {
  const Params params{
      .routing = routing,
      .plan = router_plan(
          routing.max_rows, routing.num_experts, routing.num_chosen, product.w.k, parts),
      .w = product.w.data,
      .x = static_cast<const std::byte*>(product.x.data),
      .bias = product.bias,
      .x_stride = product.x.stride * 2,
      .k = product.w.k,
  };
  switch (router_experts_a_lane(routing.num_experts)) {
    case 1:
      return launch_router<1>(stream, params);
    case 4:
      return launch_router<4>(stream, params);
    default:
      return launch_router<8>(stream, params);
  }
}

}  // namespace warprow::cuda
