// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/quant/quant_numbers.cuh"
#include "kernels/linear/quant/quant_tiles.h"

#include <cstdint>

// A tile (quant_tiles.h) in shared memory, as a warp reads it.
namespace warprow::cuda {

__device__ __forceinline__ float2 load_shared_floats(uint32_t shared) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(shared) : "memory");
  return v;
}

// kGroupSteps: steps of 16 inputs in a group. kHasMore: groups have zero points, or with float32 scales biases.
template <PackedKind kKind, bool kF32Scales, int kGroupSteps, bool kHasMore>
class SharedTile {
 public:
  using Numbers = QuantNumbers<kKind, kF32Scales>;
  using Scale = typename Numbers::Scale;

  __device__ __forceinline__ SharedTile(uint32_t tile, int lane)
      : numbers_(tile + lane * 16),
        scales_(tile + quant_number_bytes(kKind) + lane / 4 * kRowBytes),
        zeros_(tile + quant_number_bytes(kKind) + kGroups * kQuantTileRows * 4 + lane / 4) {}

  static constexpr int kGroups = 8 / kGroupSteps;
  static constexpr int kLoads = 8 / Numbers::kStepsOfLoad;

  // A lane's numbers.
  struct Words {
    uint4 of[kLoads];
    uint4 upper;  // kQ6's upper bits
  };
  // Reads the numbers of kStepsOfLoad steps from step i * kStepsOfLoad on.
  __device__ __forceinline__ void read(Words& to, int i) const {
    to.of[i] = load_shared_four(numbers_ + i * 512);
  }
  __device__ __forceinline__ void read_upper(Words& to) const {
    if constexpr (kKind == PackedKind::kQ6) {
      to.upper = load_shared_four(numbers_ + quant_number_bytes(PackedKind::kQ4));
    }
  }
  __device__ __forceinline__ void read(Words& to) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      read(to, i);
    }
    read_upper(to);
  }

  __device__ __forceinline__ void read_scales(int group, Scale (&scales)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = group * kQuantTileRows + i * 8;
      const uint32_t at = scales_ + row * kRowBytes;
      if constexpr (kF32Scales && kHasMore) {
        const float2 both = load_shared_floats(at);
        scales[i].set_scale(i, both.x, both.y);
      } else if constexpr (kF32Scales) {
        scales[i].set_scale(i, __uint_as_float(load_shared(at)), -0.0F);
      } else {
        scales[i].set_scale(load_shared(at));
        if constexpr (kHasMore) {
          scales[i].zero = Numbers::zero_of(load_shared_byte(zeros_ + row));
        }
      }
    }
  }
  // step: of the tile.
  __device__ __forceinline__ static void decode(const Words& words,
                                                int step,
                                                const Scale (&scales)[2],
                                                uint32_t (&d)[4]) {
    dequantise_step<Numbers>(
        {words.of[step / Numbers::kStepsOfLoad], words.upper}, step, scales, d);
  }

 private:
  static constexpr int kRowBytes = kF32Scales && kHasMore ? 8 : 4;

  uint32_t numbers_;
  uint32_t scales_;
  uint32_t zeros_;
};

// The form of a matrix's scales, known at run time.
struct ScaleGroups {
  int32_t group;
  QuantCodes codes;
  bool has_zeros;
  bool has_bias;
};

// Calls f<kGroupSteps, kHasMore>().
template <PackedKind kKind, bool kF32Scales, typename F>
__device__ __forceinline__ void with_scale_groups(const ScaleGroups& q, F&& f) {
  const auto of_steps = [&]<bool kHasMore, int... kSteps> {
    ((q.group == kSteps * 16 ? f.template operator()<kSteps, kHasMore>() : void()), ...);
  };
  if constexpr (kKind == PackedKind::kF8) {
    f.template operator()<8, false>();
  } else if constexpr (kKind == PackedKind::kTable) {
    of_steps.template operator()<false, 2, 1>();
  } else if constexpr (kF32Scales) {
    q.has_bias ? of_steps.template operator()<true, 2, 1>()
               : of_steps.template operator()<false, 2, 1>();
  } else {
    q.has_zeros ? of_steps.template operator()<true, 8, 4, 2>()
                : of_steps.template operator()<false, 8, 4, 2>();
  }
}

// Sets the fields of the scales that are the same for all groups.
template <PackedKind kKind, bool kF32Scales>
__device__ __forceinline__ void set_codes(
    const QuantCodes& codes, typename QuantNumbers<kKind, kF32Scales>::Scale (&scales)[2]) {
  if constexpr (kF32Scales) {
    scales[0].set_codes(0, codes);
    scales[1].set_codes(1, codes);
  } else {
    scales[0].zero = scales[1].zero = QuantNumbers<kKind, kF32Scales>::zero_of(codes.zero_point);
  }
}

}  // namespace warprow::cuda
