// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "base/hd.h"
#include "base/philox.h"
#include "kernels/op.h"

#include <cstdint>
#include <type_traits>

namespace warprow {

// Computes elements 4 * quad .. 4 * quad + 3 of an infinite random vector with mean 0 and deviation `scale`.
// Each word of Philox under `seed` gives one element: the sum of its four bytes is close to a normal
// distribution (cut off at 3.4 deviations). Integer arithmetic up to the last product makes it the same on
// every device.
WR_HD inline void random_quad(uint64_t seed, int64_t quad, float scale, float (&out)[4]) {
  constexpr int kMean = 510;
  constexpr float kDeviation = 147.799865F;  // sqrt(4 * (256^2 - 1) / 12)
  const auto at = static_cast<uint64_t>(quad);
  const PhiloxBlock block =
      philox4x32_10({{static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0, 0}},
                    static_cast<uint32_t>(seed),
                    static_cast<uint32_t>(seed >> 32));
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = block.word[i];
    const auto sum =
        static_cast<int>((word & 255U) + (word >> 8 & 255U) + (word >> 16 & 255U) + (word >> 24));
    out[i] = static_cast<float>(sum - kMean) * (scale / kDeviation);
  }
}

// Elements [first, first + n) of that vector, rounded to bf16. T: uint16_t for bf16, or float. Host.
template <typename T>
void random_run(uint64_t seed, int64_t first, int64_t n, float scale, T* out) {
  float quad[4];
  for (int64_t i = 0; i < n; ++i) {
    const int64_t element = first + i;
    if (i == 0 || element % 4 == 0) {
      random_quad(seed, element / 4, scale, quad);
    }
    const uint16_t rounded = f32_to_bf16(quad[element % 4]);
    if constexpr (std::is_same_v<T, float>) {
      out[i] = bf16_to_f32(rounded);
    } else {
      out[i] = rounded;
    }
  }
}

// Fills weights with random numbers, in place of a checkpoint: those of a whole matrix, or of a part of one.
//
// Formula: dst[i] = bf16 of element first + i / cols * stride + i % cols of random_quad's vector; with cols 0, of
//   element first + i.
// Shapes: dst bf16 or float32 [n]; n is a multiple of cols.
// Mapping: CPU: pieces or rows in parallel. CUDA: eight elements a thread; one where rows are apart, or first is no
//   multiple of four.
// Bytes moved: 2 * n; float32 4 * n.
// Numerics: the same bits on every device, the same numbers in both types.
// Preconditions: none.
// Origin: own; Philox as in base/philox.h.
struct FillRandomArgs {
  void* dst = nullptr;
  int64_t n = 0;
  uint64_t seed = 0;
  float scale = 1.0F;
  int64_t first = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  DType type = DType::kBF16;  // or kF32
};

WR_OP(fill_random, FillRandomArgs);

}  // namespace warprow
