// SPDX-License-Identifier: Apache-2.0
// Masks are filled and sampling is submitted while the forward of the same step runs. The test checks the order of
// events on a device that it blocks, so the machine's load cannot change the result.
// tests/golden/grammar_overlap_test.cpp measures the time saved.
#include "engine/grammar_source.h"
#include "tests/support/model_rig.h"
#include "tests/support/random_model.h"
#include "tests/support/rig_grammars.h"
#include "tests/support/step_work.h"
#include "tests/support/temp_dir.h"
#include "text/byte_text.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

class GrammarOverlap : public ::testing::Test {
 protected:
  static constexpr uint64_t kStructured = 1;
  static constexpr int32_t kTokens = 24;

  GrammarOverlap() {
    GrammarSource source(*text_);
    grammar_ = value_or_throw(source.compile({GrammarKind::kRegex, "[a-z ]{600,}"}));
    options_.config.model = test::RandomModel{.seed = 31}.write(dir_);
    options_.config.device = "cpu";
    options_.config.max_model_len = 128;
    options_.config.max_num_seqs = 4;
    options_.config.max_num_batched_tokens = 64;
    options_.config.kv_cache_memory_bytes = int64_t{8} << 20;
    options_.device.mode = cpu::CpuStreamMode::kThreaded;
    options_.device.num_threads = 1;
  }

  // One row with a grammar and two without.
  void add_requests(test::ModelRig& rig) const {
    rig.add(request(kStructured), *grammar_);
    rig.add(request(2));
    rig.add(request(3));
  }

  test::RigOptions options_;
  std::optional<Grammar> grammar_;

 private:
  static Request request(uint64_t id) { return test::numbered_request(id, 6, kTokens, 250); }

  test::TempDir dir_;
  std::unique_ptr<TextModel> text_ = value_or_throw(make_byte_text());
};

TEST_F(GrammarOverlap, MasksAreFilledWhileTheForwardRuns) {
  test::ModelRig plain(options_);
  add_requests(plain);
  const std::vector<TokenId> expected = plain.run().at(kStructured).tokens;
  ASSERT_EQ(expected.size(), kTokens);

  test::ModelRig rig(options_);
  add_requests(rig);
  const std::vector<TokenId>& tokens = rig.results().at(kStructured).tokens;
  Executor& executor = rig.executor();
  while (tokens.empty() || executor.num_outstanding() != 1) {
    rig.tick();
  }
  while (tokens.size() + 2 < kTokens) {
    // The previous step has completed but its tokens were not taken. So the next mask cannot be filled yet.
    while (!executor.output_ready()) {
      std::this_thread::yield();
    }
    rig.device().set_gate(false);
    const int64_t commands = rig.device().num_commands_run();
    const size_t before = tokens.size();
    // Takes its tokens, then submits the whole step: forward, masks, sampling.
    while (tokens.size() == before || executor.num_outstanding() != 1) {
      ASSERT_TRUE(rig.tick());
    }
    EXPECT_FALSE(executor.forward_done());
    // Only the step whose event was observed as reached may count as late.
    EXPECT_LE(rig.device().num_commands_run(), commands + 1);
    rig.device().set_gate(true);
  }
  EXPECT_EQ(rig.run().at(kStructured).tokens, expected);
  EXPECT_EQ(rig.num_withheld(), 0);
  test::expect_in_grammar(expected, *grammar_);
}

}  // namespace
}  // namespace warprow
