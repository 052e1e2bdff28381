// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "runner/ops/runner_ops.h"

namespace warprow {

std::unique_ptr<RunnerOps> make_cuda_runner_ops(Device& /*device*/) {
  WR_CHECK(false, "built without CUDA");
}

}  // namespace warprow
