// SPDX-License-Identifier: Apache-2.0
// Heads that draft from hidden states, of other files or of the model's own, on CUDA in float32: every draft is the oracle's.
#include "tests/support/eagle_case.h"
#include "tests/support/mtp_case.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::head_request;
using test::HeadFiles;
using test::HeadFormat;
using test::HeadRun;
using test::RigOptions;

class CudaEagle : public ::testing::Test {
 protected:
  void SetUp() override {
    const cuda::Availability found = cuda::find_device();
    if (!found.why_not.empty()) {
      GTEST_SKIP() << found.why_not;
    }
  }

  static void expect_drafts(const HeadFiles& head, const std::string& graphs) {
    for (const int32_t num_drafts : {1, 3, 7}) {
      SCOPED_TRACE(graphs + ", K = " + std::to_string(num_drafts));
      RigOptions options = test::head_options(head, num_drafts, "cuda");
      options.config.cudagraph_mode = graphs;
      options.config.max_num_batched_tokens = 64;
      const HeadRun seen = test::expect_oracles_drafts(
          head,
          options,
          test::head_target_options("cuda"),
          {head_request(1, 70, 40), head_request(2, 1, 24), head_request(3, 33, 30)},
          num_drafts);
      EXPECT_GT(seen.num_compared, 15);
      EXPECT_GT(seen.stats.num_partial_prefill_steps, 0);
    }
  }
};

TEST_F(CudaEagle, Eagle3) {
  for (const char* graphs : {"none", "full"}) {
    expect_drafts(HeadFiles(HeadFormat::kEagle3, 8), graphs);
  }
}
TEST_F(CudaEagle, Speculators) {
  expect_drafts(HeadFiles(HeadFormat::kSpeculators, 8, true), "full");
}
// A head with ids of its own, whose drafts are drawn: tokens are a request's own.
TEST_F(CudaEagle, ByRatio) {
  const HeadFiles head(HeadFormat::kEagle3, 8);
  RigOptions options = test::head_target_options("cuda");
  options.config.speculative_config =
      test::by_ratio(test::head_config(head.method(), head.dir.path().string(), 3));
  std::vector<Request> requests = {
      head_request(1, 70, 40), head_request(2, 1, 24), head_request(3, 33, 30)};
  for (Request& request : requests) {
    request.params.temperature = 1.0F;
    request.params.seed = request.id;
  }
  test::ModelRig together(options);
  for (const Request& request : requests) {
    together.add(request);
  }
  together.run();
  EXPECT_GT(together.scheduler().stats().num_accepted_tokens, 0);
  for (const Request& request : requests) {
    test::ModelRig alone(options);
    alone.add(request);
    EXPECT_EQ(alone.run().at(request.id).tokens, together.results().at(request.id).tokens);
  }
}
TEST_F(CudaEagle, Eagle) { expect_drafts(HeadFiles(HeadFormat::kEagle), "full"); }

// Layers of the model's own checkpoint, in models whose layers all have attention.
TEST_F(CudaEagle, LayersThatPredict) {
  for (const test::MtpFamily family :
       {test::MtpFamily::kGlm4Moe, test::MtpFamily::kQwen35, test::MtpFamily::kQwen3Next}) {
    const test::MtpFiles files(family);
    for (const int32_t num_drafts : {1, 3, 7}) {
      SCOPED_TRACE(num_drafts);
      RigOptions options = test::mtp_options(files, num_drafts, "cuda");
      options.config.cudagraph_mode = "full";
      options.config.max_num_batched_tokens = 64;
      const HeadRun seen = test::expect_oracles_drafts(
          files.random.model(),
          files.random.head(),
          options,
          test::mtp_target_options(files, "cuda"),
          {head_request(1, 70, 40), head_request(2, 1, 24), head_request(3, 33, 30)},
          num_drafts);
      EXPECT_GT(seen.num_compared, 15);
    }
  }
}

}  // namespace
}  // namespace warprow
