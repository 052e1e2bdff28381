// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "kernels/delta/gated_delta.h"

namespace warprow::cuda {

// A model with such layers is refused on a GPU when it is loaded (models/tensor_split.h).
void gated_delta(Stream& /*stream*/, const GatedDeltaArgs& /*args*/) {
  WR_CHECK(false, "gated delta nets have no kernel for CUDA");
}

}  // namespace warprow::cuda
