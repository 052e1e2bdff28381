// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "kernels/linear/linear.h"

#include <cstdint>
#include <span>

namespace warprow::cuda {

// A linear operation as a model has it, whatever its number of rows.
struct LinearShape {
  int32_t n = 0;
  int32_t k = 0;
  DType y = DType::kBF16;
  LinearEpilogue epilogue = LinearEpilogue::kStore;
  bool has_bias = false;
  bool batch_invariant = false;
};

// Start-up: opens cuBLASLt if a product of up to max_toks rows needs it and chooses its algorithms,
// so that no step does. With `tune` unknown ones are timed, once a machine, which takes device
// memory while it runs. Throws StartupError if the library is missing.
void prepare_linear(std::span<const LinearShape> shapes, int64_t max_toks, bool tune);

}  // namespace warprow::cuda
