// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda/tensor_map.h"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/expert_gate.cuh"
#include "kernels/experts/mxfp4_tiles.h"
#include "kernels/experts/sm90_expert_gemm.h"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as in expert_linear.h.
// Mapping: one CTA an SM, which takes every gridDim-th item: a tile of the work list (up to kCols places of an expert)
//   times 64 rows of the expert's matrix for each consumer warpgroup. Rows of w are wgmma's m, rows of x its n, so few
//   rows waste little. One thread loads w by TMA into a ring of stages of 64 inputs, warps gather rows of x with cp.async.
//   The ring runs on over items, so the next item's w is on its way while an item ends. A gated tile has groups of eight
//   gate rows and their eight up rows, so that a thread holds both. MXFP4 matrices lie in tiles (mxfp4_tiles.h), which
//   lanes dequantise into registers, operand A.
// Bytes moved: the matrices of all experts in the list, once for each of their tiles, mostly from L2 after the first.
//   A product whose x lies by place comes behind another one with the same list, which waited for the list, so it loads
//   w before it waits for the preceding kernel.
// Numerics: float32 sums in one chain of steps of 16 inputs in the order of k, whatever kCols.
// Preconditions: n a multiple of 16, k and strides of 8; 16-byte aligned; sm_90a.
// Origin: own design.
namespace warprow::cuda {

namespace sm90_expert_detail {

template <PackedKind kKind, int kCols>
struct Sizes {
  static constexpr bool kIsMxfp4 = kKind == PackedKind::kMxfp4;
  static constexpr int kGroups = kCols >= 128 || kIsMxfp4 ? 2 : 1;  // consumer warpgroups
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kGatherers = kCols == 8 ? 64 : 128;
  // A warp of its own for w, or the gatherers' first thread, which leaves more registers to the others.
  static constexpr bool kOwnLoader = kCols < 256;
  static constexpr int kThreads = kConsumers + kGatherers + (kOwnLoader ? 32 : 0);
  static constexpr int kPieces = kCols * 8 / kGatherers;  // of 16 bytes, of a stage, by a gatherer
  static constexpr int kRows = kGroups * 64;              // of w
  static constexpr int kXBytes = kCols * 128;
  static constexpr int kTileBytes = kIsMxfp4 ? kMxfp4TileBytes : 64 * 128;  // of a group's w
  static constexpr int kStageBytes = (kXBytes + kGroups * kTileBytes + 1023) / 1024 * 1024;
  static constexpr int kStages = std::min(208 * 1024 / kStageBytes, 24);
  static constexpr int kLag = std::min(kStages - 2, 6);  // stages of x in flight
  static constexpr size_t kSharedBytes = kStages * kStageBytes + 1024;
  using Ring = RingCursor<kStages>;
};

struct Params {
  ExpertGemmArgs a;
  int32_t row_tiles;  // of an expert's matrix
};

// Part of the work list.
struct Item {
  int expert;
  int place;
  int num_places;
  int row_tile;

  __device__ Item(const Params& p, int index) {
    const int tile = index / p.row_tiles;
    const int4 entry = __ldcg(reinterpret_cast<const int4*>(p.a.tiles) + 1 + tile);
    expert = entry.x;
    place = entry.y;
    num_places = entry.z;
    row_tile = index - tile * p.row_tiles;
  }
};

// d as bf16 pairs, exactly, from the 32 fp4 numbers that a lane has of 64 rows and 64 inputs (mxfp4_tiles.h): for each of
// four wgmma steps its four registers of operand A.
__device__ __forceinline__ void dequantise(const uint4& numbers,
                                           uint32_t scales,
                                           uint32_t (&d)[4][4]) {
  const uint32_t words[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
  uint32_t factors
      [4];  // of the upper row's two groups of 32 inputs, then of the lower's: 2^126 times the scale
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    factors[i] = __byte_perm(scales, 0, 0x4040 + i * 0x0101) << 7;
  }
  constexpr uint32_t kNumber =
      0x81c081c0;  // as bf16: sign, and exponent and fraction 2^126 times too small
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t w = words[i];
    const uint32_t pairs[4] = {
        w & kNumber,
        w << 3 & kNumber,
        w << 6 & kNumber,
        (w << 1 & 0x80008000) | (w >> 5 & 0x01000100) | (w >> 4 & 0x00c000c0),
    };
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      asm("mul.rn.bf16x2 %0, %1, %2;"
          : "=r"(d[i][j])
          : "r"(pairs[j]), "r"(factors[j % 2 * 2 + i / 2]));
    }
  }
}

__device__ __forceinline__ int num_items(const Params& p) {
  return __ldcg(p.a.tiles) * p.row_tiles;
}

// One thread: loads a step of an item's w.
template <PackedKind kKind, LinearEpilogue kEpilogue, int kCols>
__device__ __forceinline__ void load_w(const Params& p,
                                       const CUtensorMap& map,
                                       const typename Sizes<kKind, kCols>::Ring& ring,
                                       const Item& item,
                                       int step) {
  using S = Sizes<kKind, kCols>;
  const uint64_t policy = kCols >= 128 ? read_again() : read_once();
  const uint32_t to = ring.data + ring.stage * S::kStageBytes + S::kXBytes;
  if constexpr (S::kIsMxfp4) {
    const int steps = (p.a.k + 63) / 64;
    const int tiles = (p.a.n + 63) / 64;
    const int first = item.row_tile * S::kGroups;
    const int count = min(S::kGroups, tiles - first);
    barrier_arrive_expecting(ring.full(), count * S::kTileBytes);
    for (int group = 0; group < count; ++group) {
      const int64_t tile = (int64_t{item.expert} * tiles + first + group) * steps + step;
      bulk_load(to + group * S::kTileBytes,
                static_cast<const std::byte*>(p.a.w) + tile * S::kTileBytes,
                S::kTileBytes,
                ring.full(),
                policy);
    }
  } else {
    barrier_arrive_expecting(ring.full(), S::kGroups * S::kTileBytes);
    if constexpr (kEpilogue == LinearEpilogue::kSwiGlu) {
      const int group = item.expert * (p.a.n / 8) + item.row_tile * (S::kRows / 16);
      tma_load_4d(to, map, ring.full(), step * 64, 0, 0, group, policy);
    } else {
      const int row = item.expert * p.a.n + item.row_tile * S::kRows;
      tma_load_2d(to, map, ring.full(), step * 64, row, policy);
    }
  }
}

template <PackedKind kKind, LinearEpilogue kEpilogue, int kCols>
__device__ void load_all_w(const Params& p,
                           const CUtensorMap& map,
                           typename Sizes<kKind, kCols>::Ring ring) {
  const int items = num_items(p);
  const int steps = (p.a.k + 63) / 64;
  for (int index = static_cast<int>(blockIdx.x); index < items;
       index += static_cast<int>(gridDim.x)) {
    const Item item(p, index);
    for (int step = 0; step < steps; ++step, ring.next()) {
      barrier_wait(ring.empty(), ring.phase ^ 1);
      load_w<kKind, kEpilogue, kCols>(p, map, ring, item, step);
    }
  }
}

// All gatherers: load rows of x, 16 bytes at a time, and zeros where a tile has no row.
template <PackedKind kKind, LinearEpilogue kEpilogue, int kCols>
__device__ void gather_x(const Params& p,
                         const CUtensorMap& map,
                         typename Sizes<kKind, kCols>::Ring ring,
                         int thread) {
  using S = Sizes<kKind, kCols>;
  const int items = num_items(p);
  const int steps = (p.a.k + 63) / 64;
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
    const Item item(p, index);
    const Bf16* rows[S::kPieces];
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      const int at = thread / 8 + i * (S::kGatherers / 8);
      rows[i] = nullptr;
      if (at < item.num_places) {
        int64_t row = item.place + at;
        if (p.a.slots != nullptr) {
          row = __ldcg(p.a.slots + row) / p.a.num_chosen;
        }
        rows[i] = static_cast<const Bf16*>(p.a.x) + row * p.a.x_stride + piece * 8;
      }
    }
    for (int step = 0; step < steps; ++step, ring.next()) {
      barrier_wait(ring.empty(), ring.phase ^ 1);
      if constexpr (!S::kOwnLoader) {
        if (thread == 0) {
          load_w<kKind, kEpilogue, kCols>(p, map, ring, item, step);
        }
      }
      const uint32_t stage = ring.data + ring.stage * S::kStageBytes;
      const bool inside = step * 64 + piece * 8 < p.a.k;
#pragma unroll
      for (int i = 0; i < S::kPieces; ++i) {
        const int at = thread / 8 + i * (S::kGatherers / 8);
        const bool valid = inside && rows[i] != nullptr;
        copy16_async(stage + at * 128 + (piece ^ at % 8) * 16,
                     valid ? rows[i] + step * 64 : static_cast<const Bf16*>(p.a.x),
                     valid);
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

// One item by a consumer warpgroup: 64 rows of w, up to kPlaces places.
template <PackedKind kKind, LinearEpilogue kEpilogue, int kCols, int kPlaces>
__device__ __forceinline__ void multiply(const Params& p,
                                         typename Sizes<kKind, kCols>::Ring& ring,
                                         const Item& item) {
  using S = Sizes<kKind, kCols>;
  constexpr bool kGates = kEpilogue == LinearEpilogue::kSwiGlu;
  const int steps = (p.a.k + 63) / 64;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const bool leads = threadIdx.x % 128 == 0;
  float sum[kPlaces / 2];
#pragma unroll
  for (float& v : sum) {
    v = 0.0F;
  }
  uint32_t used = 0;
  wgmma_pin(sum);
  const auto thread = static_cast<int>(threadIdx.x) % 128;
  const auto advance = [&](int step, [[maybe_unused]] uint32_t(&d)[4][4]) {
    barrier_wait(ring.full(), ring.phase);
    const uint32_t x = ring.data + ring.stage * S::kStageBytes;
    const uint32_t w = x + S::kXBytes + group * S::kTileBytes;
    if constexpr (S::kIsMxfp4) {
      dequantise(load_shared_four(w + thread * 16),
                 load_shared(w + kMxfp4NumberBytes + thread / 4 * 4),
                 d);
    }
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint64_t of_x = wgmma_operand(x + i * 32, 1024, 16);
      if constexpr (S::kIsMxfp4) {
        wgmma(sum, d[i], of_x);
      } else {
        wgmma(sum, wgmma_operand(w + i * 32, 1024, 16), of_x);
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0 && leads) {
      barrier_arrive(used);
    }
    used = ring.empty();
    ring.next();
  };
  // Dequantised numbers, of this step and of the one whose products may still run.
  uint32_t even[4][4];
  uint32_t odd[4][4];
  for (int step = 0; step < steps; step += 2) {
    advance(step, even);
    if (step + 1 < steps) {
      advance(step + 1, odd);
    }
  }
  wgmma_wait<0>();
  wgmma_pin(sum);
  if (leads) {
    barrier_arrive(used);
  }
  // Products 4 j to 4 j + 3: row lane / 4 of the warp's 16 and places 8 j + lane % 4 * 2, + 1; then the row 8 below.
  // Transposed, a lane has place 8 j + lane / 4 and rows lane % 4 * 2, + 1.
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = item.row_tile * S::kRows + static_cast<int>(threadIdx.x) / 32 * 16;
  const int first = kGates ? row / 2 : row;
  const int outputs = kGates ? p.a.n / 2 : p.a.n;
  const auto bias_of = [&](int output, int limit) {
    return p.a.bias != nullptr && output < limit
               ? __ldg(p.a.bias + int64_t{item.expert} * p.a.n + output)
               : 0.0F;
  };
  // Of the row lane / 4 and the one 8 below, which is a gate's up row.
  const float upper_bias = bias_of(first + lane / 4, outputs);
  const float lower_bias = bias_of(first + lane / 4 + (kGates ? outputs : 8), p.a.n);
  Bf16* y =
      static_cast<Bf16*>(p.a.y) + (item.place + lane / 4) * p.a.y_stride + first + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kPlaces / 8; ++j) {
    const bool is_place = 8 * j + lane / 4 < item.num_places;
    Bf16* to = y + 8 * j * p.a.y_stride;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = __fadd_rn(sum[4 * j + i], i < 2 ? upper_bias : lower_bias);
    }
    if constexpr (kGates) {
      const float limit = p.a.gate_limit;
      const uint32_t pair = transpose_matrix(
          pack_bf16(expert_gate(v[0], v[2], limit), expert_gate(v[1], v[3], limit)));
      if (is_place && first < outputs) {
        *reinterpret_cast<uint32_t*>(to) = pair;
      }
    } else {
      const uint32_t upper = transpose_matrix(pack_bf16(v[0], v[1]));
      const uint32_t lower = transpose_matrix(pack_bf16(v[2], v[3]));
      if (is_place && first < outputs) {
        *reinterpret_cast<uint32_t*>(to) = upper;
      }
      if (is_place && first + 8 < outputs) {
        *reinterpret_cast<uint32_t*>(to + 8) = lower;
      }
    }
  }
}

// Consumers: products as wide as an item has places, in powers of two.
template <PackedKind kKind, LinearEpilogue kEpilogue, int kCols>
__device__ void multiply_all(const Params& p, typename Sizes<kKind, kCols>::Ring ring) {
  const int items = num_items(p);
  const auto step = static_cast<int>(gridDim.x);
  auto index = static_cast<int>(blockIdx.x);
  if (index >= items) {
    return;
  }
  Item next(p, index);
  for (; index < items; index += step) {
    const Item item = next;
    if (index + step < items) {
      next = Item(p, index + step);
    }
    if constexpr (kCols >= 128) {
      if (item.num_places <= 64) {
        multiply<kKind, kEpilogue, kCols, 64>(p, ring, item);
      } else if (kCols == 128 || item.num_places <= 128) {
        multiply<kKind, kEpilogue, kCols, 128>(p, ring, item);
      } else {
        multiply<kKind, kEpilogue, kCols, kCols>(p, ring, item);
      }
    } else {
      multiply<kKind, kEpilogue, kCols, kCols>(p, ring, item);
    }
  }
}

template <PackedKind kKind, LinearEpilogue kEpilogue, int kCols>
__global__ void __launch_bounds__(Sizes<kKind, kCols>::kThreads, 1) sm90_expert_kernel(
    const __grid_constant__ Params p, const __grid_constant__ CUtensorMap w_map) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using S = Sizes<kKind, kCols>;
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
  if (thread >= S::kConsumers + S::kGatherers) {
    const bool lists_are_old = p.a.slots == nullptr;
    if (!lists_are_old) {
      pdl_wait();
    }
    if (thread == S::kConsumers + S::kGatherers) {
      load_all_w<kKind, kEpilogue, kCols>(p, w_map, ring);
    }
    return;
  }
  pdl_wait();
  pdl_release();
  if (thread >= S::kConsumers) {
    gather_x<kKind, kEpilogue, kCols>(p, w_map, ring, thread - S::kConsumers);
  } else {
    multiply_all<kKind, kEpilogue, kCols>(p, ring);
  }
#endif
}

template <PackedKind kKind, LinearEpilogue kEpilogue, int kCols>
void launch_instance(Stream& stream, const ExpertGemmArgs& args) {
  using S = Sizes<kKind, kCols>;
  constexpr auto* kKernel = &sm90_expert_kernel<kKind, kEpilogue, kCols>;
  allow_shared_bytes<kKernel>(S::kSharedBytes);
  const auto k = static_cast<uint64_t>(args.k);
  const auto n = static_cast<uint64_t>(args.n);
  const uint64_t rows = static_cast<uint64_t>(args.num_experts) * n;
  CUtensorMap map = {};
  if constexpr (S::kIsMxfp4) {
    // w is loaded by tile.
  } else if constexpr (kEpilogue == LinearEpilogue::kSwiGlu) {
    // Inputs; eight rows; their gate and up half; groups of eight gate rows. From an expert's groups to the next's are
    // n / 8, half of which are up rows.
    map = tensor_map<4>(args.w,
                        {k, 8, 2, (rows - n / 2) / 8},
                        {2 * k, n * k, 16 * k},
                        {64, 8, 2, S::kRows / 16},
                        CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  } else {
    map = tensor_map<2>(
        args.w, {k, rows}, {2 * k}, {64, S::kRows}, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  }
  const Params params{args, ceil_div(args.n, S::kRows)};
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(std::min<int64_t>(
      stream.device().facts().num_sms, int64_t{args.max_tiles} * params.row_tiles)));
  shape.block = dim3(S::kThreads);
  shape.shared_bytes = S::kSharedBytes;
  launch(stream, "sm90_expert_gemm", shape, kKernel, params, map);
}

}  // namespace sm90_expert_detail

template <PackedKind kKind, int kCols>
void sm90_expert_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue) {
  using namespace sm90_expert_detail;
  if (epilogue == LinearEpilogue::kSwiGlu) {
    launch_instance<kKind, LinearEpilogue::kSwiGlu, kCols>(stream, args);
  } else {
    launch_instance<kKind, LinearEpilogue::kStore, kCols>(stream, args);
  }
}

template void sm90_expert_gemm<WR_KIND, WR_COLS>(Stream& stream,
                                                 const ExpertGemmArgs& args,
                                                 LinearEpilogue epilogue);

}  // namespace warprow::cuda
