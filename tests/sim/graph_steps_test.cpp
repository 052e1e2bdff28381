// SPDX-License-Identifier: Apache-2.0
// Whole steps as graphs on a CPU, whose streams capture and replay like a GPU's. Tests graph hits and padding, and that
// no request's tokens change.
#include "tests/support/model_rig.h"
#include "tests/support/step_work.h"
#include "tests/support/temp_dir.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::expect_empty_steps_change_nothing;
using test::ModelRig;
using test::RigOptions;
using test::run_steps;

constexpr const char* kGraphConfig = R"({
  "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
  "vocab_size": 300, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})";

class GraphSteps : public ::testing::Test {
 protected:
  GraphSteps() { dir_.write("config.json", kGraphConfig); }

  [[nodiscard]] RigOptions options(const std::string& mode, const std::string& sizes) const {
    RigOptions options;
    options.config.model = dir_.path().string();
    options.config.load_format = "dummy";
    options.config.device = "cpu";
    options.config.dtype = "float32";
    options.config.max_model_len = 1024;
    options.config.max_num_seqs = 8;
    options.config.max_num_batched_tokens = 32;
    options.config.kv_cache_memory_bytes = 8 << 20;
    options.config.enable_prefix_caching = false;
    options.config.cudagraph_mode = mode;
    options.config.cudagraph_capture_sizes = sizes;
    options.device.num_threads = 1;
    options.device.mode = cpu::CpuStreamMode::kInline;
    return options;
  }

  static Request request(uint64_t id, int32_t prompt_len, int32_t max_tokens) {
    return test::numbered_request(id, prompt_len, max_tokens, 300);
  }

 private:
  test::TempDir dir_;
};

TEST_F(GraphSteps, FiveDecodesHitTheGraphOfEight) {
  ModelRig rig(options("full_and_piecewise", "1,2,4,8"));
  for (uint64_t id = 1; id <= 5; ++id) {
    rig.add(request(id, 4, 600));
  }
  run_steps(rig, 10);  // prefill, and the two uses before a graph exists
  const ExecutorStats before = rig.executor().stats();
  run_steps(rig, 512);
  const ExecutorStats after = rig.executor().stats();
  EXPECT_EQ(after.graphs_full - before.graphs_full,
            2 * 512);  // the forward graph and the sampling graph
  EXPECT_EQ(after.graphs_eager, before.graphs_eager);
  EXPECT_EQ(after.graphs_piecewise, before.graphs_piecewise);
  EXPECT_EQ(after.graph_captures, before.graph_captures);
  EXPECT_EQ(after.padded_toks - before.padded_toks, 3 * 512);
}

TEST_F(GraphSteps, NineDecodesRunEagerly) {
  RigOptions wide = options("full_and_piecewise", "1,2,4,8");
  wide.config.max_num_seqs = 16;
  ModelRig rig(wide);
  for (uint64_t id = 1; id <= 9; ++id) {
    rig.add(request(id, 3, 100));
  }
  run_steps(rig, 5);
  const ExecutorStats before = rig.executor().stats();
  run_steps(rig, 20);
  const ExecutorStats after = rig.executor().stats();
  EXPECT_EQ(after.graphs_eager - before.graphs_eager, 20);
  EXPECT_EQ(after.graphs_full, before.graphs_full);
  EXPECT_EQ(after.padded_toks, before.padded_toks);
}

// Steps with chunked prefill and decode under every policy. Tokens are equal, and steps run in the way that the policy
// names.
TEST_F(GraphSteps, MixedStepsYieldWhatEagerOnesDo) {
  const auto tokens = [this](const std::string& mode, ExecutorStats& stats) {
    ModelRig rig(options(mode, "1,2,4,8,16,32"));
    for (uint64_t id = 1; id <= 12; ++id) {
      rig.add(request(id, 10 + 13 * static_cast<int32_t>(id), 30));
    }
    std::vector<std::vector<TokenId>> all;
    for (const auto& [id, result] : rig.run()) {
      all.push_back(result.tokens);
    }
    EXPECT_GT(rig.scheduler().stats().num_mixed_steps, 20);
    stats = rig.executor().stats();
    return all;
  };
  ExecutorStats stats;
  const auto expected = tokens("none", stats);
  EXPECT_EQ(stats.graphs_full + stats.graphs_piecewise + stats.graphs_eager, 0);
  EXPECT_EQ(stats.padded_toks, 0);

  EXPECT_EQ(tokens("full", stats), expected);
  EXPECT_GT(stats.graphs_full, 40);
  EXPECT_EQ(stats.graphs_piecewise, 0);
  EXPECT_EQ(tokens("full_and_piecewise", stats), expected);
  EXPECT_GT(stats.graphs_full, 40);
  EXPECT_GT(stats.graphs_piecewise, 10);
  EXPECT_EQ(tokens("piecewise", stats), expected);
  EXPECT_GT(stats.graphs_piecewise, 40);
  EXPECT_EQ(tokens("full_decode_only", stats), expected);
  EXPECT_GT(stats.graphs_full, 20);
  EXPECT_EQ(stats.graphs_piecewise, 0);
}

TEST_F(GraphSteps, EmptyStepsChangeNoState) {
  for (const char* mode : {"full", "piecewise"}) {
    ModelRig rig(options(mode, "1,2,4,8,16,32"));
    rig.add(request(1, 20, 30));
    run_steps(rig, 6);
    expect_empty_steps_change_nothing(rig, {1, 6, 32});
    EXPECT_EQ(rig.run().at(1).tokens.size(), 30U);
  }
}

}  // namespace
}  // namespace warprow
