// SPDX-License-Identifier: Apache-2.0
// A feature that uses every hook, in steps that run eagerly, in pieces and as whole graphs. Each hook is called as
// often as expected, the feature's memory and tables work, and no request's tokens change.
#include "device/cpu/cpu_stream.h"
#include "runner/operations.h"
#include "runner/rows.h"
#include "tests/support/model_rig.h"
#include "tests/support/step_work.h"
#include "tests/support/temp_dir.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::ModelRig;
using test::RigOptions;
using test::RigResult;

constexpr const char* kHookConfig = R"({
  "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
  "vocab_size": 300, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})";

// Device counters that launches add to.
enum Counter : int32_t { kBeforeLayers, kBeforeSample, kAfterRows, kAfterEvent, kNumCounters };

// Calls on the host, by hook.
struct Calls {
  int64_t added = 0, removed = 0, staged = 0, votes = 0, keys = 0;
  int64_t before_forward = 0, before_layers = 0, after_forward = 0;
  int64_t prepare_sample = 0, before_sample = 0, after_rows = 0, after_sample = 0;
  int64_t after_event = 0, outputs = 0;
  int64_t expected_sum = 0;  // sum of the rows' tags over all steps
  int64_t vetoes = 0;        // steps that the feature forced to run eagerly
};

constexpr int64_t kOwnBytes = 1024;  // counters; a multiple of the arena's alignment

class EveryHook final : public RunnerFeature {
 public:
  EveryHook(const RunnerParts& parts, Calls& calls)
      : calls_(calls),
        num_rows_(parts.limits.max_num_seqs),
        counters_(reinterpret_cast<int64_t*>(parts.arenas.workspace->alloc_bytes(kOwnBytes))),
        tags_(parts.arenas.state->alloc<int32_t>(num_rows_)),
        table_(parts.staged_tables->add(tags_, 1, num_rows_, num_rows_)),
        tag_of_row_(static_cast<size_t>(num_rows_)) {
    parts.operations->add("every_hook", [this](const std::string& argument) {
      return argument + ":" + std::to_string(counters_[std::stoi(argument)]);
    });
    if (!parts.device->shape_only()) {
      std::fill_n(counters_, kNumCounters, 0);
    }
  }

  void on_row_added(const NewRow& row, const SchedulerOutput& step, StagedWrites& staged) override {
    ++calls_.added;
    const int32_t tag = step.token_ids.at(static_cast<size_t>(row.tokens.begin)) + 1;
    tag_of_row_[static_cast<size_t>(index_of(row.row))] = tag;
    staged.stage_struct(table_, row.row, tag);
  }
  void on_row_removed(RowId /*row*/) override { ++calls_.removed; }
  void stage(const SchedulerOutput& step, StagedWrites& /*staged*/) override {
    ++calls_.staged;
    step_ = step.step;
  }
  void vote(StepVote& vote) override {
    ++calls_.votes;
    vote.mark_forward = true;
    if (step_ % 7 == 0) {
      vote.eager = true;
      ++calls_.vetoes;
    }
  }
  [[nodiscard]] uint64_t graph_key(StepPart part) const override {
    ++calls_.keys;
    return part == StepPart::kForward ? uint64_t{1} << 40 : uint64_t{1} << 41;
  }
  void before_forward(Stream& /*stream*/, const InputBatch& batch) override {
    ++calls_.before_forward;
    for (const ScheduledRow& row : batch.rows) {
      calls_.expected_sum += tag_of_row_[static_cast<size_t>(index_of(row.row))];
    }
  }
  void before_layers(Stream& stream, const InputBatch& batch) override {
    ++calls_.before_layers;
    add_tags(stream, batch, kBeforeLayers);
  }
  void after_forward(Stream& /*stream*/, const InputBatch& /*batch*/) override {
    ++calls_.after_forward;
  }
  void prepare_sample(const InputBatch& batch,
                      const GrammarOutput* /*grammar*/,
                      int32_t /*entry*/) override {
    ++calls_.prepare_sample;
    device_rows_ = batch.device;
  }
  void before_sample(Stream& stream, const LogitsShare& /*logits*/) override {
    ++calls_.before_sample;
    add_one(stream, kBeforeSample);
  }
  void after_rows(Stream& stream, const InputBatch& batch) override {
    ++calls_.after_rows;
    add_tags(stream, batch, kAfterRows);
  }
  void after_sample(Stream& /*stream*/, const InputBatch& /*batch*/) override {
    ++calls_.after_sample;
  }
  void after_event(Stream& stream, const InputBatch& /*batch*/) override {
    ++calls_.after_event;
    add_one(stream, kAfterEvent);
  }
  void on_output(ModelRunnerOutput& /*output*/) override { ++calls_.outputs; }

 private:
  // Adds up the tags of the step's rows, on the device.
  void add_tags(Stream& stream, const InputBatch& batch, Counter counter) const {
    if (stream.device().shape_only()) {
      return;
    }
    cpu::as_cpu(stream).launch(
        "every_hook",
        [rows = batch.device, n = num_rows_, tags = tags_, to = counters_ + counter](
            cpu::ComputePool&) {
          for (int32_t i = 0; i < n && rows.idx_mapping[i] >= 0; ++i) {
            *to += tags[rows.idx_mapping[i]];
          }
        });
  }
  void add_one(Stream& stream, Counter counter) const {
    cpu::as_cpu(stream).launch("every_hook",
                               [to = counters_ + counter](cpu::ComputePool&) { ++*to; });
  }

  Calls& calls_;
  int32_t num_rows_;
  int64_t* counters_;  // workspace, [kNumCounters]
  int32_t* tags_;      // state, [max_num_seqs]  the row's first token + 1
  int32_t table_;
  std::vector<int32_t> tag_of_row_;
  StepRows device_rows_;
  int64_t step_ = 0;
};

RigOptions rig_options(const test::TempDir& dir, const std::string& mode) {
  RigOptions options;
  options.config.model = dir.path().string();
  options.config.load_format = "dummy";
  options.config.device = "cpu";
  options.config.dtype = "float32";
  options.config.max_model_len = 256;
  options.config.max_num_seqs = 8;
  options.config.max_num_batched_tokens = 32;
  options.config.kv_cache_memory_bytes = 8 << 20;
  options.config.cudagraph_mode = mode;
  options.config.cudagraph_capture_sizes = "1,2,4,8,32";
  options.device.num_threads = 1;
  options.device.mode = cpu::CpuStreamMode::kInline;
  return options;
}

std::map<uint64_t, RigResult> run_hooks(ModelRig& rig) {
  for (uint64_t id = 1; id <= 12; ++id) {
    const auto i = static_cast<int32_t>(id);
    rig.add(test::numbered_request(id, 3 + 5 * i, 6 + 3 * i, 300));
  }
  return rig.run();
}

class EveryHookTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Modes,
                         EveryHookTest,
                         ::testing::Values("none", "piecewise", "full"),
                         [](const auto& mode) { return mode.param; });

TEST_P(EveryHookTest, IsCalledInEveryStep) {
  test::TempDir dir;
  dir.write("config.json", kHookConfig);
  const RigOptions plain = rig_options(dir, GetParam());
  ModelRig without(plain);
  const std::map<uint64_t, RigResult> expected = run_hooks(without);

  Calls calls;
  RigOptions options = plain;
  options.runner.features.extra = {
      [&calls](const RunnerParts& parts) { return std::make_unique<EveryHook>(parts, calls); }};
  ModelRig rig(options);
  const auto counted = [&rig](Counter counter) {
    const std::string number = std::to_string(counter);
    const std::string answer = rig.call("every_hook", number);
    EXPECT_EQ(answer.substr(0, number.size() + 1), number + ":");
    return std::stoll(answer.substr(number.size() + 1));
  };
  int64_t before[kNumCounters];  // planning and warm-up call hooks too
  for (int32_t i = 0; i < kNumCounters; ++i) {
    before[i] = counted(static_cast<Counter>(i));
  }
  calls = {};
  const std::map<uint64_t, RigResult> results = run_hooks(rig);
  ASSERT_EQ(results.size(), expected.size());
  for (const auto& [id, result] : expected) {
    EXPECT_EQ(result.tokens, results.at(id).tokens) << id;
  }

  const int64_t steps = calls.staged;
  const int64_t num_requests = static_cast<int64_t>(expected.size());
  EXPECT_GT(steps, 40);
  EXPECT_EQ(calls.added, num_requests);
  EXPECT_GE(calls.removed,
            num_requests - 8);  // the last rows would be removed by a step that never runs
  for (const int64_t each : {calls.votes,
                             calls.before_forward,
                             calls.after_forward,
                             calls.prepare_sample,
                             calls.after_sample,
                             calls.after_event,
                             calls.outputs}) {
    EXPECT_EQ(each, steps);
  }
  EXPECT_GT(calls.vetoes, 3);
  if (GetParam() == "none") {
    EXPECT_EQ(calls.before_layers, steps);
    EXPECT_EQ(calls.keys, 0);
  } else {  // a captured launch is enqueued once and then replayed
    EXPECT_GT(calls.keys, 0);
    EXPECT_LT(calls.after_rows, steps - 20);
    EXPECT_EQ(calls.before_layers < steps - 20, GetParam() == "full");
    EXPECT_GT(rig.executor().stats().graphs_full, 20);
  }
  // The device counts every step, whether enqueued or replayed.
  EXPECT_GT(calls.expected_sum, 0);
  EXPECT_EQ(counted(kBeforeLayers) - before[kBeforeLayers], calls.expected_sum);
  EXPECT_EQ(counted(kAfterRows) - before[kAfterRows], calls.expected_sum);
  EXPECT_GT(counted(kBeforeSample) - before[kBeforeSample], steps / 2);
  EXPECT_EQ(counted(kAfterEvent) - before[kAfterEvent], steps);
}

TEST(EveryHookMemory, IsPlannedToTheByte) {
  test::TempDir dir;
  dir.write("config.json", kHookConfig);
  const RigOptions options = rig_options(dir, "none");
  Calls calls;
  RunnerOptions runner;
  const MemoryPlan without =
      value_or_throw(plan_model(options.config, this_machine(), runner)).memory;
  runner.features.extra = {
      [&calls](const RunnerParts& parts) { return std::make_unique<EveryHook>(parts, calls); }};
  const MemoryPlan with = value_or_throw(plan_model(options.config, this_machine(), runner)).memory;
  // Allocations are aligned to 256 bytes; the arena's end is not.
  constexpr int64_t kTagBytes = 8 * sizeof(int32_t);
  EXPECT_GE(with.workspace_bytes - without.workspace_bytes, kOwnBytes);
  EXPECT_LT(with.workspace_bytes - without.workspace_bytes, kOwnBytes + 256);
  EXPECT_GE(with.state_bytes - without.state_bytes, kTagBytes);
  EXPECT_LT(with.state_bytes - without.state_bytes, kTagBytes + 256);
}

}  // namespace
}  // namespace warprow
