// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/linear.h"
#include "kernels/low_rank/low_rank.h"
#include "tests/support/gap_rule.h"
#include "tests/support/lora_cases.h"
#include "tests/support/quantised_model.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, Lora, ::testing::Values("cuda"));

// Gate and up take so long that their product computes both halves of an adapter's (LowRankHalves::kBoth).
TEST(CudaLora, LongProductsHaveTheSameBitsInABatch) {
  const cuda::Availability found = cuda::find_device();
  if (!found.why_not.empty() || found.facts.compute_capability != 90) {
    GTEST_SKIP() << "the products are Hopper's; " << found.why_not;
  }
  const RandomModel model{
      .num_layers = 2, .hidden_size = 2048, .intermediate_size = 12288, .seed = 31};
  LinearShape gate_up{.n = 2 * model.intermediate_size, .k = model.hidden_size};
  gate_up.epilogue = LinearEpilogue::kSwiGlu;
  gate_up.batch_invariant = true;
  LowRankProduct product;
  product.k = gate_up.k;
  product.num_parts = 2;
  product.parts[0].n = product.parts[1].n = product.parts[1].y_col = model.intermediate_size;
  for (const int64_t rows : {1, 8, 16}) {
    ASSERT_EQ(low_rank_halves(found.facts, gate_up, rows, product, true), LowRankHalves::kBoth);
  }
  const TempDir dir;
  expect_same_bits_in_a_batch(model, model.write(dir), "cuda", {}, {"auto"});
}

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
