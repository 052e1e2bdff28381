// SPDX-License-Identifier: Apache-2.0
#include "config/fields.h"

#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::HasSubstr;

std::string set_error(const char* name, const char* text) {
  EngineConfig config;
  const Field* field = find_field(name);
  EXPECT_NE(field, nullptr) << name;
  const Result<void> done = set_field(config, *field, text, std::string("--") + name);
  return done ? "" : done.error().message;
}

TEST(Fields, TheIssuesFlagsAreAllThere) {
  for (const char* name : {"model",
                           "dtype",
                           "load-format",
                           "max-model-len",
                           "max-num-seqs",
                           "max-num-batched-tokens",
                           "block-size",
                           "kernel-block-size",
                           "kv-cache-memory-bytes",
                           "enable-prefix-caching",
                           "enable-chunked-prefill",
                           "async-scheduling",
                           "threads",
                           "device",
                           "log-level",
                           "log-format"}) {
    EXPECT_NE(find_field(name), nullptr) << name;
  }
  EXPECT_EQ(find_field("max_model_len"), find_field("max-model-len"));
  EXPECT_EQ(find_field("max-modell-len"), nullptr);
}

TEST(Fields, NamesAreUniqueAndEveryFieldIsDescribed) {
  std::set<std::string> names;
  for_each_field([&](const Field& field) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_NE(*field.help, '\0') << field.name;
    EXPECT_NE(*field.group, '\0') << field.name;
    EXPECT_LE(field.min, field.max) << field.name;
  });
}

TEST(Fields, EveryDefaultReadsBackAsItself) {
  const EngineConfig defaults;
  for_each_field([&](const Field& field) {
    EngineConfig config;
    const std::string text = field_text(defaults, field);
    EXPECT_TRUE(set_field(config, field, text, "x")) << field.name << " = " << text;
    EXPECT_EQ(field_text(config, field), text) << field.name;
  });
}

TEST(Fields, EnvironmentNames) {
  EXPECT_EQ(environment_name(*find_field("max-model-len")), "WARPROW_MAX_MODEL_LEN");
  EXPECT_EQ(environment_name(*find_field("threads")), "WARPROW_THREADS");
}

TEST(Fields, ReadsEachType) {
  EngineConfig config;
  const auto set = [&](const char* name, const char* text) {
    const Result<void> done = set_field(config, *find_field(name), text, name);
    ASSERT_TRUE(done) << done.error().message;
  };
  set("model", "smollm2");
  set("max-model-len", "32k");
  set("kv-cache-memory-bytes", "24MiB");
  set("seed", "7");
  set("enable-prefix-caching", "Off");
  set("async-scheduling", "0");
  set("threads", "auto");
  set("scheduling-policy", "Priority");
  set("long-prefill-token-threshold", "0");
  EXPECT_EQ(config.model, "smollm2");
  EXPECT_EQ(config.max_model_len, 32'000);
  EXPECT_EQ(config.kv_cache_memory_bytes, 24 << 20);
  EXPECT_EQ(config.seed, 7U);
  EXPECT_FALSE(config.enable_prefix_caching);
  EXPECT_FALSE(config.async_scheduling);
  EXPECT_EQ(config.threads, 0);
  EXPECT_EQ(config.scheduling_policy, "priority");
  EXPECT_EQ(config.long_prefill_token_threshold, 0);
  set("long-prefill-token-threshold", "1k");
  EXPECT_EQ(config.long_prefill_token_threshold, 1000);
  set("max-logprobs", "-1");
  EXPECT_EQ(config.max_logprobs, -1);
  set("max-logprobs", "0");
  EXPECT_EQ(config.max_logprobs, 0);
  set("long-prefill-token-threshold", "auto");
  EXPECT_EQ(config.long_prefill_token_threshold, kAutoPrefillThreshold);
}

TEST(Fields, ErrorsNameFlagValueAndLimit) {
  EXPECT_EQ(set_error("block-size", "8"), "--block-size: 8 is below the least allowed, 16");
  EXPECT_EQ(set_error("block-size", "40"), "--block-size: 40 is not a multiple of 16");
  EXPECT_EQ(set_error("max-num-seqs", "1M"), "--max-num-seqs: 1M is above the most allowed, 65536");
  EXPECT_EQ(set_error("dtype", "fp8"), "--dtype: 'fp8' is none of auto|float32|bfloat16");
  EXPECT_EQ(set_error("dtype", ""), "--dtype: '' is none of auto|float32|bfloat16");
  EXPECT_EQ(set_error("async-scheduling", "maybe"),
            "--async-scheduling: 'maybe' is neither true nor false");
  EXPECT_THAT(set_error("threads", "two"), HasSubstr("--threads: 'two' is not a number"));
  EXPECT_THAT(set_error("block-size", "auto"), HasSubstr("'auto' is not a number"));
  EXPECT_EQ(set_error("scheduling-policy", "lifo"),
            "--scheduling-policy: 'lifo' is none of fcfs|priority");
  EXPECT_THAT(set_error("long-prefill-token-threshold", "-1"), HasSubstr("'-1' is not a number"));
  EXPECT_EQ(set_error("long-prefill-token-threshold", "100M"),
            "--long-prefill-token-threshold: 100M is above the most allowed, 16777216");
  EXPECT_THAT(set_error("max-num-seqs", "-1"), HasSubstr("'-1' is not a number"));
  EXPECT_THAT(set_error("max-logprobs", "-2"), HasSubstr("'-2' is not a number"));
}

TEST(Fields, AFailedSetLeavesTheValue) {
  EngineConfig config;
  EXPECT_FALSE(set_field(config, *find_field("block-size"), "17", "x"));
  EXPECT_EQ(config.block_size, 16);
}

}  // namespace
}  // namespace warprow
