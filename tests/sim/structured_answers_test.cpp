// SPDX-License-Identifier: Apache-2.0
// A JSON schema through a whole engine on the CPU. tests/cuda_models has the same on a GPU.
#include "tests/support/structured_answers.h"

namespace warprow {
namespace {

TEST(StructuredAnswers, DoNotDependOnWhenMasksCome) {
  EngineConfig config;
  config.threads = 1;
  test::expect_structured_answers(config, 20'000);
}

}  // namespace
}  // namespace warprow
