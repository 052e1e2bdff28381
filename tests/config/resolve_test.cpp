// SPDX-License-Identifier: Apache-2.0
#include "config/resolve.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::HasSubstr;

constexpr HostFacts kHost{.usable_cores = 6, .usable_memory_bytes = int64_t{4} << 30};

std::string error(const EngineConfig& config, const HostFacts& host = kHost) {
  const auto resolved = resolve(config, host);
  return resolved ? "" : resolved.error().message;
}

TEST(Resolve, DecidesWhatWasLeftOpen) {
  const auto resolved = resolve({}, kHost);
  ASSERT_TRUE(resolved);
  EXPECT_EQ(resolved->device, "cpu");
  EXPECT_EQ(resolved->threads, 6);
  EXPECT_EQ(resolved->max_num_seqs, 64);
  EXPECT_EQ(resolved->max_num_batched_tokens, 512);
  EXPECT_EQ(resolved->target_itl_ms, 15);
  EXPECT_EQ(resolved->kv_cache_memory_bytes, int64_t{1} << 30);
  EXPECT_EQ(resolved->max_model_len, 0);
}

TEST(Resolve, TheKvCacheIsTwoGibibytesOnALargeMachine) {
  const auto resolved = resolve({}, {.usable_cores = 1, .usable_memory_bytes = int64_t{64} << 30});
  ASSERT_TRUE(resolved);
  EXPECT_EQ(resolved->kv_cache_memory_bytes, int64_t{2} << 30);
}

TEST(Resolve, WhatTheUserSetStays) {
  EngineConfig config;
  config.threads = 2;
  config.max_num_seqs = 3;
  config.max_num_batched_tokens = 16;
  config.kv_cache_memory_bytes = 1 << 20;
  const auto resolved = resolve(config, kHost);
  ASSERT_TRUE(resolved);
  EXPECT_EQ(resolved->threads, 2);
  EXPECT_EQ(resolved->max_num_seqs, 3);
  EXPECT_EQ(resolved->max_num_batched_tokens, 16);
  EXPECT_EQ(resolved->kv_cache_memory_bytes, 1 << 20);
}

TEST(Resolve, AnOpenValueFollowsTheGivenOne) {
  EngineConfig config;
  config.max_num_batched_tokens = 16;
  EXPECT_EQ(resolve(config, kHost)->max_num_seqs, 16);
  config = {};
  config.max_num_seqs = 1000;
  EXPECT_EQ(resolve(config, kHost)->max_num_batched_tokens, 1000);
  config = {};
  config.enable_chunked_prefill = false;
  config.max_model_len = 2048;
  EXPECT_EQ(resolve(config, kHost)->max_num_batched_tokens, 2048);
}

TEST(Resolve, OfflineRunsHaveLargeStepsOnALargeGpu) {
  HostFacts host = kHost;
  EngineConfig config;
  config.offline = true;
  EXPECT_EQ(resolve(config, host)->max_num_batched_tokens, 512);
  EXPECT_EQ(resolve(config, host)->target_itl_ms, 0);
  host.has_cuda = true;
  host.gpu_memory_bytes = int64_t{24} << 30;
  EXPECT_EQ(resolve(config, host)->max_num_batched_tokens, 8192);
  host.gpu_memory_bytes = int64_t{80} << 30;
  EXPECT_EQ(resolve(config, host)->max_num_batched_tokens, 32768);
  config.max_num_batched_tokens = 4096;
  EXPECT_EQ(resolve(config, host)->max_num_batched_tokens, 4096);
  config = {};
  EXPECT_EQ(resolve(config, host)->max_num_batched_tokens, 8192);
}

TEST(Resolve, LongPrefillsFollowTheStep) {
  EngineConfig config;
  EXPECT_EQ(resolve(config, kHost)->long_prefill_token_threshold, 64);
  EXPECT_EQ(resolve(config, kHost)->long_prompt_len, 4096);
  config.max_num_batched_tokens = 4;
  EXPECT_EQ(resolve(config, kHost)->long_prefill_token_threshold, 1);
  EXPECT_EQ(resolve(config, kHost)->long_prompt_len, 32);
  for (const int32_t given : {0, 100}) {
    config.long_prefill_token_threshold = given;
    EXPECT_EQ(resolve(config, kHost)->long_prefill_token_threshold, given);
    EXPECT_EQ(resolve(config, kHost)->long_prompt_len, 0);
  }
}

TEST(Resolve, RefusesContradictionsWithTheNumbers) {
  EngineConfig config;
  config.max_num_seqs = 64;
  config.max_num_batched_tokens = 32;
  EXPECT_THAT(error(config), HasSubstr("--max-num-batched-tokens: 32 is below --max-num-seqs 64"));

  config = {};
  config.enable_chunked_prefill = false;
  config.max_num_batched_tokens = 100;
  config.max_model_len = 200;
  EXPECT_THAT(error(config),
              HasSubstr("--max-num-batched-tokens: 100 is below the longest prompt, 200"));

  config = {};
  config.max_model_len = 9000;
  HostFacts host = kHost;
  host.model_max_len = 8192;
  EXPECT_EQ(error(config, host), "--max-model-len: 9000 is above the model's 8192");

  config = {};
  config.block_size = 24;
  EXPECT_EQ(error(config), "--block-size: 24 is not a multiple of 16");

  config = {};
  config.block_size = 64;
  config.kernel_block_size = 48;
  EXPECT_EQ(error(config), "--kernel-block-size: 48 does not divide --block-size 64");
  config.kernel_block_size = 128;
  EXPECT_EQ(error(config), "--kernel-block-size: 128 does not divide --block-size 64");
  config.kernel_block_size = 8;
  EXPECT_EQ(error(config), "--kernel-block-size: 8 is not a multiple of 16");
  config.kernel_block_size = 32;
  EXPECT_EQ(error(config), "");
}

TEST(Resolve, CudaIsOnlyTakenWhereThereIsOne) {
  EngineConfig config;
  config.device = "cuda";
  const auto refused = resolve(config, kHost);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  HostFacts host = kHost;
  host.has_cuda = true;
  EXPECT_EQ(resolve({}, host)->device, "cuda");
}

TEST(Resolve, BatchInvarianceIsOnWhereItCostsLittle) {
  EXPECT_EQ(resolve({}, kHost)->batch_invariant, true) << "a CPU is always";
  HostFacts host = kHost;
  host.has_cuda = true;
  const auto of = [&](int32_t capability, const char* backend) {
    host.compute_capability = capability;
    EngineConfig config;
    config.attention_backend = backend;
    return resolve(config, host)->batch_invariant;
  };
  EXPECT_EQ(of(90, "auto"), true);
  EXPECT_EQ(of(90, "native"), true);
  EXPECT_EQ(of(90, "native+flashinfer"), false);
  EXPECT_EQ(of(80, "auto"), false);
  EXPECT_EQ(of(100, "auto"), false);

  EngineConfig config;
  config.batch_invariant = true;
  host.compute_capability = 80;
  EXPECT_EQ(resolve(config, host)->batch_invariant, true);
  config.batch_invariant = false;
  host.compute_capability = 90;
  EXPECT_EQ(resolve(config, host)->batch_invariant, false);
}

}  // namespace
}  // namespace warprow
