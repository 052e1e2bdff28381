// SPDX-License-Identifier: Apache-2.0
// The runs of `generate` against an engine without a model.
#include "cli/commands/batch_run.h"
#include "cli/commands/single_run.h"
#include "tests/cli/captured_output.h"
#include "tests/cli/fake_engine.h"

#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

GenerationRequest request_for(const std::string& prompt) {
  GenerationRequest request;
  request.prompt = prompt;
  return request;
}

std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    out.push_back(nlohmann::json::parse(line));
  }
  return out;
}

class Runs : public ::testing::Test {
 protected:
  Runs() { updates_.watch_signals(); }

  Result<ExitCode> run_lines(FakeEngine& engine, const std::string& text, int64_t max_tokens = 16) {
    std::istringstream lines(text);
    SamplingOptions defaults;
    defaults.max_tokens = max_tokens;
    BatchRun batch(engine, updates_, options_, out_.output());
    return batch.run(lines, defaults, 0);
  }

  UpdateQueue updates_;
  RunOptions options_;
  CapturedOutput out_;
};

TEST_F(Runs, TextIsStreamedAndEndsItsLine) {
  FakeEngine engine;
  EXPECT_EQ(*run_single(engine, updates_, request_for("hi"), options_, out_.output()),
            ExitCode::kOk);
  EXPECT_EQ(out_.text(), "<hi>\n");
}

TEST_F(Runs, JsonHasTheStatsOnlyIfAsked) {
  FakeEngine engine;
  options_.format = AnswerFormat::kJson;
  EXPECT_EQ(*run_single(engine, updates_, request_for("hi"), options_, out_.output()),
            ExitCode::kOk);
  options_.stats = true;
  EXPECT_EQ(*run_single(engine, updates_, request_for("ho"), options_, out_.output()),
            ExitCode::kOk);
  const auto lines = json_lines(out_.text());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["choices"][0]["text"], "<hi>");
  EXPECT_EQ(lines[0]["prompt_token_ids"], (std::vector<int>{'h', 'i'}));
  EXPECT_FALSE(lines[0].contains("stats"));
  EXPECT_EQ(lines[1]["stats"]["steps"], 2);
}

GenerationRequest several(const std::string& prompt, int64_t n) {
  GenerationRequest request = request_for(prompt);
  request.sampling.n = n;
  request.sampling.seed = 7;
  return request;
}

TEST_F(Runs, ChoicesAreWrittenOneAfterTheOther) {
  FakeEngine engine(true);  // the second choice ends before the first
  EXPECT_EQ(*run_single(engine, updates_, several("hi", 2), options_, out_.output()),
            ExitCode::kOk);
  EXPECT_EQ(out_.text(), "== 1 of 2 ==\n<hi:7>\n== 2 of 2 ==\n<hi:8>\n");
}

TEST_F(Runs, ChoicesHaveTheirPlaceInTheJson) {
  FakeEngine engine(true);
  options_.format = AnswerFormat::kJson;
  EXPECT_EQ(*run_single(engine, updates_, several("hi", 4), options_, out_.output()),
            ExitCode::kOk);
  const auto lines = json_lines(out_.text());
  ASSERT_EQ(lines.size(), 1U);
  ASSERT_EQ(lines[0]["choices"].size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(lines[0]["choices"][i]["index"], i);
    EXPECT_EQ(lines[0]["choices"][i]["text"], "<hi:" + std::to_string(7 + i) + ">");
  }
  EXPECT_EQ(lines[0]["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(lines[0]["usage"]["completion_tokens"], 25);
}

TEST_F(Runs, CtrlCAbortsEveryChoice) {
  FakeEngine engine;
  EXPECT_EQ(*run_single(engine, updates_, several("ctrl-c", 3), options_, out_.output()),
            ExitCode::kInterrupted);
  EXPECT_EQ(engine.num_aborted, 3);
}

TEST_F(Runs, ARefusedFieldIsAWrongValueNotAWrongModel) {
  EXPECT_EQ(exit_code_of(refused_request({ErrorCode::kUnsupported, ""}).code), ExitCode::kUsage);
  EXPECT_EQ(exit_code_of(refused_request({ErrorCode::kOutOfMemory, ""}).code), ExitCode::kMemory);
}

TEST_F(Runs, ARefusedRequestIsAnError) {
  FakeEngine engine;
  GenerationRequest request = request_for("hi");
  request.sampling.temperature = 5;
  const auto code = run_single(engine, updates_, request, options_, out_.output());
  ASSERT_FALSE(code);
  EXPECT_EQ(exit_code_of(code.error().code), ExitCode::kUsage);
  EXPECT_EQ(engine.num_submitted, 0U);
}

TEST_F(Runs, AFailedRequestIsExitCodeOne) {
  FakeEngine engine;
  EXPECT_EQ(*run_single(engine, updates_, request_for("fail"), options_, out_.output()),
            ExitCode::kRequestFailed);
}

TEST_F(Runs, CtrlCAbortsAndKeepsWhatCame) {
  FakeEngine engine;
  EXPECT_EQ(*run_single(engine, updates_, request_for("ctrl-c"), options_, out_.output()),
            ExitCode::kInterrupted);
  EXPECT_EQ(engine.num_aborted, 1);
  EXPECT_EQ(out_.text(), "par\n");
}

TEST_F(Runs, AReaderThatWentAwayEndsTheRunQuietly) {
  std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  Output closed(ends[1]);
  FakeEngine engine;
  EXPECT_EQ(*run_single(engine, updates_, request_for("hang"), options_, closed), ExitCode::kOk);
  EXPECT_EQ(engine.num_aborted, 1);
  close(ends[1]);
}

TEST_F(Runs, AFullDiskIsAnError) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  Output out(fileno(full));
  FakeEngine engine;
  const auto code = run_single(engine, updates_, request_for("hi"), options_, out);
  ASSERT_FALSE(code);
  EXPECT_EQ(exit_code_of(code.error().code), ExitCode::kInternal);
  std::fclose(full);
}

TEST_F(Runs, BatchResultsComeInTheOrderOfTheLines) {
  FakeEngine engine(true);
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text += R"({"prompt":"p)" + std::to_string(i) + "\"}\n";
  }
  EXPECT_EQ(*run_lines(engine, text), ExitCode::kOk);
  const auto lines = json_lines(out_.text());
  ASSERT_EQ(lines.size(), 20U);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(lines[static_cast<size_t>(i)]["choices"][0]["text"], "<p" + std::to_string(i) + ">");
  }
}

TEST_F(Runs, ABadLineGetsItsErrorInItsPlaceAndTheRestRun) {
  FakeEngine engine;
  EXPECT_EQ(*run_lines(engine,
                       "{\"prompt\":\"a\"}\n"
                       "\n"
                       "{\"prompt\":\"b\",\"foo\":1}\n"
                       "not json\n"
                       "{\"prompt\":\"c\",\"top_p\":7}\n"
                       "{\"prompt\":\"fail\"}\r\n"
                       "{\"prompt\":\"d\"}"),
            ExitCode::kRequestFailed);
  const auto lines = json_lines(out_.text());
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0]["choices"][0]["text"], "<a>");
  EXPECT_EQ(lines[1]["error"]["message"], "line 3: unknown field 'foo'");
  EXPECT_EQ(lines[1]["error"]["type"], "invalid_request_error");
  EXPECT_EQ(lines[2]["error"]["message"], "line 4: not a JSON object");
  EXPECT_THAT(lines[3]["error"]["message"].get<std::string>(),
              ::testing::HasSubstr("line 5: top_p"));
  EXPECT_EQ(lines[4]["error"]["code"], 500);
  EXPECT_EQ(lines[5]["choices"][0]["text"], "<d>");
}

TEST_F(Runs, LinesMayAskForSeveralChoices) {
  FakeEngine engine(true);
  EXPECT_EQ(*run_lines(engine,
                       "{\"prompt\":\"a\",\"n\":2,\"seed\":1}\n"
                       "{\"prompt\":\"b\"}\n"
                       "{\"prompt\":\"c\",\"n\":2,\"temperature\":0}\n"
                       "{\"prompt\":\"fail\",\"n\":2}\n"
                       "{\"prompt\":\"d\",\"n\":2,\"seed\":5}\n"
                       "{\"prompt\":\"e\"}\n"),
            ExitCode::kRequestFailed);
  const auto lines = json_lines(out_.text());
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0]["choices"].size(), 2U);
  EXPECT_EQ(lines[0]["choices"][1]["text"], "<a:2>");
  EXPECT_EQ(lines[1]["choices"][0]["text"], "<b>");
  EXPECT_THAT(lines[2]["error"]["message"].get<std::string>(),
              ::testing::HasSubstr("line 3: n: 2"));
  EXPECT_EQ(lines[3]["error"]["message"], "the toy broke");
  EXPECT_EQ(lines[4]["choices"].size(), 2U);
  EXPECT_EQ(lines[4]["choices"][1]["text"], "<d:6>");
  EXPECT_EQ(lines[5]["choices"][0]["text"], "<e>");
}

TEST_F(Runs, DefaultsHoldWhereALineIsSilent) {
  FakeEngine engine;
  EXPECT_EQ(
      *run_lines(engine, "{\"prompt\":\"abcdef\"}\n{\"prompt\":\"abcdef\",\"max_tokens\":3}\n", 5),
      ExitCode::kOk);
  const auto lines = json_lines(out_.text());
  EXPECT_EQ(lines[0]["choices"][0]["text"], "<abcd");
  EXPECT_EQ(lines[0]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(lines[1]["choices"][0]["text"], "<ab");
}

TEST_F(Runs, ABatchLargerThanTheLookAheadRuns) {
  FakeEngine engine;
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text += "{\"prompt\":\"x\",\"max_tokens\":1}\n";
  }
  options_.stats = true;
  EXPECT_EQ(*run_lines(engine, text), ExitCode::kOk);
  EXPECT_EQ(engine.num_submitted, 1000U);
}

TEST_F(Runs, CtrlCEndsABatchWithWhatIsDone) {
  FakeEngine engine;
  EXPECT_EQ(*run_lines(engine, "{\"prompt\":\"a\"}\n{\"prompt\":\"ctrl-c\"}\n{\"prompt\":\"b\"}\n"),
            ExitCode::kInterrupted);
  EXPECT_EQ(engine.num_submitted, 2U);
  EXPECT_EQ(engine.num_aborted, 1);
}

TEST_F(Runs, AnEmptyFileIsNoMistake) {
  FakeEngine engine;
  EXPECT_EQ(*run_lines(engine, ""), ExitCode::kOk);
  EXPECT_EQ(out_.text(), "");
}

}  // namespace
}  // namespace warprow
