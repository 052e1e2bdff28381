// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/experts/route_experts.cuh"
#include "kernels/experts/route_experts.h"
#include "kernels/linear/linear_plan.h"

#include <algorithm>

// Formula, shapes, preconditions: route_experts.h.
// Mapping: a warp chooses a row's experts; a lane has every 32nd expert. The lists are a stable counting sort: each warp has
//   adjacent slots, counts those of each expert, and places them behind the same expert's slots of earlier warps. For few rows
//   one CTA does everything, and up to 32 slots are sorted by one warp. For more rows one kernel chooses: up to kMaxCtas CTAs
//   write their rows' choices to lists.places and count them. Then each CTA of a second kernel places the same rows' slots
//   behind those of earlier CTAs.
// Bytes moved: T * num_experts * 4, and some for each slot.
// Numerics: float32; sums over experts: a lane's in order, then a butterfly over lanes.
namespace warprow::cuda {
namespace {

constexpr int kMaxWarps = 32;
constexpr int kMaxRowsOfOne = 16;  // of one CTA
constexpr int kMaxCtas = 64;
constexpr int kMaxGroups = 32;  // a lane each

// The inverse of `ordered`.
__device__ __forceinline__ float number_of(uint32_t rank) {
  return __uint_as_float((rank & 0x80000000U) != 0 ? rank & 0x7fffffffU : ~rank);
}

// The sum of the two largest scores of a group.
template <int kPerLane>
__device__ float two_largest(const float (&scores)[kPerLane], int first, int size) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = 0.0F;
  int taken = -1;
  for (int turn = 0; turn < 2; ++turn) {
    uint32_t best = 0;
    int at = INT32_MAX;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = i * 32 + lane;
      const bool counts = expert >= first && expert < first + size && expert != taken;
      if (counts && ordered(scores[i]) > best) {
        best = ordered(scores[i]);
        at = expert;
      }
    }
    const uint32_t top = __reduce_max_sync(~0U, best);
    taken = static_cast<int>(__reduce_min_sync(~0U, best == top ? static_cast<uint32_t>(at) : ~0U));
    sum = turn == 0 ? number_of(top) : __fadd_rn(sum, number_of(top));
  }
  return sum;
}

// Keeps the scores of the chosen groups' experts; those of other groups become -inf.
template <int kPerLane>
__device__ void keep_groups(const Routing& a, float (&scores)[kPerLane]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int size = a.num_experts / a.num_groups;
  float mine = 0.0F;  // lane g: of group g
  for (int g = 0; g < a.num_groups; ++g) {
    const float sum = two_largest(scores, g * size, size);
    mine = lane == g ? sum : mine;
  }
  int better = 0;
  for (int other = 0; other < a.num_groups; ++other) {
    const float theirs = __shfl_sync(~0U, mine, other);
    better += theirs > mine || (theirs == mine && other < lane) ? 1 : 0;
  }
  const uint32_t kept = __ballot_sync(~0U, lane < a.num_groups && better < a.chosen_groups);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int group = (i * 32 + lane) / size;
    if (group >= kMaxGroups || (kept >> group & 1U) == 0) {
      scores[i] = -INFINITY;
    }
  }
}

// The scores by which a row's experts are chosen.
template <int kPerLane>
__device__ void sigmoid_scores(const Routing& a,
                               const float (&logits)[kPerLane],
                               float (&scores)[kPerLane]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = i * 32 + lane;
    const bool has_bias = a.bias != nullptr && expert < a.num_experts;
    scores[i] = __fadd_rn(sigmoid(logits[i]), has_bias ? a.bias[expert] : 0.0F);
  }
  if (a.chosen_groups < a.num_groups) {
    keep_groups(a, scores);
  }
}

// One row, by a warp. Writes its weights, and its choices to `experts`.
template <int kPerLane>
__device__ void route_row(const Routing& a, int row, int32_t* experts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* logits = a.logits + row * a.stride;
  float logit[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = i * 32 + lane;
    logit[i] = expert < a.num_experts ? logits[expert] : 0.0F;
  }
  float score[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    score[i] = logit[i];
  }
  if (a.by_sigmoid) {
    sigmoid_scores(a, logit, score);
  }
  // The rank of a number; 0: taken, or no expert. Only NaN with all bits set has rank 0 of itself.
  uint32_t rank[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    rank[i] = i * 32 + lane < a.num_experts ? max(ordered(score[i]), 1U) : 0U;
  }
  float largest = 0.0F;
  float chosen = 0.0F;  // lane j: the logit of choice j
  int choice = 0;       // and its expert
  for (int j = 0; j < a.num_chosen; ++j) {
    uint32_t best = 0;
    int at = a.num_experts;
    float value = 0.0F;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (rank[i] > best) {
        best = rank[i];
        at = i * 32 + lane;
        value = logit[i];
      }
    }
    const uint32_t top = __reduce_max_sync(~0U, best);
    const auto winner =
        static_cast<int>(__reduce_min_sync(~0U, best == top ? static_cast<uint32_t>(at) : ~0U));
    value = __shfl_sync(~0U, value, winner % 32);
    largest = j == 0 ? value : largest;
    if (lane == j) {
      chosen = value;
      choice = winner;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      rank[i] = i * 32 + lane == winner ? 0U : rank[i];
    }
  }
  write_weight(a, row, logit, choice, chosen, largest);
  if (lane < a.num_chosen) {
    experts[row * a.num_chosen + lane] = choice;
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(1024) route_rows(const Routing a) {
  extern __shared__ int32_t counts[];  // [num_experts]
  for (auto e = static_cast<int>(threadIdx.x); e < a.num_experts;
       e += static_cast<int>(blockDim.x)) {
    counts[e] = 0;
  }
  pdl_wait();
  pdl_release();
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x) * a.rows_of_cta;
  const int last = min(first + a.rows_of_cta, a.rows());
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = first + static_cast<int>(threadIdx.x) / 32; row < last;
       row += static_cast<int>(blockDim.x) / 32) {
    route_row<kPerLane>(a, row, a.places);
    __syncwarp();
    if (lane < a.num_chosen) {
      atomicAdd(counts + a.places[row * a.num_chosen + lane], 1);
    }
  }
  __syncthreads();
  for (auto e = static_cast<int>(threadIdx.x); e < a.num_experts;
       e += static_cast<int>(blockDim.x)) {
    a.counts[blockIdx.x * a.num_experts + e] = counts[e];
  }
}

// The sums of all earlier threads' values. `sums`: room for a value a warp.
__device__ __forceinline__ uint64_t sum_before(uint64_t v, uint64_t* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint64_t sum = sum_up_to_lane(v, lane);
  if (lane == 31) {
    sums[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  uint64_t before = sum - v;
  for (int warp = 0; warp < static_cast<int>(threadIdx.x) / 32; ++warp) {
    before += sums[warp];
  }
  return before;
}

// How often an expert was chosen by the rows of earlier CTAs, and of all.
struct Chosen {
  int32_t before;
  int32_t all;
};

// Of the thread's expert, from the counts of all CTAs. `sums`: room for two numbers a thread. Groups of as many threads as
// there are experts share the CTAs.
__device__ __forceinline__ Chosen chosen_by_all(const Routing& a, int32_t* sums) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int groups = static_cast<int>(blockDim.x) / a.num_experts;
  const int group = thread / a.num_experts;
  const int expert = thread % a.num_experts;
  Chosen mine{0, 0};
  if (group < groups) {
#pragma unroll 4
    for (int cta = group; cta < static_cast<int>(gridDim.x); cta += groups) {
      const int32_t count = __ldcg(a.counts + cta * a.num_experts + expert);
      mine.all += count;
      mine.before += cta < static_cast<int>(blockIdx.x) ? count : 0;
    }
    sums[2 * thread] = mine.before;
    sums[2 * thread + 1] = mine.all;
  }
  __syncthreads();
  for (int other = 1; group == 0 && other < groups; ++other) {
    mine.before += sums[2 * (other * a.num_experts + expert)];
    mine.all += sums[2 * (other * a.num_experts + expert) + 1];
  }
  return mine;
}

// The lists, by CTAs with at least as many threads as experts. kPerLane > 0: the only CTA routes the rows too.
template <int kPerLane>
__global__ void __launch_bounds__(1024) list_experts(const Routing a) {
  extern __shared__ int32_t memory[];
  __shared__ uint64_t sums[kMaxWarps];
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto thread = static_cast<int>(threadIdx.x);
  int32_t* counts = memory;  // [num_warps, num_experts]
  int32_t* more = counts + num_warps * a.num_experts;
  for (int i = thread; i < num_warps * a.num_experts; i += static_cast<int>(blockDim.x)) {
    counts[i] = 0;
  }
  pdl_wait();
  pdl_release();
  const int first_row = static_cast<int>(blockIdx.x) * a.rows_of_cta;
  const int num_rows = max(0, min(a.rows_of_cta, a.rows() - first_row));
  const int first_slot = first_row * a.num_chosen;
  const int num_slots = num_rows * a.num_chosen;
  const int32_t* experts = a.places + first_slot;
  if constexpr (kPerLane > 0) {
    experts = more;
    for (int row = warp; row < num_rows; row += num_warps) {
      route_row<kPerLane>(a, row, more);
    }
  }
  __syncthreads();
  const int of_warp = ((num_slots + num_warps - 1) / num_warps + 31) / 32 * 32;
  const int begin = min(warp * of_warp, num_slots);
  const int end = min(begin + of_warp, num_slots);
  int32_t* own = counts + warp * a.num_experts;
  // The lanes with the same expert.
  const auto peers_of = [&](int slot, int& expert) {
    expert = slot < end ? experts[slot] : -1;
    return __match_any_sync(~0U, expert);
  };
  for (int at = begin; at < end; at += 32) {
    int expert;
    const uint32_t peers = peers_of(at + lane, expert);
    if (expert >= 0 && lane == __ffs(static_cast<int>(peers)) - 1) {
      own[expert] += __popc(peers);
    }
    __syncwarp();
  }
  __syncthreads();
  int32_t count = 0;
  if (thread < a.num_experts) {
    for (int w = 0; w < num_warps; ++w) {
      const int32_t here = counts[w * a.num_experts + thread];
      counts[w * a.num_experts + thread] = count;
      count += here;
    }
  }
  Chosen chosen{0, count};
  if constexpr (kPerLane == 0) {
    chosen = chosen_by_all(a, more);
    chosen.all = thread < a.num_experts ? chosen.all : 0;
  }
  const int32_t num_tiles = (chosen.all + a.tile_places - 1) / a.tile_places;
  const uint64_t before =
      sum_before(static_cast<uint64_t>(num_tiles) << 32 | static_cast<uint32_t>(chosen.all), sums);
  const auto first = static_cast<int32_t>(before & ~0U);
  if (thread < a.num_experts) {
    for (int w = 0; w < num_warps; ++w) {
      counts[w * a.num_experts + thread] += first + chosen.before;
    }
  }
  if (thread < a.num_experts && blockIdx.x == 0) {
    a.first[thread] = first;
    auto* tiles = reinterpret_cast<int4*>(a.tiles);
    auto tile = static_cast<int32_t>(before >> 32);
    for (int at = 0; at < chosen.all; at += a.tile_places) {
      tiles[++tile] = {thread, first + at, min(a.tile_places, chosen.all - at), 0};
    }
    if (thread == a.num_experts - 1) {
      a.first[a.num_experts] = first + chosen.all;
      tiles[0] = {tile, 0, 0, 0};
    }
  }
  __syncthreads();
  for (int at = begin; at < end; at += 32) {
    int expert;
    const uint32_t peers = peers_of(at + lane, expert);
    const int rank = __popc(peers & ((1U << lane) - 1));
    if (expert >= 0) {
      const int32_t place = own[expert] + rank;
      const int slot = first_slot + at + lane;
      a.places[slot] = place;
      a.slots[place] = slot;
    }
    __syncwarp();
    if (expert >= 0 && rank == 0) {
      own[expert] += __popc(peers);
    }
    __syncwarp();
  }
}

// Up to 32 slots: a warp a row chooses, then one warp sorts its lanes' slots.
template <int kPerLane>
__global__ void __launch_bounds__(1024) route_few(const Routing a) {
  __shared__ int32_t chosen[32];
  pdl_wait();
  pdl_release();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_slots = a.rows() * a.num_chosen;
  if (warp < a.rows()) {
    route_row<kPerLane>(a, warp, chosen);
  }
  __syncthreads();
  // Every thread reads all choices, so that a.first needs no further exchange.
  const int expert = lane < num_slots ? chosen[lane] : INT32_MAX;
  for (auto e = static_cast<int>(threadIdx.x); e <= a.num_experts;
       e += static_cast<int>(blockDim.x)) {
    int before = 0;
    for (int slot = 0; slot < num_slots; ++slot) {
      before += chosen[slot] < e ? 1 : 0;
    }
    a.first[e] = before;
  }
  if (warp != 0) {
    return;
  }
  int place = 0;
  for (int slot = 0; slot < num_slots; ++slot) {
    const int other = __shfl_sync(~0U, expert, slot);
    place += other < expert || (other == expert && slot < lane) ? 1 : 0;
  }
  const uint32_t peers = __match_any_sync(~0U, expert);
  const bool leads = lane < num_slots && lane == __ffs(static_cast<int>(peers)) - 1;
  const int count = __popc(peers);
  // Tiles of the experts before this one.
  const int mine = leads ? (count + a.tile_places - 1) / a.tile_places : 0;
  int tile = 0;
  int all = 0;
  for (int slot = 0; slot < num_slots; ++slot) {
    const int tiles = __shfl_sync(~0U, mine, slot);
    tile += __shfl_sync(~0U, expert, slot) < expert ? tiles : 0;
    all += tiles;
  }
  if (lane < num_slots) {
    a.places[lane] = place;
    a.slots[place] = lane;
  }
  auto* tiles = reinterpret_cast<int4*>(a.tiles);
  if (lane == 0) {
    tiles[0] = {all, 0, 0, 0};
  }
  for (int i = 0; i < mine; ++i) {
    const int at = i * a.tile_places;
    tiles[1 + tile + i] = {expert, place + at, min(a.tile_places, count - at), 0};
  }
}

template <int kPerLane>
void launch_routing(Stream& stream, Routing routing) {
  const int32_t experts = routing.num_experts;
  if (routing.max_rows * routing.num_chosen <= 32) {
    const LaunchShape shape{1, static_cast<unsigned>(std::max(routing.max_rows, 4) * 32)};
    launch(stream, "route_experts", shape, route_few<kPerLane>, routing);
    return;
  }
  const auto warps = [](int32_t wanted) { return std::clamp(wanted, 1, kMaxWarps); };
  if (routing.max_rows <= kMaxRowsOfOne) {
    routing.rows_of_cta = routing.max_rows;
    const int32_t num_warps = warps(std::max(ceil_div(experts, 32), routing.max_rows));
    LaunchShape shape{1, static_cast<unsigned>(num_warps * 32)};
    shape.shared_bytes =
        static_cast<size_t>(num_warps * experts + routing.max_rows * routing.num_chosen) *
        sizeof(int32_t);
    allow_shared_bytes<&list_experts<kPerLane>>(shape.shared_bytes);
    launch(stream, "route_experts", shape, list_experts<kPerLane>, routing);
    return;
  }
  routing.rows_of_cta =
      std::max(routing.max_rows <= 128 ? 8 : 16, ceil_div(routing.max_rows, kMaxCtas));
  const auto ctas = static_cast<unsigned>(ceil_div(routing.max_rows, routing.rows_of_cta));
  LaunchShape shape{ctas, static_cast<unsigned>(warps(routing.rows_of_cta) * 32)};
  shape.shared_bytes = static_cast<size_t>(experts) * sizeof(int32_t);
  launch(stream, "route_rows", shape, route_rows<kPerLane>, routing);
  const int32_t slots = routing.rows_of_cta * routing.num_chosen;
  const int32_t num_warps =
      warps(std::max({ceil_div(experts, 32), ceil_div(slots, 32), ceil_div(4 * experts, 32)}));
  shape.block = dim3(static_cast<unsigned>(num_warps * 32));
  shape.shared_bytes =
      static_cast<size_t>(num_warps * experts + 2 * num_warps * 32) * sizeof(int32_t);
  allow_shared_bytes<&list_experts<0>>(shape.shared_bytes);
  launch(stream, "list_experts", shape, list_experts<0>, routing);
}

LinearShape shape_of(const RouterProduct& product) {
  LinearShape shape;
  shape.n = product.w.n;
  shape.k = product.w.k;
  shape.y = DType::kF32;
  shape.has_bias = product.bias != nullptr;
  shape.weights = product.w.kind;
  return shape;
}

}  // namespace

void route_experts(Stream& stream, const RouteExpertsArgs& args) {
  const ExpertLists& lists = args.lists;
  const RouterProduct& product = args.product;
  const bool has_product = product.w.data != nullptr;
  const int64_t num_rows = args.weights.shape[0];
  const int64_t num_slots = num_rows * lists.num_chosen;
  if (has_product) {
    WR_CHECK_EQ(product.x.shape[0], num_rows);
    WR_CHECK_EQ(product.x.shape[1], product.w.k);
    WR_CHECK_EQ(product.w.n, lists.num_experts);
    WR_CHECK(product.x.dtype == DType::kBF16 && product.x.stride % 8 == 0);
  } else {
    WR_CHECK_EQ(args.logits.shape[0], num_rows);
    WR_CHECK_EQ(args.logits.shape[1], lists.num_experts);
  }
  WR_CHECK_EQ(args.weights.shape[1], lists.num_chosen);
  WR_CHECK(lists.num_chosen >= 1 && lists.num_chosen <= std::min(32, lists.num_experts) &&
               lists.num_experts <= 1024,
           "{} of {} experts",
           lists.num_chosen,
           lists.num_experts);
  WR_CHECK(args.num_groups <= kMaxGroups && lists.num_experts % args.num_groups == 0,
           "{} groups of {} experts",
           args.num_groups,
           lists.num_experts);
  WR_CHECK(args.bias.empty() || args.bias.shape[0] == lists.num_experts);
  WR_CHECK(args.expert_scales.empty() || args.expert_scales.shape[0] == lists.num_experts);
  WR_CHECK_EQ(lists.first.shape[0], lists.num_experts + 1);
  WR_CHECK_GE(lists.slots.shape[0], num_slots);
  WR_CHECK_GE(lists.places.shape[0], num_slots);
  WR_CHECK_GE(lists.tiles.shape[0],
              expert_tiles_room(num_rows, lists.num_chosen, lists.num_experts));
  if (num_rows == 0) {
    return;
  }
  const Routing routing{
      .logits = args.logits.data,
      .stride = args.logits.stride[0],
      .weights = args.weights.data,
      .weights_stride = args.weights.stride[0],
      .first = lists.first.data,
      .slots = lists.slots.data,
      .places = lists.places.data,
      .tiles = lists.tiles.data,
      .counts = lists.tiles.data +
                4 * (1 + most_expert_tiles(num_rows, lists.num_chosen, lists.num_experts)),
      .num_rows = lists.num_rows,
      .max_rows = static_cast<int32_t>(num_rows),
      .num_experts = lists.num_experts,
      .num_chosen = lists.num_chosen,
      .tile_places =
          expert_tile_places(num_rows, lists.num_chosen, lists.num_experts, lists.matrices),
      .rows_of_cta = 0,
      .of_chosen = args.scores == RouterScores::kSoftmaxOfChosen,
      .normalise = args.normalise,
      .by_sigmoid = args.scores == RouterScores::kSigmoid,
      .num_groups = args.num_groups,
      .chosen_groups = args.chosen_groups,
      .scale = args.scale,
      .bias = args.bias.data,
      .expert_scales = args.expert_scales.data,
  };
  if (has_product) {
    const DeviceFacts& device = stream.device().facts();
    const LinearShape router = shape_of(product);
    WR_CHECK(routes_with_product(device, router, num_rows, lists.num_chosen, args.num_groups));
    route_with_product(stream, routing, product, invariant_chunks(router, device));
    return;
  }
  const int per_lane = ceil_div(lists.num_experts, 32);
  if (per_lane <= 1) {
    launch_routing<1>(stream, routing);
  } else if (per_lane <= 4) {
    launch_routing<4>(stream, routing);
  } else if (per_lane <= 8) {
    launch_routing<8>(stream, routing);
  } else {
    launch_routing<32>(stream, routing);
  }
}

}  // namespace warprow::cuda
