// SPDX-License-Identifier: Apache-2.0
#include "config/resolve.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::HasSubstr;

constexpr HostFacts kHost{.usable_cores = 6, .usable_memory_bytes = int64_t{4} << 30};

std::string error(const EngineConfig& wishes, const HostFacts& host = kHost) {
  const auto resolved = resolve(wishes, host);
  return resolved ? "" : resolved.error().message;
}

TEST(Resolve, DecidesWhatWasLeftOpen) {
  const auto resolved = resolve({}, kHost);
  ASSERT_TRUE(resolved);
  EXPECT_EQ(resolved->device, "cpu");
  EXPECT_EQ(resolved->threads, 6);
  EXPECT_EQ(resolved->max_num_seqs, 64);
  EXPECT_EQ(resolved->max_num_batched_tokens, 512);
  EXPECT_EQ(resolved->prefill_toks_per_decode, 2);
  EXPECT_EQ(resolved->kv_cache_memory_bytes, int64_t{1} << 30);
  EXPECT_EQ(resolved->max_model_len, 0);
}

TEST(Resolve, TheKvCacheIsTwoGibibytesOnALargeMachine) {
  const auto resolved = resolve({}, {.usable_cores = 1, .usable_memory_bytes = int64_t{64} << 30});
  ASSERT_TRUE(resolved);
  EXPECT_EQ(resolved->kv_cache_memory_bytes, int64_t{2} << 30);
}

TEST(Resolve, WishesStay) {
  EngineConfig wishes;
  wishes.threads = 2;
  wishes.max_num_seqs = 3;
  wishes.max_num_batched_tokens = 16;
  wishes.kv_cache_memory_bytes = 1 << 20;
  const auto resolved = resolve(wishes, kHost);
  ASSERT_TRUE(resolved);
  EXPECT_EQ(resolved->threads, 2);
  EXPECT_EQ(resolved->max_num_seqs, 3);
  EXPECT_EQ(resolved->max_num_batched_tokens, 16);
  EXPECT_EQ(resolved->kv_cache_memory_bytes, 1 << 20);
}

TEST(Resolve, AnOpenValueFollowsTheGivenOne) {
  EngineConfig wishes;
  wishes.max_num_batched_tokens = 16;
  EXPECT_EQ(resolve(wishes, kHost)->max_num_seqs, 16);
  wishes = {};
  wishes.max_num_seqs = 1000;
  EXPECT_EQ(resolve(wishes, kHost)->max_num_batched_tokens, 1000);
  wishes = {};
  wishes.enable_chunked_prefill = false;
  wishes.max_model_len = 2048;
  EXPECT_EQ(resolve(wishes, kHost)->max_num_batched_tokens, 2048);
}

TEST(Resolve, LongPrefillsFollowTheStep) {
  EngineConfig wishes;
  EXPECT_EQ(resolve(wishes, kHost)->long_prefill_token_threshold, 64);
  EXPECT_EQ(resolve(wishes, kHost)->long_prompt_len, 4096);
  wishes.max_num_batched_tokens = 4;
  EXPECT_EQ(resolve(wishes, kHost)->long_prefill_token_threshold, 1);
  EXPECT_EQ(resolve(wishes, kHost)->long_prompt_len, 32);
  for (const int32_t given : {0, 100}) {
    wishes.long_prefill_token_threshold = given;
    EXPECT_EQ(resolve(wishes, kHost)->long_prefill_token_threshold, given);
    EXPECT_EQ(resolve(wishes, kHost)->long_prompt_len, 0);
  }
}

TEST(Resolve, RefusesContradictionsWithTheNumbers) {
  EngineConfig wishes;
  wishes.max_num_seqs = 64;
  wishes.max_num_batched_tokens = 32;
  EXPECT_THAT(error(wishes), HasSubstr("--max-num-batched-tokens: 32 is below --max-num-seqs 64"));

  wishes = {};
  wishes.enable_chunked_prefill = false;
  wishes.max_num_batched_tokens = 100;
  wishes.max_model_len = 200;
  EXPECT_THAT(error(wishes),
              HasSubstr("--max-num-batched-tokens: 100 is below the longest prompt, 200"));

  wishes = {};
  wishes.max_model_len = 9000;
  HostFacts host = kHost;
  host.model_max_len = 8192;
  EXPECT_EQ(error(wishes, host), "--max-model-len: 9000 is above the model's 8192");

  wishes = {};
  wishes.block_size = 24;
  EXPECT_EQ(error(wishes), "--block-size: 24 is not a multiple of 16");

  wishes = {};
  wishes.block_size = 64;
  wishes.kernel_block_size = 48;
  EXPECT_EQ(error(wishes), "--kernel-block-size: 48 does not divide --block-size 64");
  wishes.kernel_block_size = 128;
  EXPECT_EQ(error(wishes), "--kernel-block-size: 128 does not divide --block-size 64");
  wishes.kernel_block_size = 8;
  EXPECT_EQ(error(wishes), "--kernel-block-size: 8 is not a multiple of 16");
  wishes.kernel_block_size = 32;
  EXPECT_EQ(error(wishes), "");
}

TEST(Resolve, CudaIsOnlyTakenWhereThereIsOne) {
  EngineConfig wishes;
  wishes.device = "cuda";
  const auto refused = resolve(wishes, kHost);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  HostFacts host = kHost;
  host.has_cuda = true;
  EXPECT_EQ(resolve({}, host)->device, "cuda");
}

}  // namespace
}  // namespace warprow
