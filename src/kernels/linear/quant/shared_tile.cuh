// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/quant/quant_numbers.cuh"
#include "kernels/linear/quant/quant_tiles.h"

#include <cstdint>

// A tile (quant_tiles.h) in shared memory, as a warp reads it.
namespace warprow::cuda {

// kGroupSteps: steps of 16 inputs in a group. OfScales: the type of its scales.
template <PackedKind kKind, int kGroupSteps, typename OfScales>
class SharedTile {
 public:
  using Numbers = QuantNumbers<kKind>;
  using Scale = OfScales;
  using Words = typename Numbers::Words;

  // has_zeros: whether groups have zero points of their own; read only if Scale::kHasZeros.
  __device__ __forceinline__ SharedTile(uint32_t tile, int lane, bool has_zeros)
      : numbers_(tile + lane * 16),
        scales_(tile + quant_number_bytes(kKind) + lane / 4 * Scale::kBytes),
        zeros_(tile + quant_number_bytes(kKind) + kGroups * kQuantTileRows * Scale::kBytes +
               lane / 4),
        has_zeros_(has_zeros) {}

  static constexpr int kGroups = 8 / kGroupSteps;

  __device__ __forceinline__ void read(Words& to) const {
#pragma unroll
    for (int i = 0; i < Words::kLoads; ++i) {
      read_load(to, i);
    }
  }
  // Reads what step `step` needs, if the steps from `first` on have not read it.
  __device__ __forceinline__ void read_for(Words& to, int step, int first) const {
    if constexpr (kKind == PackedKind::kQ6) {
      if (step == first) {
        read(to);
      }
    } else {
      constexpr int kStepsOfLoad = 8 / Words::kLoads;
      if (step % kStepsOfLoad == 0) {
        read_load(to, step / kStepsOfLoad);
      }
    }
  }

  __device__ __forceinline__ void read_scales(int group, Scale (&scales)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = group * kQuantTileRows + i * 8;
      const uint32_t at = scales_ + row * Scale::kBytes;
      scales[i].set_scale(Scale::kBytes == 2 ? load_shared_short(at) : load_shared(at));
      if constexpr (kKind != PackedKind::kF8 && Scale::kHasZeros) {
        if (has_zeros_) {
          scales[i].set_zero(Numbers::zero_of(i, load_shared_byte(zeros_ + row)));
        }
      }
    }
  }
  // step: of the tile.
  __device__ __forceinline__ static void decode(const Words& words,
                                                int step,
                                                const Scale (&scales)[2],
                                                uint32_t (&d)[4]) {
    dequantise_step<Numbers>(words, step, scales, d);
  }

 private:
  __device__ __forceinline__ void read_load(Words& to, int i) const {
    to.of[i] = load_shared_four(numbers_ + i * 512);
  }

  uint32_t numbers_;
  uint32_t scales_;
  uint32_t zeros_;
  bool has_zeros_;
};

// The form of a matrix's scales, known at run time.
struct ScaleGroups {
  int32_t group;
  QuantCodes codes;
  QuantScales scales;
  bool has_zeros;
};

// Calls f<SharedTile, kGroupSteps>() of the matrix's groups.
template <PackedKind kKind, typename F>
__device__ __forceinline__ void with_scale_groups(const ScaleGroups& q, F&& f) {
  const auto of_steps = [&]<typename Scale, int... kSteps> {
    ((q.group == kSteps * 16 ? f.template operator()<SharedTile<kKind, kSteps, Scale>, kSteps>()
                             : void()),
     ...);
  };
  if constexpr (kKind == PackedKind::kF8) {
    if (q.scales == QuantScales::kOne) {
      of_steps.template operator()<Bf16Factor, 8>();
    } else {
      of_steps.template operator()<TwoBf16Scale, 8>();
    }
  } else if constexpr (kKind == PackedKind::kTable) {
    of_steps.template operator()<TableScale, 2, 1>();
  } else if constexpr (kKind == PackedKind::kQ6) {
    if (q.scales == QuantScales::kBiased) {
      of_steps.template operator()<Bf16BiasScale, 2, 1>();
    } else {
      of_steps.template operator()<Bf16Scale, 2, 1>();
    }
  } else if (q.scales == QuantScales::kOne && !q.has_zeros) {
    of_steps.template operator()<Bf16Scale, 8, 4, 2, 1>();
  } else if (q.scales == QuantScales::kBiased) {
    of_steps.template operator()<Bf16BiasScale, 2, 1>();
  } else if (q.scales == QuantScales::kTwo) {
    of_steps.template operator()<TwoBf16Scale, 8, 4, 2>();
  } else {
    of_steps.template operator()<Bf16ZeroScale, 8, 4, 2>();
  }
}

}  // namespace warprow::cuda
