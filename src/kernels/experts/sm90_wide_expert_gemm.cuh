// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda/tensor_map.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/expert_gate.cuh"
#include "kernels/experts/expert_w.cuh"
#include "kernels/experts/sm90_expert_gemm.h"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as in expert_linear.h, for tiles of the work list of up to 256 places. x lies by place.
// Mapping: persistent clusters of kCluster CTAs, which take items in turn: a tile of the work list times 128
//   rows of the expert's matrix for each CTA. Each CTA loads its part of the tile's x for all (multicast). A
//   producer thread fills a ring of stages of 64 inputs by TMA. Two consumer warpgroups have 64 rows of w each (rows of w
//   are wgmma's m, rows of x its n). Outputs go through shared memory to y.
// Bytes moved: a tile's x once for each cluster's rows of w, w once for each tile, mostly from L2.
// Numerics: as sm90_expert_gemm, bit for bit.
// Preconditions: as sm90_expert_gemm; x by place.
// Origin: own design.
namespace warprow::cuda {

namespace sm90_wide_expert_detail {

constexpr int kPlaces = 256;
constexpr int kGroups = 2;  // consumer warpgroups
constexpr int kRows = kGroups * 64;
constexpr int kConsumers = kGroups * 128;
constexpr int kThreads = kConsumers + 128;  // setmaxnreg counts whole warpgroups
constexpr int kXBytes = kPlaces * 128;
constexpr int kBoxPlaces = 64;  // whose x one copy moves
constexpr int kBoxBytes = kBoxPlaces * 128;
constexpr int kStagingBytes = 16384;  // of a warpgroup

template <PackedKind kKind, LinearEpilogue kEpilogue>
struct Sizes {
  // CTAs of a cluster share x, which is most of what they load from L2. MXFP4's w has a quarter of bf16's bytes, so clusters of
  // two are enough. With them the last item of a matrix is smaller, and clusters can use every SM.
  static constexpr int kCluster =
      kKind == PackedKind::kMxfp4 && kEpilogue == LinearEpilogue::kSwiGlu ? 2 : 4;
  static constexpr int kStageBytes =
      (kXBytes + kGroups * ExpertW<kKind>::kTileBytes + 1023) / 1024 * 1024;
  static constexpr int kStages = (226 * 1024 - kGroups * kStagingBytes) / kStageBytes;
  static constexpr int kStagingAt = kStages * kStageBytes;
  static constexpr size_t kSharedBytes = kStagingAt + kGroups * kStagingBytes + 1024;
  using Ring = RingCursor<kStages>;
};

struct Params {
  ExpertGemmArgs a;
  int32_t row_tiles;  // of an expert's matrix: rows of a cluster's CTAs together
};

// Places that are multiplied for an item.
__device__ __forceinline__ int product_places(int num_places) {
  return num_places <= 64 ? 64 : num_places <= 128 ? 128 : 256;
}

// One thread: loads x and w.
template <PackedKind kKind, LinearEpilogue kEpilogue>
__device__ void load(const Params& p,
                     const CUtensorMap& x_map,
                     const CUtensorMap& w_map,
                     typename Sizes<kKind, kEpilogue>::Ring ring,
                     int rank) {
  using S = Sizes<kKind, kEpilogue>;
  using W = ExpertW<kKind>;
  constexpr int kCluster = S::kCluster;
  const int items = expert_items(p.a, p.row_tiles);
  const int steps = (p.a.k + 63) / 64;
  for (int index = static_cast<int>(blockIdx.x) / kCluster; index < items;
       index += static_cast<int>(gridDim.x) / kCluster) {
    const ExpertItem item(p.a, p.row_tiles, index);
    const int first_tile = (item.row_tile * kCluster + rank) * kGroups;
    const int boxes = product_places(item.num_places) / kBoxPlaces;
    for (int step = 0; step < steps; ++step, ring.next()) {
      barrier_wait(ring.empty(), ring.phase ^ 1);
      barrier_arrive_expecting(ring.full(),
                               boxes * kBoxBytes + W::template loaded_bytes<kEpilogue, 1>(
                                                       p.a, first_tile, kGroups, step));
      const uint32_t stage = ring.data + ring.stage * S::kStageBytes;
      for (int box = rank; box < boxes; box += kCluster) {
        tma_load_2d_to_cluster(stage + box * kBoxBytes,
                               x_map,
                               ring.full(),
                               step * 64,
                               item.place + box * kBoxPlaces,
                               (1 << kCluster) - 1);
      }
      W::template load<kEpilogue, kGroups, 1>(
          p.a, w_map, stage + kXBytes, ring.full(), item.expert, first_tile, step, read_again());
    }
  }
}

// A consumer warpgroup: 64 rows of w.
template <PackedKind kKind, LinearEpilogue kEpilogue>
class Consumer {
 public:
  using S = Sizes<kKind, kEpilogue>;
  using W = ExpertW<kKind>;
  static constexpr int kCluster = S::kCluster;
  __device__ Consumer(const Params& p, uint32_t data, int rank, uint32_t own_barriers)
      : p_(p),
        group_(static_cast<int>(threadIdx.x) / 128),
        thread_(static_cast<int>(threadIdx.x) % 128),
        rank_(rank),
        own_barriers_(own_barriers),
        peer_barriers_(remote_address(own_barriers, thread_ % kCluster)),
        staging_(data + S::kStagingAt + group_ * kStagingBytes) {}

  __device__ void run(typename S::Ring ring) const {
    const int items = warp_uniform(expert_items(p_.a, p_.row_tiles));
    const int step = static_cast<int>(gridDim.x) / kCluster;
    int index = static_cast<int>(blockIdx.x) / kCluster;
    if (index >= items) {
      return;
    }
    ExpertItem next(p_.a, p_.row_tiles, index);
    for (; index < items; index += step) {
      const ExpertItem item = next;
      if (index + step < items) {
        next = ExpertItem(p_.a, p_.row_tiles, index + step);
      }
      switch (product_places(warp_uniform(item.num_places))) {
        case 64:
          multiply<64>(ring, item);
          break;
        case 128:
          multiply<128>(ring, item);
          break;
        default:
          multiply<256>(ring, item);
      }
    }
  }

 private:
  static constexpr bool kGates = kEpilogue == LinearEpilogue::kSwiGlu;
  static constexpr int kOutBytes = kGates ? 64 : 128;        // of a place
  static constexpr int kStaged = kStagingBytes / kOutBytes;  // places

  __device__ void release(uint32_t empty) const {
    if (thread_ < kCluster) {
      barrier_arrive_remote(peer_barriers_ + (empty - own_barriers_));
    }
  }

  template <int kWidth>
  __device__ __forceinline__ void multiply(typename S::Ring& ring, const ExpertItem& item) const {
    const int steps = (p_.a.k + 63) / 64;
    float sum[kWidth / 2];
#pragma unroll
    for (float& v : sum) {
      v = 0.0F;
    }
    uint32_t used = 0;
    wgmma_pin(sum);
    for (int step = 0; step < steps; ++step, ring.next()) {
      barrier_wait(ring.full(), ring.phase);
      const uint32_t x = ring.data + ring.stage * S::kStageBytes;
      W::template multiply<kEpilogue == LinearEpilogue::kSwiGlu, kGroups, 1, kXBytes>(
          p_.a, sum, x + kXBytes, group_, x, step, thread_);
      wgmma_wait<W::kPending>();
      if constexpr (W::kPending == 0) {
        release(ring.empty());
      } else if (step > 0) {
        release(used);
      }
      used = ring.empty();
    }
    if constexpr (W::kPending > 0) {
      wgmma_wait<0>();
      release(used);
    }
    wgmma_pin(sum);
    with_gate_form<kGates>(p_.a.gate_limit, [&]<GateForm kForm>() { write<kForm>(sum, item); });
  }

  template <GateForm kForm, int kSums>
  __device__ __forceinline__ void write(const float (&sum)[kSums], const ExpertItem& item) const {
    constexpr int kWidth = kSums * 2;
    const int warp = thread_ / 32;
    const int lane = thread_ % 32;
    const int tile = (item.row_tile * kCluster + rank_) * kGroups + group_;  // of 64 rows
    const int outputs = kGates ? p_.a.n / 2 : p_.a.n;
    const int first = tile * (kOutBytes / 2);
    const ExpertBias bias(p_.a, kGates, item.expert, tile * 64 + warp * 16, lane);
    auto* y = static_cast<std::byte*>(p_.a.y);
#pragma unroll
    for (int begin = 0; begin < kWidth; begin += kStaged) {
      named_sync(1 + group_, 128);  // what was staged before has been copied
      constexpr int kBlocks = (kWidth < kStaged ? kWidth : kStaged) / 8;
#pragma unroll
      for (int j = 0; j < kBlocks; j += kGates ? 4 : 2) {
        uint32_t four[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* v = sum + 4 * (begin / 8 + j + (kGates ? i : i / 2));
          if constexpr (kGates) {
            four[i] = pack_bf16(bias.gate<kForm>(v[0], v[2]), bias.gate<kForm>(v[1], v[3]));
          } else {
            four[i] = i % 2 == 0 ? pack_bf16(bias.upper(v[0]), bias.upper(v[1]))
                                 : pack_bf16(bias.lower(v[2]), bias.lower(v[3]));
          }
        }
        // Of the matrix row whose address the lane gives to stmatrix.
        const int place = 8 * (j + (kGates ? lane / 8 : lane / 16)) + lane % 8;
        const int chunk = kGates ? warp : warp * 2 + lane / 8 % 2;
        store_matrices_transposed(staging_ + at(place, chunk), four);
      }
      named_sync(1 + group_, 128);
      constexpr int kChunks = kOutBytes / 16;
      const int chunk = thread_ % kChunks;
      const bool is_output = first + chunk * 8 < outputs;
      constexpr int kPasses = kBlocks * 8 / (128 / kChunks);
      uint4 eight[kPasses];
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        const int place = thread_ / kChunks + i * (128 / kChunks);
        eight[i] = load_shared_four(staging_ + at(place, chunk));
      }
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        const int place = begin + thread_ / kChunks + i * (128 / kChunks);
        if (is_output && place < item.num_places) {
          const int64_t row = item.place + place;
          *reinterpret_cast<uint4*>(y + (row * p_.a.y_stride + first + chunk * 8) * 2) = eight[i];
        }
      }
    }
  }

  // Where 8 outputs of a place are staged.
  __device__ static uint32_t at(int place, int chunk) {
    const int swizzled = kGates ? chunk ^ (place / 2 % 4) : chunk ^ (place % 8);
    return static_cast<uint32_t>(place * kOutBytes + swizzled * 16);
  }

  const Params& p_;
  int group_;
  int thread_;
  int rank_;
  uint32_t own_barriers_;
  uint32_t peer_barriers_;  // of the CTA of rank thread_ % kCluster
  uint32_t staging_;
};

template <PackedKind kKind, LinearEpilogue kEpilogue>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(Sizes<kKind, kEpilogue>::kCluster,
                                                                1,
                                                                1)
    sm90_wide_expert_kernel(const __grid_constant__ Params p,
                            const __grid_constant__ CUtensorMap x_map,
                            const __grid_constant__ CUtensorMap w_map) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using S = Sizes<kKind, kEpilogue>;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t barriers[2 * S::kStages];
  const uint32_t data = (shared_address(memory) + 1023) & ~1023U;
  const typename S::Ring ring{data, shared_address(barriers), S::kStages};
  const int rank = cluster_rank();
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(ring.barriers + i * 8, 1);
      barrier_init(ring.barriers + (S::kStages + i) * 8, kGroups * S::kCluster);
    }
    publish_barriers();
    fence_async_proxy();
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp >= kConsumers / 32) {
    lower_registers<40>();
    pdl_wait();
    pdl_release();
    if (threadIdx.x == kConsumers) {
      load<kKind, kEpilogue>(p, x_map, w_map, ring, rank);
    }
  } else {
    raise_registers<232>();
    pdl_wait();
    Consumer<kKind, kEpilogue>(p, data, rank, ring.barriers).run(ring);
  }
  __syncthreads();
  cluster_arrive();  // other CTAs may still write to this one's memory and barriers
  cluster_wait();
#endif
}

// How many clusters the GPU runs at once: its SMs form groups whose sizes need not be multiples of a cluster's.
template <int kCluster, typename Kernel>
int32_t most_clusters(Kernel* kernel, size_t shared_bytes) {
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kCluster);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  WR_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  WR_CHECK_GE(clusters, 1);
  return clusters;
}

template <PackedKind kKind, LinearEpilogue kEpilogue>
void launch_instance(Stream& stream, const ExpertGemmArgs& args) {
  using S = Sizes<kKind, kEpilogue>;
  constexpr auto* kKernel = &sm90_wide_expert_kernel<kKind, kEpilogue>;
  allow_shared_bytes<kKernel>(S::kSharedBytes);
  const CUtensorMap x_map =
      tensor_map<2>(args.x,
                    {static_cast<uint64_t>(args.k), static_cast<uint64_t>(args.max_places)},
                    {static_cast<uint64_t>(args.x_stride) * 2},
                    {64, kBoxPlaces},
                    CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  const Params params{args, ceil_div(args.n, S::kCluster * kRows)};
  LaunchShape shape;
  static const int32_t kMostClusters = most_clusters<S::kCluster>(kKernel, S::kSharedBytes);
  const int64_t clusters =
      std::min<int64_t>(kMostClusters, int64_t{args.max_tiles} * params.row_tiles);
  shape.grid = dim3(static_cast<unsigned>(S::kCluster * clusters));
  shape.block = dim3(kThreads);
  shape.shared_bytes = S::kSharedBytes;
  launch(stream,
         "sm90_wide_expert_gemm",
         shape,
         kKernel,
         params,
         x_map,
         ExpertW<kKind>::template map<kEpilogue>(args, kGroups));
}

}  // namespace sm90_wide_expert_detail

template <PackedKind kKind>
void sm90_wide_expert_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue) {
  using namespace sm90_wide_expert_detail;
  if (epilogue == LinearEpilogue::kSwiGlu) {
    launch_instance<kKind, LinearEpilogue::kSwiGlu>(stream, args);
  } else {
    launch_instance<kKind, LinearEpilogue::kStore>(stream, args);
  }
}

template void sm90_wide_expert_gemm<WR_KIND>(Stream& stream,
                                             const ExpertGemmArgs& args,
                                             LinearEpilogue epilogue);

}  // namespace warprow::cuda
