// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/replay.h"

#include "cli/replay/replay_executor.h"
#include "cli/replay/step_recorder.h"
#include "cli/replay/used_ids.h"
#include "cli/verify/verify_cases.h"
#include "cli/verify/verify_load.h"
#include "engine/engine.h"
#include "executor/executor_wrapper.h"
#include "executor/make_executor.h"
#include "tests/support/source_path.h"
#include "wire/serialize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// Preempts, hits prefixes and cuts prompts.
EngineConfig tiny_config(const char* model = "llama_gqa_tied") {
  EngineConfig config;
  config.model = test::source_path(std::string("tests/golden/tiny/") + model);
  config.load_format = "dummy";  // these models have no tokenizer
  config.device = "cpu";
  config.threads = 1;
  config.max_model_len = 200;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 48;
  config.kv_cache_memory_bytes = int64_t{96} << 10;
  return config;
}

constexpr VerifyLoad kReplayLoad = {.num_requests = 24, .max_input_len = 120, .output_len = 24};

// For all messages of a test: its steps are shorter than those of any model, and none may be lost.
constexpr size_t kQueueLength = 40000;

struct Recorded {
  ModelFacts facts;
  EngineStats stats;
};

class ReplayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::ranges::replace(name, '/', '_');
    path_ = ::testing::TempDir() + "replay_" + name;
    remove();
  }
  void TearDown() override { remove(); }
  void remove() const {
    std::filesystem::remove(path_);
    std::filesystem::remove(path_ + ".old");
  }

  Recorded record(const EngineConfig& config,
                  const std::function<void(Engine& engine)>& drive,
                  int64_t max_bytes = int64_t{64} << 20,
                  bool with_ids = true) const {
    Recorded recorded;
    const std::unique_ptr<Engine> engine =
        load_engine(config, [&](std::unique_ptr<Executor> inner) {
          recorded.facts = inner->model_facts();
          return make_step_recorder(std::move(inner),
                                    value_or_throw(StepFileWriter::create(path_, max_bytes, "{}")),
                                    {.with_ids = with_ids, .queue_length = kQueueLength});
        });
    drive(*engine);
    recorded.stats = engine->stats();
    return recorded;
  }

  [[nodiscard]] ReplayReport replay_on(const ModelFacts& facts, Executor* executor) const {
    const Result<StepFile> file = StepFile::open(path_);
    EXPECT_TRUE(file);
    const Result<ReplayReport> report = replay(*file, facts, executor);
    EXPECT_TRUE(report) << report.error().message;
    if (report->wrong_schedule) {
      ADD_FAILURE() << report->wrong_schedule->step << ": " << report->wrong_schedule->what;
    }
    return *report;
  }

  // Writes the recording again, changed or without the messages for which `edit` returns false.
  void rewrite(const std::function<bool(StepMessage, std::vector<uint8_t>&)>& edit) const {
    Result<StepFile> file = StepFile::open(path_);
    ASSERT_TRUE(file);
    StepFileWriter writer = value_or_throw(StepFileWriter::create(path_, int64_t{64} << 20, "{}"));
    for (const StepFileRecord& record : file->records()) {
      std::vector<uint8_t> bytes(record.bytes.begin(), record.bytes.end());
      if (edit(record.message, bytes)) {
        ASSERT_TRUE(writer.append(record.message, record.number, bytes));
      }
    }
  }

  std::string path_;
};

void run_load(Engine& engine, VerifyOrder order, const VerifyLoad& load = kReplayLoad) {
  const auto requests = draw_requests(load, engine.model_facts().vocab_size);
  EXPECT_TRUE(run_case(engine, order, requests, [](int64_t) {}));
}

void run_varied_load(Engine& engine) {
  run_load(engine, VerifyOrder::kStaggered);
  run_load(engine, VerifyOrder::kNeighbours);
  run_load(engine, VerifyOrder::kAfterSleep);
}

std::string text_of(const std::optional<ReplayFinding>& finding) {
  return finding ? std::to_string(finding->step) + ": " + finding->what : "none";
}

// Another token in one row of one step: the first step from `first_step` on in which row `batch_idx` of the batch has one
// token. Which step that is depends on when requests arrive.
class PlantedToken final : public ExecutorWrapper {
 public:
  PlantedToken(std::unique_ptr<Executor> inner, int64_t first_step, size_t batch_idx)
      : ExecutorWrapper(std::move(inner)), first_step_(first_step), batch_idx_(batch_idx) {}
  void take_output(ModelRunnerOutput& output) override {
    inner().take_output(output);
    if (planted_step >= 0 || output.step < first_step_ || output.rows.size() <= batch_idx_) {
      return;
    }
    const RowOutput& row = output.rows[batch_idx_];
    if (row.tokens.count == 1) {
      TokenId& token = output.token_ids[static_cast<size_t>(row.tokens.begin)];
      was = token;
      token = (token + 1) % inner().model_facts().vocab_size;
      is = token;
      planted_step = output.step;
      planted_row = index_of(row.row);
    }
  }

  int64_t planted_step = -1;
  int32_t planted_row = -1;
  TokenId was = -1;
  TokenId is = -1;

 private:
  int64_t first_step_;
  size_t batch_idx_;
};

class ReplayModels : public ReplayTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(ReplayModels, NothingDiffers) {
  const EngineConfig config = tiny_config(GetParam());
  const Recorded recorded = record(config, run_varied_load);
  EXPECT_GT(recorded.stats.prefix_hit_tokens, 0);
  EXPECT_GT(recorded.stats.partial_prefill_steps, 0);
  const std::unique_ptr<Executor> executor = make_executor(config);
  const ReplayReport report = replay_on(recorded.facts, executor.get());
  EXPECT_FALSE(report.first_difference) << text_of(report.first_difference);
  EXPECT_EQ(report.num_steps_run, report.num_steps);
  EXPECT_EQ(report.num_gaps, 0);
  EXPECT_EQ(report.num_left_out, 0);
  EXPECT_EQ(report.num_recomputed, 0);
  EXPECT_GE(report.num_requests, 4 * 24);
  EXPECT_GT(report.num_outputs, 3 * 24 * 24);
}

TEST_P(ReplayModels, RowsFromBeforeTheRecordingAreLeftOut) {
  const EngineConfig config = tiny_config(GetParam());
  Recorded recorded;
  ReplayReport report;
  // Whether rows run where the recording begins, and which blocks they use later, depends on the timing. Each attempt
  // adds a load at the end, which moves the beginning.
  for (int attempt = 0; attempt < 20; ++attempt) {
    recorded = record(
        config,
        [attempt](Engine& engine) {
          for (int i = 0; i < 6; ++i) {
            run_varied_load(engine);
          }
          for (int i = 0; i < attempt; ++i) {
            run_load(engine, VerifyOrder::kStaggered);
          }
        },
        kMinStepFileBytes);
    // One that has replayed has the rows of the recording's last step.
    const std::unique_ptr<Executor> executor = make_executor(config);
    report = replay_on(recorded.facts, executor.get());
    EXPECT_GT(report.first_step, 1);
    EXPECT_GT(report.num_outputs, 1000);
    EXPECT_FALSE(report.first_difference) << text_of(report.first_difference);
    // A row whose window skips cached blocks is left out too.
    const bool has_window = recorded.facts.kv.groups.back().kind != KvKind::kFull;
    if (!has_window) {
      EXPECT_LE(report.num_left_out, config.max_num_seqs);
    }
    if (report.num_left_out > 0 && (report.num_recomputed > 0 || has_window)) {
      return;
    }
  }
  FAIL() << report.num_left_out << " rows left out, " << report.num_recomputed << " tokens again";
}

INSTANTIATE_TEST_SUITE_P(
    Tiny,
    ReplayModels,
    ::testing::Values("llama_gqa_tied", "mistral_window", "qwen3_moe", "qwen3_two_groups"));

TEST_F(ReplayTest, NothingDiffersWithPreemption) {
  EngineConfig config = tiny_config();
  config.kv_cache_memory_bytes = 2048 * 30;  // 30 blocks of 2 layers x 2 x 16 x 2 x 8 x 2 bytes
  const Recorded recorded = record(config, run_varied_load);
  EXPECT_GT(recorded.stats.preemptions, 0);
  const std::unique_ptr<Executor> executor = make_executor(config);
  const ReplayReport report = replay_on(recorded.facts, executor.get());
  EXPECT_FALSE(report.first_difference) << text_of(report.first_difference);
  EXPECT_EQ(report.num_left_out, 0);
}

TEST_F(ReplayTest, NothingDiffersUnderGrammars) {
  const auto drive = [](Engine& engine) {
    std::vector<GenerationRequest> requests =
        draw_requests(kReplayLoad, engine.model_facts().vocab_size);
    for (size_t i = 0; i < requests.size(); i += 2) {
      requests[i].sampling.structured_output =
          StructuredOutput{GrammarKind::kRegex, "[a-z]{3,9}( [a-z]{3,9}){2,40}"};
    }
    EXPECT_TRUE(run_case(engine, VerifyOrder::kTogether, requests, [](int64_t) {}));
  };
  EngineConfig config = tiny_config();
  config.grammar_mask_delay_us = 200;  // so that some rows are withheld
  const Recorded recorded = record(config, drive);
  EXPECT_GT(recorded.stats.withheld_rows, 0);
  const std::unique_ptr<Executor> executor = make_executor(config);
  const ReplayReport report = replay_on(recorded.facts, executor.get());
  EXPECT_FALSE(report.first_difference) << text_of(report.first_difference);
  EXPECT_EQ(report.num_steps_run, report.num_steps);
}

TEST_F(ReplayTest, APlantedTokenIsFoundInItsStepAndRow) {
  const Recorded recorded = record(tiny_config(), run_varied_load);
  for (const auto& [step, batch_idx] : {std::pair<int64_t, size_t>{20, 0}, {77, 3}, {200, 1}}) {
    PlantedToken planted(make_executor(tiny_config()), step, batch_idx);
    const ReplayReport report = replay_on(recorded.facts, &planted);
    ASSERT_GE(planted.planted_step, step);
    ASSERT_TRUE(report.first_difference);
    EXPECT_EQ(report.first_difference->step, planted.planted_step);
    EXPECT_EQ(report.first_difference->row, planted.planted_row);
    EXPECT_EQ(
        report.first_difference->what,
        "token 0 is " + std::to_string(planted.is) + " instead of " + std::to_string(planted.was));
    EXPECT_EQ(report.num_different, 1);
  }
}

TEST_F(ReplayTest, TenThousandSteps) {
  EngineConfig config = tiny_config();
  config.max_num_seqs = 4;
  const VerifyLoad load{.num_requests = 430, .max_input_len = 60, .output_len = 100};
  const Recorded recorded =
      record(config, [&](Engine& engine) { run_load(engine, VerifyOrder::kTogether, load); });
  constexpr int64_t kStep = 8765;
  PlantedToken planted(make_executor(config), kStep, 2);
  const ReplayReport report = replay_on(recorded.facts, &planted);
  ASSERT_GE(planted.planted_step, kStep);
  ASSERT_TRUE(report.first_difference);
  EXPECT_EQ(report.first_difference->step, planted.planted_step);
  EXPECT_EQ(report.first_difference->row, planted.planted_row);
  EXPECT_EQ(report.num_different, 1);
  EXPECT_GE(report.num_steps, 10000);
  EXPECT_EQ(report.num_steps_run, report.num_steps);
}

TEST_F(ReplayTest, OfALargeCacheOnlyWhatWasUsedIsNeeded) {
  EngineConfig config = tiny_config();
  config.kv_cache_memory_bytes = int64_t{64} << 20;
  config.enable_prefix_caching = false;  // else every free block has its turn
  const VerifyLoad load{.num_requests = 4, .max_input_len = 60, .output_len = 10};
  const Recorded recorded =
      record(config, [&](Engine& engine) { run_load(engine, VerifyOrder::kTogether, load); });
  const Result<StepFile> file = StepFile::open(path_);
  ASSERT_TRUE(file);
  const Result<UsedIds> used = used_ids(*file);
  ASSERT_TRUE(used);
  EXPECT_GT(used->num_blocks, 4);
  EXPECT_GT(used->num_token_pages, 4);
  RecordedRun run;
  run.with_ids = true;
  run.config = config;
  run.facts = recorded.facts;
  const Result<std::unique_ptr<Executor>> executor = make_replay_executor(run, *used, {});
  ASSERT_TRUE(executor) << executor.error().message;
  EXPECT_GE((*executor)->model_facts().kv.num_blocks, used->num_blocks);
  EXPECT_LT((*executor)->model_facts().kv.num_blocks, recorded.facts.kv.num_blocks / 10);
  const ReplayReport report = replay_on(recorded.facts, executor->get());
  EXPECT_FALSE(report.first_difference) << text_of(report.first_difference);
  EXPECT_GE(report.num_requests, 4);

  const UsedIds more{recorded.facts.kv.num_blocks, int64_t{1} << 30};
  const Result<std::unique_ptr<Executor>> refused = make_replay_executor(run, more, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("token pages"), std::string::npos);
}

TEST_F(ReplayTest, OtherWeightsDiffer) {
  // One bit of every recorded logprob.
  const Recorded recorded = record(tiny_config(), run_varied_load);
  rewrite([](StepMessage message, std::vector<uint8_t>& bytes) {
    ModelRunnerOutput output;
    if (message == StepMessage::kOutput && deserialize(bytes, output)) {
      for (TokenLogprobs& token : output.logprobs) {
        token.logprob = -std::abs(token.logprob) * (1.0F + 1e-6F);
      }
      serialize(output, bytes);
    }
    return true;
  });
  const std::unique_ptr<Executor> executor = make_executor(tiny_config());
  const ReplayReport report = replay_on(recorded.facts, executor.get());
  ASSERT_TRUE(report.first_difference);
  EXPECT_NE(report.first_difference->what.find("logprobs of token 0 differ"), std::string::npos);
  EXPECT_GT(report.num_different, 10);
}

TEST_F(ReplayTest, GoesOnBehindAGap) {
  const Recorded recorded = record(tiny_config(), run_varied_load);
  rewrite([](StepMessage message, std::vector<uint8_t>& bytes) {
    SchedulerOutput step;
    return !(message == StepMessage::kStep && deserialize(bytes, step) && step.step % 150 == 70);
  });
  const std::unique_ptr<Executor> executor = make_executor(tiny_config());
  const ReplayReport report = replay_on(recorded.facts, executor.get());
  EXPECT_GE(report.num_gaps, 2);
  EXPECT_GT(report.num_left_out, 0);
  EXPECT_GT(report.num_outputs, 1000);
  EXPECT_FALSE(report.first_difference) << text_of(report.first_difference);
}

TEST_F(ReplayTest, WithoutIdsTheScheduleIsChecked) {
  const Recorded recorded = record(tiny_config(), run_varied_load, int64_t{64} << 20, false);
  const ReplayReport report = replay_on(recorded.facts, nullptr);
  EXPECT_FALSE(report.did_run);
  EXPECT_TRUE(report.is_same());
  EXPECT_GT(report.num_steps, 100);
  const Result<StepFile> file = StepFile::open(path_);
  ASSERT_TRUE(file);
  int64_t num_hashes = 0;
  for (const StepFileRecord& record : file->records()) {
    SchedulerOutput step;
    ModelRunnerOutput output;
    if (deserialize(record.bytes, step)) {
      EXPECT_TRUE(step.token_ids.empty());
    }
    if (deserialize(record.bytes, output)) {
      EXPECT_TRUE(std::ranges::all_of(output.token_ids, [](TokenId id) { return id == 0; }));
    }
    num_hashes += std::ssize(record.hashes);
  }
  EXPECT_GT(num_hashes, 3 * 24 * 24);
}

TEST_F(ReplayTest, AWrongScheduleIsNamed) {
  const Recorded recorded = record(tiny_config(), run_varied_load);
  rewrite([](StepMessage message, std::vector<uint8_t>& bytes) {
    SchedulerOutput step;
    // A step without rows, which only frees some, has the number of the step before it.
    if (message == StepMessage::kStep && deserialize(bytes, step) && step.step == 50 &&
        !step.scheduled.empty()) {
      step.scheduled.front().num_computed_tokens += 1;
      serialize(step, bytes);
    }
    return true;
  });
  const Result<StepFile> file = StepFile::open(path_);
  ASSERT_TRUE(file);
  const Result<ReplayReport> report = replay(*file, recorded.facts, nullptr);
  ASSERT_TRUE(report && report->wrong_schedule);
  EXPECT_EQ(report->wrong_schedule->step, 50);
  EXPECT_NE(report->wrong_schedule->what.find("were computed and confirmed"), std::string::npos);
}

}  // namespace
}  // namespace warprow
