// SPDX-License-Identifier: Apache-2.0
// The CUDA side of every operation in a build without CUDA: one line per op, so this is also the list of operations.
// No CUDA device can be made in such a build, so none of these is ever reached.
#include "base/check.h"
#include "kernels/linear/embedding.h"
#include "kernels/linear/linear.h"
#include "kernels/op.h"

namespace warprow::cuda {

#define WR_NO_CUDA(name, Args)                             \
  void name(Stream& /*stream*/, const Args& /*args*/) {    \
    WR_CHECK(false, "{}: built without CUDA", #name);      \
  }

WR_NO_CUDA(embedding, EmbeddingArgs)
WR_NO_CUDA(linear, LinearArgs)

}  // namespace warprow::cuda
