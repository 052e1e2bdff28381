// SPDX-License-Identifier: Apache-2.0
// NaN or infinite logits end their own request and do not affect other requests.
#include "tests/support/model_rig.h"
#include "tests/support/source_path.h"
#include "wire/token_lists.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::ModelRig;
using test::RigOptions;

Request greedy_request(uint64_t id, int32_t max_tokens) {
  Request request;
  request.id = id;
  for (uint64_t i = 0; i < 20 + id; ++i) {
    request.prompt.push_back(static_cast<TokenId>(3 + (i * 7 + id * 31) % 120));
  }
  request.max_tokens = max_tokens;
  request.params.temperature = id % 2 == 0 ? 0.0F : 0.9F;
  request.params.seed = id;
  request.params.num_logprobs = 2;
  return request;
}

// A bias that no client can send turns a row's logits into those of a broken model.
Request broken_of(uint64_t id, float bias) {
  Request request = greedy_request(id, 10);
  request.params.flags = SamplingParams::kHasTokenLists;
  TokenLists lists;
  lists.biases = {{64, bias}};
  request.token_lists = pack_token_lists(lists);
  return request;
}

TEST(BadLogits, EndTheirRequestAlone) {
  RigOptions options;
  options.config.model = test::source_path("tests/golden/tiny/llama_gqa_tied/model.gguf");
  options.config.dtype = "float32";
  options.config.kv_cache_memory_bytes = int64_t{4} << 20;
  options.config.max_model_len = 128;
  options.config.max_num_seqs = 8;
  options.config.max_num_batched_tokens = 64;
  options.config.enable_prefix_caching = false;
  for (const char* mode : {"raw_logprobs", "processed_logprobs"}) {
    options.config.logprobs_mode = mode;
    ModelRig alone(options);
    ModelRig mixed(options);
    for (uint64_t id = 1; id <= 4; ++id) {
      alone.add(greedy_request(id, 12));
      mixed.add(greedy_request(id, 12));
    }
    mixed.add(broken_of(5, std::nanf("")));
    mixed.add(broken_of(6, INFINITY));
    mixed.add(broken_of(7, -INFINITY));  // one token at -inf is no error
    alone.run();
    mixed.run();
    for (uint64_t id = 1; id <= 4; ++id) {
      EXPECT_EQ(alone.results().at(id).tokens, mixed.results().at(id).tokens) << id;
      EXPECT_EQ(alone.results().at(id).top, mixed.results().at(id).top) << id;
    }
    EXPECT_EQ(mixed.results().at(5).reason, FinishReason::kError);
    EXPECT_TRUE(mixed.results().at(5).tokens.empty());
    EXPECT_EQ(mixed.results().at(6).reason, FinishReason::kError);
    EXPECT_EQ(mixed.results().at(7).reason, FinishReason::kLength);
    mixed.scheduler().check_invariants();
  }
}

}  // namespace
}  // namespace warprow
