// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gap_rule.h"
#include "tests/support/lora_cases.h"
#include "tests/support/quantised_model.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, Lora, ::testing::Values("cuda"));

// Several adapters and rows without one on quantised weights, against the CPU in float32.
class CudaQuantisedLora : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const cuda::Availability found = cuda::find_device(); !found.why_not.empty()) {
      GTEST_SKIP() << found.why_not;
    }
  }
  const RandomModel model_{.num_layers = 2, .seed = 31};
};

TEST_P(CudaQuantisedLora, FollowsTheCpu) {
  const TempDir dir;
  const TempDir quantised;
  const TempDir twin;
  const std::string base = QuantisedModel{model_, GetParam()}.write(quantised, twin).first;
  const std::vector<Request> requests = requests_of(model_, 12);
  ModelRig cpu(with_lora(options_of(base, "cpu")));
  load_all(cpu, dir, model_);
  for (const Request& request : requests) {
    cpu.add(request);
  }
  cpu.run();
  RigOptions options = with_lora(options_of(base, "cuda"));
  options.config.dtype = "auto";
  ModelRig gpu(options);
  load_all(gpu, dir, model_);
  EXPECT_GT(expect_follows(gpu, requests, cpu.results(), {}).positions, 40);
}

TEST_P(CudaQuantisedLora, RowsHaveTheSameBitsInABatch) {
  const TempDir quantised;
  const TempDir twin;
  const std::string base = QuantisedModel{model_, GetParam()}.write(quantised, twin).first;
  expect_same_bits_in_a_batch(model_, base, "cuda", {}, {"auto"});
}

INSTANTIATE_TEST_SUITE_P(Schemes,
                         CudaQuantisedLora,
                         ::testing::Values("fp8_block", "fp8_channel", "pack4", "pack4_zeros"),
                         [](const auto& scheme) { return std::string(scheme.param); });

}  // namespace
}  // namespace warprow::test
