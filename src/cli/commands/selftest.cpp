// SPDX-License-Identifier: Apache-2.0
#include "cli/answer.h"
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/output.h"
#include "cli/update_queue.h"
#include "executor/executor.h"

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr int32_t kNumPrompts = 4;
constexpr size_t kPromptLen = 24;
constexpr int64_t kOutputLen = 32;
constexpr uint32_t kSeed = 1;
// The fraction of the released memory by which the device's own free memory must grow.
constexpr double kMinFreed = 0.95;

using Tokens = std::vector<std::vector<TokenId>>;

// The greedy answer to one prompt.
Result<std::vector<TokenId>> selftest_answer(Engine& engine,
                                             UpdateQueue& updates,
                                             std::vector<TokenId> prompt) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = kOutputLen;
  request.sampling.ignore_eos = true;
  Result<ValidRequest> valid = engine.validate(request);
  if (!valid) {
    return tl::unexpected(valid.error());
  }
  engine.submit(*std::move(valid), updates.callback());
  std::vector<TokenId> tokens;
  for (;;) {
    const std::optional<RequestUpdate> update = updates.take();
    if (!update || !update->error.empty()) {
      return fail(ErrorCode::kInternal, update ? update->error : "interrupted");
    }
    tokens.insert(tokens.end(), update->token_ids.begin(), update->token_ids.end());
    if (update->finish_reason != FinishReason::kNone) {
      return tokens;
    }
  }
}

// Answers to a few random prompts, one at a time: other requests in a batch may change the last bits of a result.
Result<Tokens> answers(Engine& engine, UpdateQueue& updates, uint32_t seed) {
  std::mt19937 random(seed);
  const auto vocab_size = static_cast<uint32_t>(engine.model_facts().vocab_size);
  Tokens tokens;
  for (int32_t i = 0; i < kNumPrompts; ++i) {
    std::vector<TokenId> prompt(kPromptLen);
    for (TokenId& token : prompt) {
      token = static_cast<TokenId>(random() % vocab_size);
    }
    Result<std::vector<TokenId>> got = selftest_answer(engine, updates, std::move(prompt));
    if (!got) {
      return tl::unexpected(got.error());
    }
    tokens.push_back(*std::move(got));
  }
  return tokens;
}

struct Round {
  const char* name;
  int level;
  std::vector<std::vector<std::string>> wakes;  // the tags of each wake-up
};

struct RoundOutcome {
  AnswerJson json;
  std::string text;
  bool good = false;
};

double mib(const AnswerJson& bytes) {
  return static_cast<double>(bytes.get<int64_t>()) / (1 << 20);
}

// One sleep and its wake-ups. Returns the reports of the first rank.
Result<AnswerJson> sleep_and_wake(Engine& engine, const Round& round) {
  const Result<std::vector<std::string>> slept = engine.sleep(round.level);
  if (!slept) {
    return tl::unexpected(slept.error());
  }
  AnswerJson json = {{"round", round.name},
                     {"sleep", AnswerJson::parse(slept->front())},
                     {"wake_up", AnswerJson::array()}};
  for (const std::vector<std::string>& tags : round.wakes) {
    const Result<std::vector<std::string>> woken = engine.wake_up(tags);
    if (!woken) {
      return tl::unexpected(woken.error());
    }
    json["wake_up"].push_back(AnswerJson::parse(woken->front()));
  }
  return json;
}

Result<RoundOutcome> check_round(Engine& engine,
                                 UpdateQueue& updates,
                                 const Round& round,
                                 const Tokens& expected) {
  const Result<AnswerJson> slept = sleep_and_wake(engine, round);
  if (!slept) {
    return tl::unexpected(slept.error());
  }
  const EngineStats before = engine.stats();
  const Result<Tokens> got = answers(engine, updates, kSeed);
  if (!got) {
    return tl::unexpected(got.error());
  }
  RoundOutcome outcome{*slept, "", false};
  const AnswerJson sleep = outcome.json["sleep"];
  const double given = mib(sleep["weights_bytes"]) + mib(sleep["kv_bytes"]);
  const double freed = mib(sleep["device_free_after"]) - mib(sleep["device_free_before"]);
  const bool measured = freed != 0.0;  // a CPU reports no free memory
  double wake_seconds = 0;
  for (const AnswerJson& wake : outcome.json["wake_up"]) {
    wake_seconds += wake["seconds"].get<double>();
  }
  const bool equal = *got == expected;
  const EngineStats after = engine.stats();
  outcome.good = equal && (!measured || freed >= kMinFreed * given);
  outcome.json["answers_equal"] = equal;
  outcome.json["graphs_replayed"] = after.graphs_full - before.graphs_full;
  outcome.json["graphs_captured"] = after.graph_captures - before.graph_captures;
  outcome.text = fmt::format(
      "{}: gave back {:.1f} MiB in {:.3f} s{}, woke in {:.3f} s, {} graphs replayed and {} "
      "captured "
      "after it, answers {}",
      round.name,
      given,
      sleep["seconds"].get<double>(),
      measured ? fmt::format(" (free memory rose by {:.1f} MiB)", freed) : "",
      wake_seconds,
      after.graphs_full - before.graphs_full,
      after.graph_captures - before.graph_captures,
      equal ? "equal" : "DIFFER");
  return outcome;
}

// Tests all kinds of sleep and wake-up, and compares greedy answers before and after.
Result<ExitCode> selftest_sleep(const Arguments& arguments) {
  CommandFrame frame(
      "selftest sleep", "put the engine to sleep, wake it up and compare answers", "MODEL [FLAGS]");
  frame.add_output_flag();
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  UpdateQueue updates;
  const std::unique_ptr<Engine> engine = load_engine(frame.config());
  // Run other prompts first, so that graphs are captured. The test prompts are then not in the prefix cache. They are
  // not in it after a wake-up either, unless the cache wrongly survives its memory.
  const Result<Tokens> others = answers(*engine, updates, kSeed + 1);
  const Result<Tokens> expected = others ? answers(*engine, updates, kSeed) : others;
  if (!expected) {
    return tl::unexpected(expected.error());
  }
  const Round rounds[] = {{"level 1", 1, {{}}},
                          {"level 2", 2, {{}}},
                          {"level 1 by tags", 1, {{"weights"}, {"kv_cache"}}},
                          {"level 2 by tags", 2, {{"kv_cache"}, {"weights"}}}};
  Output out(STDOUT_FILENO);
  bool good = true;
  for (const Round& round : rounds) {
    const Result<RoundOutcome> outcome = check_round(*engine, updates, round, *expected);
    if (!outcome) {
      return tl::unexpected(outcome.error());
    }
    out.write(frame.as_json() ? json_line(outcome->json) : outcome->text);
    out.end_line();
    good = good && outcome->good;
  }
  return out.status().map([good] { return good ? ExitCode::kOk : ExitCode::kInternal; });
}

}  // namespace

Result<ExitCode> run_selftest(const Arguments& arguments) {
  const std::string kind = arguments.empty() ? "" : arguments.front();
  if (kind == "sleep") {
    return selftest_sleep(Arguments(arguments.begin() + 1, arguments.end()));
  }
  if (kind == "-h" || kind == "--help") {
    fmt::print("usage: warprow selftest sleep MODEL [FLAGS]; it has its own --help\n");
    return ExitCode::kOk;
  }
  return fail(ErrorCode::kInvalidArgument, fmt::format("selftest: '{}' is not sleep", kind));
}

}  // namespace warprow
