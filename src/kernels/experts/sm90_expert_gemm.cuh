// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/expert_w.cuh"
#include "kernels/experts/quant_expert_w.cuh"
#include "kernels/experts/sm90_expert_gemm.h"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as in expert_linear.h.
// Mapping: one CTA an SM, which takes every gridDim-th item: a tile of the work list (up to kCols places of an expert)
//   times 64 rows of the expert's matrix for each consumer warpgroup. Rows of w are wgmma's m, rows of x its n, so few rows
//   waste little. One thread loads w into a ring of stages of kInputs, warps gather rows of x with cp.async. The ring runs
//   on over items, so the next item's w is on its way while an item ends.
// Bytes moved: the matrices of all experts in the list, once for each of their tiles, mostly from L2 after the first.
//   A product with x by place follows another product with the same list. That one waited for the list, so this one reads the
//   list and loads w before it waits for the preceding kernel.
// Numerics: float32 sums in one chain of steps of 16 inputs in the order of k, whatever kCols. mma.sync and wgmma yield the
//   same bits.
// Preconditions: n a multiple of 16, k and strides of 8; 16-byte aligned; sm_90a.
// Origin: own design.
namespace warprow::cuda {

namespace sm90_expert_detail {

template <typename W, int kCols>
struct Sizes {
  // Dequantising needs more warps than multiplying, so it has more consumer warpgroups: as many as registers allow. They share x.
  static constexpr bool kDequantises = W::kDequantises;
  // Consumer warpgroups.
  static constexpr int kGroups = W::kHasSmallTiles && kCols <= 48 ? 6
                                 : kDequantises                   ? (kCols == 128 ? 3 : 4)
                                 : kCols == 128                   ? 2
                                                                  : 1;
  static constexpr int kCtas = kCols == 8 ? 2 : 1;  // an SM
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kGatherers = kCols == 8 ? 64 : kDequantises ? 96 : 128;
  static constexpr int kThreads = kConsumers + kGatherers + 32;
  // Of w in a stage: waiting for a stage and leaving it takes about as long as a small tile.
  static constexpr int kTiles = !W::kHasSmallTiles || kCols == 128 ? 1
                                : kCols == 8                       ? 2
                                : kCols == 48                      ? 3
                                                                   : 4;
  static constexpr int kInputs = kTiles * W::kInputs;  // of a stage, in blocks of 64
  static constexpr int kBlocks = kInputs / 64;
  // Pieces of 16 bytes that a gatherer copies of a block; some gatherers copy one less.
  static constexpr int kPieces = (kCols * 8 + kGatherers - 1) / kGatherers;
  static constexpr int kRows = kGroups * 64;  // of w
  static constexpr int kXBlockBytes = kCols * 128;
  static constexpr int kXBytes = kBlocks * kXBlockBytes;
  static constexpr int kTileBytes = kTiles * W::kTileBytes;  // of a group
  static constexpr int kStageBytes = (kXBytes + kGroups * kTileBytes + 1023) / 1024 * 1024;
  static constexpr int kStages = std::min(216 * 1024 / kCtas / kStageBytes, 24);
  static constexpr int kLag = std::min(kStages - 2, 6);  // stages of x in flight
  static constexpr size_t kSharedBytes = kStages * kStageBytes + 1024;
  using Ring = RingCursor<kStages>;
};

struct Params {
  ExpertGemmArgs a;
  int32_t row_tiles;  // of an expert's matrix
  int32_t steps;      // stages of an item
};

// One thread: loads w.
template <typename W, LinearEpilogue kEpilogue, int kCols>
__device__ void load_w(const Params& p,
                       const CUtensorMap& map,
                       typename Sizes<W, kCols>::Ring ring) {
  using S = Sizes<W, kCols>;
  const uint64_t policy = kCols == 128 ? read_again() : read_once();
  const int items = expert_items(p.a, p.row_tiles);
  for (int index = static_cast<int>(blockIdx.x); index < items;
       index += static_cast<int>(gridDim.x)) {
    const ExpertItem item(p.a, p.row_tiles, index);
    const int tile = item.row_tile * S::kGroups;
    for (int step = 0; step < p.steps; ++step, ring.next()) {
      barrier_wait(ring.empty(), ring.phase ^ 1);
      barrier_arrive_expecting(
          ring.full(), W::template loaded_bytes<kEpilogue, S::kTiles>(p.a, tile, S::kGroups, step));
      const uint32_t to = ring.data + ring.stage * S::kStageBytes + S::kXBytes;
      W::template load<kEpilogue, S::kGroups, S::kTiles>(
          p.a, map, to, ring.full(), item.expert, tile, step, policy);
    }
  }
}

// All gatherers: load rows of x, 16 bytes at a time, and zeros behind a row's end.
template <typename W, int kCols>
__device__ void gather_x(const Params& p, typename Sizes<W, kCols>::Ring ring, int thread) {
  using S = Sizes<W, kCols>;
  const int items = expert_items(p.a, p.row_tiles);
  const int piece = thread % 8;
  typename S::Ring arrived = ring;
  int in_flight = 0;
  // The stages whose bytes have come are published to wgmma and counted.
  const auto arrive = [&] {
    fence_async_proxy();
    __syncwarp();
    if (thread % 32 == 0) {
      barrier_arrive(arrived.full());
    }
    arrived.next();
  };
  for (int index = static_cast<int>(blockIdx.x); index < items;
       index += static_cast<int>(gridDim.x)) {
    const ExpertItem item(p.a, p.row_tiles, index);
    const Bf16* rows[S::kPieces];
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      const int at = thread / 8 + i * (S::kGatherers / 8);  // may be kCols or more: of no place
      rows[i] = nullptr;
      if (at < item.num_places) {
        int64_t row = item.place + at;
        if (p.a.slots != nullptr) {
          row = __ldcg(p.a.slots + row) / p.a.num_chosen;
        }
        rows[i] = static_cast<const Bf16*>(p.a.x) + row * p.a.x_stride + piece * 8;
      }
    }
    for (int step = 0; step < p.steps; ++step, ring.next()) {
      barrier_wait(ring.empty(), ring.phase ^ 1);
      const uint32_t stage = ring.data + ring.stage * S::kStageBytes;
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        const int input = step * S::kInputs + block * 64;
        const bool inside = input + piece * 8 < p.a.k;
#pragma unroll
        for (int i = 0; i < S::kPieces; ++i) {
          const int at = thread / 8 + i * (S::kGatherers / 8);
          if (rows[i] == nullptr) {
            continue;  // the row has no place: old data there changes no other place's sums
          }
          copy16_async(stage + block * S::kXBlockBytes + at * 128 + (piece ^ at % 8) * 16,
                       inside ? rows[i] + input : rows[i],
                       inside);
        }
      }
      copy_commit();
      if (++in_flight > S::kLag) {
        --in_flight;
        copy_wait<S::kLag>();
        arrive();
      }
    }
  }
  copy_wait<0>();
  for (; in_flight > 0; --in_flight) {
    arrive();
  }
}

// The chain of an item by wgmma: 64 rows of w, up to kPlaces places.
template <typename W, bool kGates, int kCols, int kPlaces>
__device__ __forceinline__ void sum_by_group(const Params& p,
                                             typename Sizes<W, kCols>::Ring& ring,
                                             float (&sum)[kPlaces / 2]) {
  using S = Sizes<W, kCols>;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  uint32_t used = 0;
  wgmma_pin(sum);
  for (int step = 0; step < p.steps; ++step, ring.next()) {
    barrier_wait(ring.full(), ring.phase);
    const uint32_t x = ring.data + ring.stage * S::kStageBytes;
    W::template multiply<kGates, S::kGroups, S::kTiles, S::kXBlockBytes>(
        p.a, sum, x + S::kXBytes, group, x, step, thread);
    wgmma_wait<W::kPending>();
    if (thread == 0 && (W::kPending == 0 || step > 0)) {
      barrier_arrive(W::kPending == 0 ? ring.empty() : used);
    }
    used = ring.empty();
  }
  if constexpr (W::kPending > 0) {
    wgmma_wait<0>();
    if (thread == 0) {
      barrier_arrive(used);
    }
  }
  wgmma_pin(sum);
}

// One item by a consumer warpgroup: 64 rows of w, up to kPlaces places.
template <typename W, LinearEpilogue kEpilogue, int kCols, int kPlaces>
__device__ __forceinline__ void multiply(const Params& p,
                                         typename Sizes<W, kCols>::Ring& ring,
                                         const ExpertItem& item) {
  using S = Sizes<W, kCols>;
  constexpr bool kGates = kEpilogue == LinearEpilogue::kSwiGlu;
  float sum[kPlaces / 2];
#pragma unroll
  for (float& v : sum) {
    v = 0.0F;
  }
  sum_by_group<W, kGates, kCols, kPlaces>(p, ring, sum);
  if constexpr (W::kTimes != 1.0F) {
#pragma unroll
    for (float& v : sum) {
      v = __fmul_rn(v, W::kTimes);
    }
  }
  // Products 4 j to 4 j + 3 are those of places 8 j to 8 j + 7.
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = W::template warp_of<kGates>(static_cast<int>(threadIdx.x) / 32);
  const int row = item.row_tile * S::kRows + warp * 16;
  const int first = kGates ? row / 2 : row;
  const int outputs = kGates ? p.a.n / 2 : p.a.n;
  const ExpertBias bias(p.a, kGates, item.expert, row, lane);
  Bf16* y =
      static_cast<Bf16*>(p.a.y) + (item.place + lane / 4) * p.a.y_stride + first + lane % 4 * 2;
  with_gate_form<kGates>(p.a.gate_limit, [&]<GateForm kForm>() {
#pragma unroll
    for (int j = 0; j < kPlaces / 8; ++j) {
      const bool is_place = 8 * j + lane / 4 < item.num_places;
      Bf16* to = y + 8 * j * p.a.y_stride;
      store_products<kGates, kForm>(sum + 4 * j, bias, to, is_place, first, outputs);
    }
  });
}

// Places of the products for a tile of kCols, ascending. A product of w in registers takes the longer the wider it is, even
// where memory is the limit.
template <int... kSome>
struct Widths {
  template <typename F>
  __device__ __forceinline__ static void call_least(int num_places, F&& f) {
    static_cast<void>(((num_places <= kSome && (f.template operator()<kSome>(), true)) || ...));
  }
};
template <int kCols, bool kDequantises>
struct WidthsOf : Widths<kCols> {};
template <>
struct WidthsOf<128, false> : Widths<64, 128> {};
template <>
struct WidthsOf<32, true> : Widths<8, 16, 24, 32> {};
template <>
struct WidthsOf<48, true> : Widths<16, 24, 32, 40, 48> {};
template <>
struct WidthsOf<64, true> : Widths<32, 40, 48, 56, 64> {};
template <>
struct WidthsOf<96, true> : Widths<56, 64, 72, 80, 88, 96> {};
template <>
struct WidthsOf<128, true> : Widths<32, 64, 80, 96, 128> {};

// Consumers: every item, those of few places in narrow products.
template <typename W, LinearEpilogue kEpilogue, int kCols>
__device__ void multiply_all(const Params& p, typename Sizes<W, kCols>::Ring ring) {
  const int items = warp_uniform(expert_items(p.a, p.row_tiles));
  const auto step = static_cast<int>(gridDim.x);
  auto index = static_cast<int>(blockIdx.x);
  if (index >= items) {
    return;
  }
  ExpertItem next(p.a, p.row_tiles, index);
  for (; index < items; index += step) {
    ExpertItem item = next;
    item.num_places = warp_uniform(item.num_places);
    if (index + step < items) {
      next = ExpertItem(p.a, p.row_tiles, index + step);
    }
    WidthsOf<kCols, Sizes<W, kCols>::kDequantises>::call_least(item.num_places, [&]<int kPlaces>() {
      multiply<W, kEpilogue, kCols, kPlaces>(p, ring, item);
    });
  }
}

template <typename W, LinearEpilogue kEpilogue, int kCols>
__global__ void __launch_bounds__(Sizes<W, kCols>::kThreads, Sizes<W, kCols>::kCtas)
sm90_expert_kernel(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap w_map) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using S = Sizes<W, kCols>;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t barriers[2 * S::kStages];
  const uint32_t data = (shared_address(memory) + 1023) & ~1023U;
  const typename S::Ring ring{data, shared_address(barriers), S::kStages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(ring.barriers + i * 8, 1 + S::kGatherers / 32);  // the loader expects bytes
      barrier_init(ring.barriers + (S::kStages + i) * 8, S::kGroups);
    }
    fence_async_proxy();
  }
  __syncthreads();
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = warp_uniform(thread / 32);
  if (warp >= (S::kConsumers + S::kGatherers) / 32) {
    const bool lists_are_old = p.a.slots == nullptr;
    if (!lists_are_old) {
      pdl_wait();
    }
    if (thread == S::kConsumers + S::kGatherers) {
      load_w<W, kEpilogue, kCols>(p, w_map, ring);
    }
    return;
  }
  pdl_wait();
  pdl_release();
  if (warp >= S::kConsumers / 32) {
    gather_x<W, kCols>(p, ring, thread - S::kConsumers);
  } else {
    multiply_all<W, kEpilogue, kCols>(p, ring);
  }
#endif
}

template <typename W, LinearEpilogue kEpilogue, int kCols>
void launch_instance(Stream& stream, const ExpertGemmArgs& args) {
  using S = Sizes<W, kCols>;
  constexpr auto* kKernel = &sm90_expert_kernel<W, kEpilogue, kCols>;
  allow_shared_bytes<kKernel>(S::kSharedBytes);
  const Params params{args, ceil_div(args.n, S::kRows), ceil_div(args.k, S::kInputs)};
  LaunchShape shape;
  const int32_t ctas = S::kCtas * stream.device().facts().num_sms;
  shape.grid = dim3(
      static_cast<unsigned>(std::min<int64_t>(ctas, int64_t{args.max_tiles} * params.row_tiles)));
  shape.block = dim3(S::kThreads);
  shape.shared_bytes = S::kSharedBytes;
  launch(stream,
         "sm90_expert_gemm",
         shape,
         kKernel,
         params,
         W::template map<kEpilogue>(args, S::kGroups));
}

}  // namespace sm90_expert_detail

template <PackedKind kKind, ScaleForm kScales, int kCols>
void sm90_expert_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue) {
  using namespace sm90_expert_detail;
  if (epilogue == LinearEpilogue::kSwiGlu) {
    launch_instance<ExpertW<kKind, kScales>, LinearEpilogue::kSwiGlu, kCols>(stream, args);
  } else {
    launch_instance<ExpertW<kKind, kScales>, LinearEpilogue::kStore, kCols>(stream, args);
  }
}

template void sm90_expert_gemm<WR_KIND, WR_SCALES, WR_COLS>(Stream& stream,
                                                            const ExpertGemmArgs& args,
                                                            LinearEpilogue epilogue);

}  // namespace warprow::cuda
