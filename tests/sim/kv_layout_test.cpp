// SPDX-License-Identifier: Apache-2.0
// Whole steps with every layout of the KV cache. No request's tokens change.
#include "tests/support/model_rig.h"
#include "tests/support/step_work.h"
#include "tests/support/temp_dir.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::ModelRig;
using test::RigOptions;

// Three of four layers have a window: four groups of one layer.
constexpr const char* kConfig = R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 4,
  "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
  "intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "use_sliding_window": true, "sliding_window": 24, "max_window_layers": 2})";

std::vector<std::vector<TokenId>> tokens_with(const KvLayout& layout, bool prefix_caching) {
  const test::TempDir dir;
  dir.write("config.json", kConfig);
  RigOptions options;
  options.config.model = dir.path().string();
  options.config.load_format = "dummy";
  options.config.device = "cpu";
  options.config.max_model_len = 256;
  options.config.max_num_seqs = 8;
  options.config.max_num_batched_tokens = 48;
  options.config.block_size = 32;
  options.config.kernel_block_size = 16;
  options.config.kv_cache_memory_bytes = 1 << 20;
  options.config.enable_prefix_caching = prefix_caching;
  options.device.num_threads = 1;
  options.device.mode = cpu::CpuStreamMode::kInline;
  options.kv_layout = layout;
  ModelRig rig(options);
  for (uint64_t id = 1; id <= 9; ++id) {
    rig.add(test::numbered_request(id, 20 + 9 * static_cast<int32_t>(id % 5), 40, 300));
  }
  std::vector<std::vector<TokenId>> all;
  for (const auto& [id, result] : rig.run()) {
    all.push_back(result.tokens);
  }
  EXPECT_EQ(rig.executor().model_facts().kv.groups[0].layout, layout);
  EXPECT_GT(rig.executor().model_facts().kv.groups.size(), 1U);
  EXPECT_GT(rig.scheduler().stats().num_mixed_steps, 0);
  rig.scheduler().check_invariants();
  return all;
}

TEST(KvLayouts, GiveTheSameTokens) {
  const std::vector<std::vector<TokenId>> expected = tokens_with({}, false);
  for (const KvOrder order : {KvOrder::kHND, KvOrder::kNHD}) {
    for (const bool apart : {false, true}) {
      for (const bool by_block : {false, true}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(order)) + std::to_string(apart) +
                     std::to_string(by_block));
        EXPECT_EQ(tokens_with({order, apart, by_block}, apart != by_block), expected);
      }
    }
  }
}

}  // namespace
}  // namespace warprow
