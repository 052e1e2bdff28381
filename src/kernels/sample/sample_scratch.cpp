// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/sample.h"

namespace warprow {

// Plain arithmetic outside the CUDA files, so that a build without CUDA plans for a GPU.
size_t cuda::sample_scratch_bytes(int64_t vocab, int64_t max_rows) {
  return static_cast<size_t>(vocab * 4 + max_rows * 65536);
}

}  // namespace warprow
