// SPDX-License-Identifier: Apache-2.0
#include "cli/answer.h"
#include "cli/command.h"
#include "cli/command_frame.h"
#include "cli/output.h"
#include "cli/update_queue.h"
#include "executor/executor.h"

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr int32_t kNumPrompts = 8;
constexpr int32_t kPromptLen = 24;
constexpr int64_t kOutputLen = 32;
// The part of what was given back that must show in the device's own figure.
constexpr double kMinFreed = 0.95;

using Tokens = std::vector<std::vector<TokenId>>;

// Greedy answers to a few random prompts, all at once. A prefix cache that outlived its memory would
// change the second round.
Result<Tokens> answers(Engine& engine, UpdateQueue& updates) {
  std::mt19937 random(1);
  std::map<RequestId, size_t> place;
  for (int32_t i = 0; i < kNumPrompts; ++i) {
    std::vector<TokenId> prompt;
    for (int32_t t = 0; t < kPromptLen; ++t) {
      prompt.push_back(
          static_cast<TokenId>(random() % static_cast<uint32_t>(engine.model_facts().vocab_size)));
    }
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0.0;
    request.sampling.max_tokens = kOutputLen;
    request.sampling.ignore_eos = true;
    Result<ValidRequest> valid = engine.validate(request);
    if (!valid) {
      return tl::unexpected(valid.error());
    }
    place.emplace(engine.submit(*std::move(valid), updates.callback()), place.size());
  }
  Tokens tokens(place.size());
  for (size_t open = place.size(); open > 0;) {
    const std::optional<RequestUpdate> update = updates.take();
    if (!update) {
      return fail(ErrorCode::kInternal, "interrupted");
    }
    std::vector<TokenId>& answer = tokens[place.at(update->id)];
    answer.insert(answer.end(), update->token_ids.begin(), update->token_ids.end());
    open -= update->finish_reason != FinishReason::kNone ? 1 : 0;
    if (!update->error.empty()) {
      return fail(ErrorCode::kInternal, update->error);
    }
  }
  return tokens;
}

struct Round {
  const char* name;
  int level;
  std::vector<std::vector<std::string>> wakes;  // the tags of each wake-up
};

struct Outcome {
  AnswerJson json;
  std::string text;
  bool good = false;
};

double mib(const AnswerJson& bytes) {
  return static_cast<double>(bytes.get<int64_t>()) / (1 << 20);
}

// One sleep and its wake-ups; reports of the first rank.
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

Result<Outcome> check_round(Engine& engine,
                            UpdateQueue& updates,
                            const Round& round,
                            const Tokens& expected) {
  const Result<AnswerJson> slept = sleep_and_wake(engine, round);
  if (!slept) {
    return tl::unexpected(slept.error());
  }
  const EngineStats before = engine.stats();
  const Result<Tokens> got = answers(engine, updates);
  if (!got) {
    return tl::unexpected(got.error());
  }
  Outcome outcome{*slept, "", false};
  const AnswerJson sleep = outcome.json["sleep"];
  const double given = mib(sleep["weights_bytes"]) + mib(sleep["kv_bytes"]);
  const double freed = mib(sleep["device_free_after"]) - mib(sleep["device_free_before"]);
  const bool measured = freed != 0.0;  // a CPU gives no figure
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

// Sleeps and wakes up in every way, and compares greedy answers before and after.
Result<ExitCode> selftest_sleep(const Arguments& arguments) {
  CommandFrame frame("selftest sleep",
                     "gives memory back and takes it again, and compares answers",
                     "MODEL [FLAGS]");
  frame.add_output_flag();
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  UpdateQueue updates;
  const std::unique_ptr<Engine> engine = load_engine(frame.config());
  Result<Tokens> expected = answers(*engine, updates);
  expected = expected ? answers(*engine, updates) : expected;  // with graphs captured
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
    const Result<Outcome> outcome = check_round(*engine, updates, round, *expected);
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
