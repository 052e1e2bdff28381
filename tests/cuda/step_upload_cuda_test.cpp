// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/upload_race.h"

#include <atomic>
#include <cuda_runtime_api.h>
#include <thread>

#include <gtest/gtest.h>

namespace warprow {
namespace {

class StepUploadCuda : public testing::CudaTest {};

TEST_F(StepUploadCuda, AThisStepBTheNext) {
  std::atomic<bool> open = false;
  const auto hold = [&] {
    // A host function blocks the stream until the gate opens.
    WR_CUDA(cudaLaunchHostFunc(
        cuda::as_cuda(stream()).handle(),
        [](void* gate) {
          while (!static_cast<std::atomic<bool>*>(gate)->load()) {
            std::this_thread::yield();
          }
        },
        &open));
  };
  // The driver loads a kernel at its first launch and then waits for the stream, so nothing is held the first time.
  test::expect_a_this_step_b_the_next(gpu(), stream(), [] {}, [] {});
  test::expect_a_this_step_b_the_next(gpu(), stream(), hold, [&] { open = true; });
}

}  // namespace
}  // namespace warprow
