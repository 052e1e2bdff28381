// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/experts/sm90_expert_gemm.h"

#include <cuda_runtime.h>

// Formula: to[p] = x[slots[p] / num_chosen] for every place p that a row has.
// Mapping: a warp a place, 16 bytes a lane at a time; CTAs take places in turn.
// Origin: own.
namespace warprow::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kCtasOfSm = 8;
constexpr int kAtOnce = 8;  // vectors that a lane loads before it stores the first

__global__ void __launch_bounds__(kWarps * 32) copy_places(const ExpertGemmArgs a,
                                                           const int32_t* first,
                                                           Bf16* to,
                                                           int64_t to_stride) {
  pdl_wait();
  pdl_release();
  const int places = first[a.num_experts];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto step = static_cast<int>(gridDim.x) * kWarps;
  for (int place = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
       place < places;
       place += step) {
    const int64_t row = a.slots[place] / a.num_chosen;
    const auto* from =
        reinterpret_cast<const uint4*>(static_cast<const Bf16*>(a.x) + row * a.x_stride);
    auto* out = reinterpret_cast<uint4*>(to + place * to_stride);
    const int vectors = a.k / 8;
    for (int at = lane; at < vectors; at += 32 * kAtOnce) {
      uint4 v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        v[i] = at + i * 32 < vectors ? from[at + i * 32] : uint4{};
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (at + i * 32 < vectors) {
          __stcs(out + at + i * 32, v[i]);
        }
      }
    }
  }
}

}  // namespace

void gather_places(
    Stream& stream, const ExpertGemmArgs& args, const int32_t* first, void* to, int64_t to_stride) {
  const LaunchShape shape{static_cast<unsigned>(stream.device().facts().num_sms * kCtasOfSm),
                          kWarps * 32};
  launch(
      stream, "gather_places", shape, copy_places, args, first, static_cast<Bf16*>(to), to_stride);
}

}  // namespace warprow::cuda
