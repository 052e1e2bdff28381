// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/f8_inputs.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// Storage format of a weight matrix in device memory.
//  kF32/kF16/kBF16: plain values.
//  kQ4/kQ5/kQ6/kQ8: w[n, k] = scale[n, k / group] * (stored[n, k] - zero_point) (+ bias[n, k / group]);
//   stored is u4, u5, u6 or s8.
//  kMxfp4: e2m1 numbers with a power of two for 32 inputs. CPU: as kQ4 with stored = an e2m1 number, of which the kernels
//   make 2 * number + 12, so the zero point is 12; CUDA: in tiles (kernels/experts/mxfp4_tiles.h), experts only.
//  kQ2: as kQ4 with u2. CPU only.
//  kTable/kTable16: w[n, k] = scale_unit * scale[n, k / group] * numbers[stored[n, k]] (+ bias[n, k / group]); stored is u4.
//   CUDA has kTable alone, in tiles, without a bias and with scale_unit 1.
//  kF8: e4m3 numbers with a float32 scale for each group. CUDA only, in tiles (kernels/linear/quant/quant_tiles.h), which
//   kQ4, kQ6, kQ8 and kTable have there too.
//  kF8F8: e4m3 numbers whose products have e4m3 inputs (F8Inputs). CUDA only (kernels/linear/fp8/fp8_tiles.h).
enum class PackedKind : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4,
  kQ5,
  kQ6,
  kQ8,
  kMxfp4,
  kF8,
  kF8F8,
  kQ2,
  kTable,
  kTable16
};

// Storage format of the scales and biases of a quantised matrix.
//  kF16: an IEEE half for each group; in CUDA's tiles two bf16.
//  kSplit: a half for kSplitInputs inputs times an s8 for each group, as in K-quants.
//  kE8M0: the exponent field of a float32 power of two for each group; 0 is zero.
//  kF32: a float32 for each group.
//  kBF16: a bf16 for each group. CUDA's tiles only, of kF8, kQ4, kQ6 and kQ8.
enum class ScaleForm : uint8_t { kF16, kSplit, kE8M0, kF32, kBF16 };
inline constexpr int32_t kSplitInputs = 256;
inline constexpr int32_t kMxfp4Zero = 12;  // PackedWeight::zero_point of kMxfp4 on a CPU

// One packed matrix W [n, k] (n outputs, k inputs). The CPU layout interleaves 16 outputs (a panel)
// so that one vector register holds one input's weights of 16 outputs; see cpu/pack.h. n is
// padded to 16 with zeros.
struct PackedWeight {
  PackedKind kind = PackedKind::kF32;
  bool has_bias = false;               // quantised: per-group bias present
  ScaleForm scales = ScaleForm::kF16;  // quantised
  int32_t zero_point = 0;              // kQ4 8, kQ5 16, kQ6 32, kMxfp4 12, or 0
  // quantised: inputs per scale; kQ2, kQ6 and kTable16 16, kQ8 32 or 128, else 32; on CUDA 16 (has_quant_group in quant_tiles.h), 32, 64 or 128
  int32_t group = 32;
  // kTable, kTable16: what nibbles stand for, 16 numbers that outlive the matrix; and a power of two.
  const int8_t* numbers = nullptr;
  float scale_unit = 1.0F;
  bool has_zero_points = false;  // CUDA: every group has one of its own, instead of zero_point
  // Of kF8F8, and on a CPU of kF32 with ActFormat::kF32: how a product's inputs are rounded. Else kNone.
  F8Inputs inputs = F8Inputs::kNone;
  float input_scale = 1.0F;  // F8Inputs::kStatic
  int32_t n = 0;
  int32_t k = 0;
  const std::byte* data = nullptr;
};

}  // namespace warprow
