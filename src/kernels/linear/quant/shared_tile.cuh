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

// kGroupSteps: steps of 16 inputs in a group. OfScales: the type of its scales. kHasBiases: only with float32 scales.
template <PackedKind kKind, bool kF32Scales, int kGroupSteps, typename OfScales, bool kHasBiases>
class SharedTile {
 public:
  using Numbers = QuantNumbers<kKind, kF32Scales>;
  using Scale = OfScales;

  // has_zeros: whether groups have zero points of their own; read only if Scale::kHasZeros.
  __device__ __forceinline__ SharedTile(uint32_t tile, int lane, bool has_zeros)
      : numbers_(tile + lane * 16),
        scales_(tile + quant_number_bytes(kKind) + lane / 4 * kRowBytes),
        zeros_(tile + quant_number_bytes(kKind) + kGroups * kQuantTileRows * kRowBytes + lane / 4),
        has_zeros_(has_zeros) {}

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
      if constexpr (kF32Scales && kHasBiases) {
        const float2 both = load_shared_floats(at);
        scales[i].set_scale(both.x, both.y);
      } else if constexpr (kF32Scales) {
        scales[i].set_scale(__uint_as_float(load_shared(at)));
      } else {
        scales[i].set_scale(kRowBytes == 2 ? load_shared_short(at) : load_shared(at));
        if constexpr (kKind != PackedKind::kF8 && Scale::kHasZeros) {
          if (has_zeros_) {
            scales[i].set_zero(Numbers::zero_of(i, load_shared_byte(zeros_ + row)));
          }
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
  static constexpr int row_bytes() {
    if constexpr (kF32Scales) {
      return kHasBiases ? 8 : 4;
    } else {
      return Scale::kBytes;
    }
  }
  static constexpr int kRowBytes = row_bytes();

  uint32_t numbers_;
  uint32_t scales_;
  uint32_t zeros_;
  bool has_zeros_;
};

// The form of a matrix's scales, known at run time.
struct ScaleGroups {
  int32_t group;
  QuantCodes codes;
  bool has_zeros;
  bool has_bias;
  bool bf16;  // ScaleForm::kBF16
};

// Calls f<SharedTile, kGroupSteps>() of the matrix's groups.
template <PackedKind kKind, bool kF32Scales, typename F>
__device__ __forceinline__ void with_scale_groups(const ScaleGroups& q, F&& f) {
  const auto of_steps = [&]<typename Scale, bool kHasBiases, int... kSteps> {
    ((q.group == kSteps * 16
          ? f.template
            operator()<SharedTile<kKind, kF32Scales, kSteps, Scale, kHasBiases>, kSteps>()
          : void()),
     ...);
  };
  if constexpr (kKind == PackedKind::kF8) {
    if (q.bf16) {
      f.template operator()<SharedTile<kKind, kF32Scales, 8, Bf16Factor, false>, 8>();
    } else {
      f.template operator()<SharedTile<kKind, kF32Scales, 8, TwoBf16Scale, false>, 8>();
    }
  } else if constexpr (kF32Scales) {
    using Numbers = QuantNumbers<kKind, kF32Scales>;
    if (kKind != PackedKind::kTable && q.has_bias) {
      of_steps.template operator()<typename Numbers::template Scale<true>, true, 2, 1>();
    } else {
      of_steps.template operator()<typename Numbers::template Scale<false>, false, 2, 1>();
    }
  } else if (!q.bf16) {
    of_steps.template operator()<TwoBf16Scale, false, 8, 4, 2>();
  } else if (q.has_zeros) {
    of_steps.template operator()<Bf16ZeroScale, false, 8, 4, 2>();
  } else {
    of_steps.template operator()<Bf16Scale, false, 8, 4, 2>();
  }
}

}  // namespace warprow::cuda
