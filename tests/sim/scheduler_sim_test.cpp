// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/schedule_check.h"
#include "sched/scheduler.h"
#include "tests/sim/page_watch.h"
#include "tests/sim/toy_device.h"
#include "wire/serialize.h"

#include <deque>
#include <map>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::PageWatch;
using testing::ToyDevice;
using testing::ToyModel;

constexpr TokenId kEos = 0;
constexpr TokenId kStopId = 1;

struct SchedulerSimCase {
  const char* name;
  ToyModel model;
  int32_t max_concurrent_steps = 2;
  int32_t num_stages = 1;
  SchedulerConfig::Policy policy = SchedulerConfig::Policy::kFcfs;
  int32_t num_blocks = 40;
  int32_t max_num_batched_tokens = 48;
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  bool fence_freed_blocks = false;
  bool over_the_wire = false;
  int32_t num_drafts = 0;
  TokenPages token_pages = {.page_size = 16};
  int32_t long_prefill_token_threshold = 0;
  int32_t long_prompt_len = 0;
  int64_t max_prefill_pairs = 0;
};

constexpr int32_t kMinDeepChunk = 3;

void PrintTo(const SchedulerSimCase& sim, std::ostream* os) { *os << sim.name; }

KvGroupSpec group_of(int32_t block_size, int32_t window = 0) {
  KvGroupSpec group;
  group.kind = window > 0 ? KvKind::kSlidingWindow : KvKind::kFull;
  group.window = window;
  group.block_size = block_size;
  return group;
}

ToyModel one_group() { return {{group_of(4)}, {0, 0}}; }
ToyModel hybrid(int32_t window_block_size = 4) {
  return {{group_of(4), group_of(window_block_size, 10)}, {0, 1, 0, 1}};
}

// Random arrivals, aborts and delayed outputs on the toy device. Every token is compared when it arrives.
class Simulation {
 public:
  Simulation(const SchedulerSimCase& sim, uint32_t seed)
      : sim_(sim),
        random_(seed),
        scheduler_(config()),
        device_(sim.model, 8, sim.num_blocks, sim.num_drafts, seed),
        check_(facts()),
        pages_(sim.token_pages.page_size) {}

  void run(int32_t num_steps) {
    while (scheduler_.stats().num_steps < num_steps && !::testing::Test::HasFatalFailure()) {
      while (live_.size() < 14 && chance(35)) {
        arrive();
      }
      if (!live_.empty() && chance(3)) {
        leave();
      }
      advance();
    }
    while (scheduler_.has_work() || scheduler_.num_in_flight() > 0) {
      advance();
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    EXPECT_TRUE(live_.empty());
    EXPECT_EQ(scheduler_.stats().num_kv_blocks_used, 0);
  }

  [[nodiscard]] SchedulerStats stats() const { return scheduler_.stats(); }
  [[nodiscard]] int32_t num_finished() const { return num_finished_; }
  [[nodiscard]] int32_t num_withheld() const { return num_withheld_; }
  [[nodiscard]] int32_t num_cut() const { return num_cut_; }
  [[nodiscard]] int32_t num_whole() const { return num_whole_; }
  [[nodiscard]] int32_t num_deep() const { return num_deep_; }
  [[nodiscard]] int32_t num_planned_ahead() const { return num_planned_ahead_; }

 private:
  struct Expected {
    std::vector<TokenId> outputs;
    FinishReason reason = FinishReason::kLength;
    TokenId stop_token_id = -1;
    size_t num_seen = 0;
  };
  struct InFlight {
    SchedulerOutput step;
    std::vector<RowId> withheld;
  };

  [[nodiscard]] SchedulerConfig config() const {
    SchedulerConfig config;
    config.max_num_seqs = 8;
    config.max_num_batched_tokens = sim_.max_num_batched_tokens;
    config.max_model_len = 100;
    config.enable_prefix_caching = sim_.enable_prefix_caching;
    config.enable_chunked_prefill = sim_.enable_chunked_prefill;
    config.policy = sim_.policy;
    config.max_concurrent_steps = sim_.max_concurrent_steps;
    config.num_stages = sim_.num_stages;
    config.num_drafts = sim_.num_drafts;
    config.fence_freed_blocks = sim_.fence_freed_blocks;
    config.kv = {sim_.model.groups, sim_.num_blocks};
    config.token_pages = sim_.token_pages;
    config.long_prefill_token_threshold = sim_.long_prefill_token_threshold;
    config.long_prompt_len = sim_.long_prompt_len;
    config.max_prefill_pairs = sim_.max_prefill_pairs;
    config.min_deep_chunk = kMinDeepChunk;
    return config;
  }

  [[nodiscard]] ModelFacts facts() const {
    const SchedulerConfig& config = scheduler_.config();
    ModelFacts facts;
    facts.max_num_seqs = config.max_num_seqs;
    facts.max_num_batched_tokens = config.max_num_batched_tokens;
    facts.kv = config.kv;
    facts.token_pages =
        token_pages_or_all(config.token_pages, config.max_num_seqs, config.max_row_len());
    return facts;
  }

  int32_t number(int32_t below) {
    return static_cast<int32_t>(random_() % static_cast<uint32_t>(below));
  }
  bool chance(int32_t percent) { return number(100) < percent; }

  // Prompts share one of three prefixes, cut at a random length.
  void arrive() {
    Request request;
    request.id = next_id_++;
    std::mt19937 shared(static_cast<uint32_t>(number(3)));
    for (int32_t i = number(45); i > 0; --i) {
      request.prompt.push_back(static_cast<TokenId>(shared() % 40));
    }
    for (int32_t i = number(4) == 0 ? 0 : number(12); i > 0 || request.prompt.empty(); --i) {
      request.prompt.push_back(number(40));
    }
    request.max_tokens = 1 + number(24);
    request.params.min_tokens = number(3) == 0 ? number(5) : 0;
    if (number(4) != 0) {
      request.eos_token_ids = {kEos};
    }
    request.stop_token_ids = {kStopId};
    request.priority = number(3);
    request.cache_salt = static_cast<uint64_t>(number(8) == 0);
    request.grammar = number(3) == 0 ? 0 : -1;
    if (scheduler_.add_request(request)) {
      live_[request.id] = expect(request);
    }
  }

  [[nodiscard]] Expected expect(const Request& request) const {
    Expected expected;
    const auto prompt_len = static_cast<int32_t>(request.prompt.size());
    const int32_t max_outputs = std::min(request.max_tokens, 100 - prompt_len);
    for (const TokenId token : sim_.model.generate(request.prompt, max_outputs)) {
      expected.outputs.push_back(token);
      const bool is_eos = !request.eos_token_ids.empty() && token == kEos;
      if (static_cast<int32_t>(expected.outputs.size()) > request.params.min_tokens &&
          (is_eos || token == kStopId)) {
        expected.reason = FinishReason::kStop;
        expected.stop_token_id = is_eos ? -1 : token;
        break;
      }
    }
    return expected;
  }

  // Ends a random request, by an abort or a stop string.
  void leave() {
    const auto it = std::next(live_.begin(), number(static_cast<int32_t>(live_.size())));
    EXPECT_TRUE(chance(50) ? scheduler_.abort_request(it->first)
                           : scheduler_.finish_request(it->first));
    live_.erase(it);
    scheduler_.check_invariants();
  }

  // Marks the masks of some rows as late. Their requests are held until the masks are ready.
  void withhold(InFlight& launched) {
    for (const RowId row : launched.step.grammar_rows) {
      if (chance(15) && scheduler_.grammar_of(row) >= 0) {
        scheduler_.withhold(row);
        scheduler_.check_invariants();
        launched.withheld.push_back(row);
        ++num_withheld_;
      }
    }
    GrammarOutput grammar;
    grammar.withheld_rows = launched.withheld;
    EXPECT_EQ(check_.add(grammar), "");
  }

  // Resumes random requests. This has no effect on a request that is not held.
  void resume_some() {
    for (const auto& [id, expected] : live_) {
      if (chance(40)) {
        scheduler_.resume(id);
      }
    }
  }

  void advance() {
    resume_some();
    const bool keep_back = scheduler_.num_in_flight() < sim_.max_concurrent_steps && chance(80);
    if (keep_back && scheduler_.schedule(step_)) {
      scheduler_.check_invariants();
      watch_long_prefills();
      watch_deep_chunks();
      watch_results();
      in_flight_.push_back({step_, {}});
      pages_.launch(step_);
      ASSERT_EQ(check_.add(step_), "");
      withhold(in_flight_.back());
      num_idle_ = 0;
      return;
    }
    if (in_flight_.empty()) {
      num_idle_ += scheduler_.has_work() && keep_back ? 1 : 0;
      ASSERT_LT(num_idle_, 50) << "nothing in flight, and nothing can advance";
      return;
    }
    collect();
  }

  // While any request without a long prefill runs, no long prefill gets more than its share.
  void watch_long_prefills() {
    std::map<RowId, int32_t> num_hit;
    for (const NewRow& row : step_.new_rows) {
      prefill_lens_[row.row] = row.prefill_len;
      num_hit[row.row] = row.num_computed_tokens;
    }
    const auto is_long = [this](const ScheduledRow& row, int32_t num_computed) {
      const int32_t len = prefill_lens_[row.row];
      return len > sim_.long_prompt_len && len - num_computed > sim_.long_prefill_token_threshold;
    };
    bool any_short = false;
    int32_t most = 0;
    for (const ScheduledRow& row : step_.scheduled) {
      // The prefix hit of a prompt is known only at admission.
      any_short = any_short || !is_long(row, row.num_computed_tokens - num_hit[row.row]);
      most = std::max(most, is_long(row, row.num_computed_tokens) ? row.num_tokens : 0);
    }
    if (sim_.long_prefill_token_threshold > 0 && most > 0) {
      ASSERT_TRUE(!any_short || most <= sim_.long_prefill_token_threshold) << most;
      num_cut_ += any_short ? 1 : 0;
      num_whole_ += most > sim_.long_prefill_token_threshold ? 1 : 0;
    }
  }

  void watch_deep_chunks() {
    if (sim_.max_prefill_pairs == 0) {
      return;
    }
    for (const ScheduledRow& row : step_.scheduled) {
      const int64_t pairs = int64_t{row.num_tokens} * row.num_computed_tokens;
      const bool is_prefill = row.num_computed_tokens < prefill_lens_[row.row];
      ASSERT_TRUE(!is_prefill || pairs <= sim_.max_prefill_pairs ||
                  row.num_tokens <= kMinDeepChunk);
      num_deep_ += is_prefill && pairs + row.num_computed_tokens > sim_.max_prefill_pairs ? 1 : 0;
    }
  }

  // A step waits for the results of its rows, and never for its own.
  void watch_results() {
    for (const NewRow& row : step_.new_rows) {
      sampled_step_[row.row] = 0;
    }
    ASSERT_LT(step_.results_through, step_.step);
    const int64_t taken = step_.step - scheduler_.num_in_flight();
    ASSERT_GE(step_.results_through, taken);
    for (const ScheduledRow& row : step_.scheduled) {
      int64_t& sampled = sampled_step_[row.row];
      ASSERT_GE(step_.results_through, sampled);
      num_planned_ahead_ += sampled > taken ? 1 : 0;
      sampled = row.num_logits > 0 ? step_.step : sampled;
    }
  }

  // The device runs a step only now. What the host did since the submission must not matter.
  void collect() {
    SchedulerOutput step = std::move(in_flight_.front().step);
    const std::vector<RowId> withheld = std::move(in_flight_.front().withheld);
    in_flight_.pop_front();
    pages_.collect();
    if (sim_.over_the_wire) {
      serialize(step, bytes_);
      ASSERT_TRUE(deserialize(bytes_, step));
    }
    ModelRunnerOutput out = device_.run(step, withheld);
    out.stats.num_toks = step.total_num_tokens;
    ASSERT_EQ(check_.add(out), "");
    if (sim_.over_the_wire) {
      serialize(out, bytes_);
      ASSERT_TRUE(deserialize(bytes_, out));
    }
    scheduler_.update_from_output(out, deltas_);
    scheduler_.check_invariants();
    for (const RequestDelta& delta : deltas_) {
      compare(delta, out);
    }
  }

  void compare(const RequestDelta& delta, const ModelRunnerOutput& out) {
    const auto it = live_.find(delta.id);
    ASSERT_NE(it, live_.end()) << "tokens for a request that ended";
    Expected& expected = it->second;
    for (int32_t i = 0; i < delta.tokens.count; ++i) {
      ASSERT_LT(expected.num_seen, expected.outputs.size());
      ASSERT_EQ(out.token_ids[static_cast<size_t>(delta.tokens.begin + i)],
                expected.outputs[expected.num_seen])
          << "request " << delta.id << ", output " << expected.num_seen;
      ++expected.num_seen;
    }
    const bool is_last = expected.num_seen == expected.outputs.size();
    ASSERT_EQ(delta.reason, is_last ? expected.reason : FinishReason::kNone);
    if (is_last) {
      ASSERT_EQ(delta.stop_token_id, expected.stop_token_id);
      live_.erase(it);
      ++num_finished_;
    }
  }

  const SchedulerSimCase& sim_;
  std::mt19937 random_;
  Scheduler scheduler_;
  ToyDevice device_;
  ScheduleCheck check_;
  PageWatch pages_;
  std::map<uint64_t, Expected> live_;
  std::deque<InFlight> in_flight_;
  SchedulerOutput step_;
  std::vector<RequestDelta> deltas_;
  std::vector<uint8_t> bytes_;
  uint64_t next_id_ = 1;
  int32_t num_finished_ = 0;
  int32_t num_withheld_ = 0;
  std::map<RowId, int32_t> prefill_lens_;
  std::map<RowId, int64_t> sampled_step_;
  int32_t num_planned_ahead_ = 0;  // rows whose last output the host had not taken
  int32_t num_cut_ = 0;            // steps with a long prefill beside other requests
  int32_t num_whole_ = 0;          // steps with a long prefill that got more than its share
  int32_t num_deep_ = 0;           // chunks that max_prefill_pairs shortened
  int32_t num_idle_ = 0;           // consecutive ticks in which nothing could advance
};

class SchedulerSim : public ::testing::TestWithParam<SchedulerSimCase> {};

TEST_P(SchedulerSim, EveryTokenIsTheOracles) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(GetParam(), seed);
    simulation.run(600);
    ASSERT_FALSE(HasFailure());
    // The run proves something only if each of these events occurred.
    const SchedulerStats stats = simulation.stats();
    EXPECT_GT(simulation.num_finished(), 50);
    EXPECT_GT(simulation.num_withheld(), 20);
    EXPECT_EQ(stats.num_drafted_tokens > 500, GetParam().num_drafts > 0);
    EXPECT_EQ(stats.num_accepted_tokens > 100, GetParam().num_drafts > 0);
    EXPECT_LE(stats.num_accepted_tokens, stats.num_drafted_tokens);
    EXPECT_EQ(simulation.num_cut() > 50, GetParam().long_prefill_token_threshold > 0);
    EXPECT_EQ(simulation.num_deep() > 20, GetParam().max_prefill_pairs > 0);
    EXPECT_EQ(simulation.num_whole() > 0, GetParam().long_prefill_token_threshold > 0);
    if (GetParam().max_concurrent_steps > GetParam().num_stages) {
      EXPECT_GT(simulation.num_planned_ahead(), 20);
    }
    EXPECT_GT(stats.num_preemptions, 0);
    EXPECT_GT(stats.num_mixed_steps, 50);
    EXPECT_EQ(stats.max_steps_in_flight, GetParam().max_concurrent_steps);
    EXPECT_EQ(stats.num_prefix_hit_tokens > 0, GetParam().enable_prefix_caching);
    EXPECT_EQ(stats.num_partial_prefill_steps > 0, GetParam().enable_chunked_prefill);
  }
}

constexpr auto kPriority = SchedulerConfig::Policy::kPriority;

INSTANTIATE_TEST_SUITE_P(
    Cases,
    SchedulerSim,
    ::testing::Values(
        SchedulerSimCase{.name = "Plain", .model = one_group(), .max_concurrent_steps = 1},
        SchedulerSimCase{.name = "Async", .model = one_group()},
        SchedulerSimCase{.name = "ThreeInFlight", .model = one_group(), .max_concurrent_steps = 3},
        SchedulerSimCase{
            .name = "TwoStages", .model = one_group(), .max_concurrent_steps = 2, .num_stages = 2},
        SchedulerSimCase{.name = "TwoStagesAsync",
                         .model = one_group(),
                         .max_concurrent_steps = 3,
                         .num_stages = 2,
                         .over_the_wire = true},
        SchedulerSimCase{.name = "FourStagesDrafts",
                         .model = hybrid(),
                         .max_concurrent_steps = 5,
                         .num_stages = 4,
                         .policy = kPriority,
                         .num_blocks = 70,
                         .num_drafts = 2},
        SchedulerSimCase{.name = "Priority", .model = one_group(), .policy = kPriority},
        SchedulerSimCase{
            .name = "LongPrefills", .model = one_group(), .long_prefill_token_threshold = 5},
        SchedulerSimCase{.name = "LongPromptsPriority",
                         .model = hybrid(),
                         .max_concurrent_steps = 3,
                         .policy = kPriority,
                         .num_blocks = 60,
                         .over_the_wire = true,
                         .num_drafts = 2,
                         .long_prefill_token_threshold = 4,
                         .long_prompt_len = 12},
        SchedulerSimCase{.name = "DeepPrompts", .model = one_group(), .max_prefill_pairs = 100},
        SchedulerSimCase{.name = "DeepAndLong",
                         .model = hybrid(),
                         .num_blocks = 60,
                         .num_drafts = 2,
                         .long_prefill_token_threshold = 6,
                         .long_prompt_len = 12,
                         .max_prefill_pairs = 60},
        SchedulerSimCase{
            .name = "WholePrompts", .model = one_group(), .enable_chunked_prefill = false},
        SchedulerSimCase{
            .name = "NoPrefixCache", .model = one_group(), .enable_prefix_caching = false},
        SchedulerSimCase{.name = "Fenced", .model = one_group(), .fence_freed_blocks = true},
        SchedulerSimCase{.name = "TinyBudget",
                         .model = one_group(),
                         .num_blocks = 32,
                         .max_num_batched_tokens = 7,
                         .over_the_wire = true},
        SchedulerSimCase{
            .name = "Hybrid", .model = hybrid(), .max_concurrent_steps = 1, .num_blocks = 60},
        SchedulerSimCase{
            .name = "HybridAsync", .model = hybrid(), .num_blocks = 60, .over_the_wire = true},
        SchedulerSimCase{.name = "HybridPriorityFenced",
                         .model = hybrid(),
                         .max_concurrent_steps = 3,
                         .policy = kPriority,
                         .num_blocks = 60,
                         .fence_freed_blocks = true},
        SchedulerSimCase{.name = "HybridTwoBlockSizes", .model = hybrid(2), .num_blocks = 70},
        SchedulerSimCase{
            .name = "WindowOnly", .model = {{group_of(4, 9)}, {0, 0}}, .num_blocks = 17},
        SchedulerSimCase{.name = "FewPages",
                         .model = one_group(),
                         .num_blocks = 400,
                         .token_pages = {.page_size = 8, .num_pages = 24}},
        SchedulerSimCase{.name = "FewPagesWindowOnly",
                         .model = {{group_of(4, 9)}, {0, 0}},
                         .max_concurrent_steps = 1,
                         .num_blocks = 200,
                         .over_the_wire = true,
                         .token_pages = {.page_size = 4, .num_pages = 40}},
        SchedulerSimCase{.name = "FewPagesFewBlocks",
                         .model = hybrid(),
                         .max_concurrent_steps = 3,
                         .num_blocks = 60,
                         .token_pages = {.page_size = 8, .num_pages = 24}},
        SchedulerSimCase{.name = "FewPagesDrafts",
                         .model = one_group(),
                         .num_blocks = 400,
                         .num_drafts = 3,
                         .token_pages = {.page_size = 8, .num_pages = 24}},
        SchedulerSimCase{
            .name = "OneDraft", .model = one_group(), .max_concurrent_steps = 1, .num_drafts = 1},
        SchedulerSimCase{.name = "DraftsAsync", .model = one_group(), .num_drafts = 3},
        SchedulerSimCase{.name = "DraftsThreeInFlight",
                         .model = one_group(),
                         .max_concurrent_steps = 3,
                         .num_drafts = 2},
        SchedulerSimCase{.name = "DraftsTinyBudget",
                         .model = one_group(),
                         .num_blocks = 29,
                         .max_num_batched_tokens = 7,
                         .over_the_wire = true,
                         .num_drafts = 4},
        SchedulerSimCase{.name = "DraftsWholePrompts",
                         .model = one_group(),
                         .enable_chunked_prefill = false,
                         .num_drafts = 4},
        SchedulerSimCase{.name = "DraftsHybridPriorityFenced",
                         .model = hybrid(),
                         .max_concurrent_steps = 3,
                         .policy = kPriority,
                         .num_blocks = 60,
                         .fence_freed_blocks = true,
                         .num_drafts = 4},
        SchedulerSimCase{.name = "DraftsHybridTwoBlockSizes",
                         .model = hybrid(2),
                         .num_blocks = 80,
                         .over_the_wire = true,
                         .num_drafts = 3},
        SchedulerSimCase{.name = "DraftsWindowOnly",
                         .model = {{group_of(4, 9)}, {0, 0}},
                         .num_blocks = 20,
                         .num_drafts = 3}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace warprow
