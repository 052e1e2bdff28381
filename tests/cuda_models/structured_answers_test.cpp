// SPDX-License-Identifier: Apache-2.0
// A JSON schema through a whole engine on a GPU: the sample graph begins with masks in pinned memory, and rows are
// withheld on the device.
#include "tests/support/structured_answers.h"

#include "device/cuda_device.h"

namespace warprow {
namespace {

TEST(CudaStructuredAnswers, DoNotDependOnWhenMasksCome) {
  if (const cuda::Availability found = cuda::find_device(); !found.why_not.empty()) {
    GTEST_SKIP() << found.why_not;
  }
  EngineConfig config;
  config.device = "cuda";
  config.batch_invariant = true;
  for (const char* graphs : {"full_and_piecewise", "none"}) {
    SCOPED_TRACE(graphs);
    config.cudagraph_mode = graphs;
    test::expect_structured_answers(config, 5'000);
  }
}

}  // namespace
}  // namespace warprow
