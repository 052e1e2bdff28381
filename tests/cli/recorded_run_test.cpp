// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/recorded_run.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(RecordedRun, IsReadAsItWasDescribed) {
  RecordedRun run;
  run.version = "1.2";
  run.with_ids = true;
  run.model_hash = 0xfedcba9876543210;
  run.backends = "native";
  run.config.model = "smollm2";
  run.config.block_size = 32;
  run.config.enable_prefix_caching = false;
  run.config.gpu_memory_utilization = 0.5;
  run.facts.vocab_size = 256;
  run.facts.max_num_seqs = 8;
  run.facts.kv.num_blocks = 77;
  KvGroupSpec& group = run.facts.kv.groups.emplace_back();
  group.kind = KvKind::kSlidingWindow;
  group.window = 10;
  group.block_size = 32;
  run.facts.token_pages = {1024, 9};
  const Result<RecordedRun> read = read_description(describe(run));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(describe(*read), describe(run));
  EXPECT_EQ(read->config.block_size, 32);
  EXPECT_EQ(read->facts.kv.groups[0].window, 10);
  EXPECT_FALSE(read_description("{}"));
  EXPECT_FALSE(read_description("nonsense"));
}

}  // namespace
}  // namespace warprow
