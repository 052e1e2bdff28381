// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/serve_load.h"

#include "cli/bench/serve_prompts.h"
#include "cli/bench/serve_report.h"
#include "tests/support/temp_dir.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

std::string event(const std::string& json) { return "data: " + json + "\n\n"; }

TEST(ServePrompts, RandomOnesRepeatAndKeepTheirLengths) {
  ServeDataset dataset;
  dataset.num_prompts = 50;
  dataset.input_len = 10;
  dataset.output_len = 20;
  dataset.range_ratio = 0.5;
  dataset.prefix_len = 3;
  dataset.vocab_size = 1000;
  const auto prompts = *make_prompts(dataset);
  ASSERT_EQ(prompts.size(), 50);
  size_t shortest = 100;
  size_t longest = 0;
  for (const ServePrompt& prompt : prompts) {
    const auto ids = prompt.prompt.get<std::vector<int>>();
    shortest = std::min(shortest, ids.size());
    longest = std::max(longest, ids.size());
    EXPECT_THAT(ids, ::testing::Each(::testing::AllOf(::testing::Ge(300), ::testing::Lt(1000))));
    EXPECT_EQ(ids[2], prompts[0].prompt[2]);
    EXPECT_GE(prompt.output_len, 10);
    EXPECT_LE(prompt.output_len, 30);
  }
  EXPECT_EQ(shortest, 8);
  EXPECT_EQ(longest, 18);
  EXPECT_EQ((*make_prompts(dataset))[49].prompt, prompts[49].prompt);
  dataset.seed = 1;
  EXPECT_NE((*make_prompts(dataset))[49].prompt, prompts[49].prompt);
  dataset.as_text = true;
  dataset.range_ratio = 0;
  const std::string text = (*make_prompts(dataset))[0].prompt;
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 12);
}

TEST(ServePrompts, LinesOfAFileAreRepeated) {
  const test::TempDir dir;
  const std::string path = (dir.path() / "prompts.jsonl").string();
  std::ofstream(path) << "{\"prompt\": \"a\"}\n\n"
                         "{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}], "
                         "\"output_tokens\": 7}\n";
  ServeDataset dataset;
  dataset.name = "custom";
  dataset.path = path;
  dataset.num_prompts = 3;
  const auto prompts = *make_prompts(dataset);
  EXPECT_EQ(prompts[0].prompt, "a");
  EXPECT_EQ(prompts[0].output_len, 256);
  EXPECT_EQ(prompts[1].prompt[0]["content"], "b");
  EXPECT_EQ(prompts[1].output_len, 7);
  EXPECT_EQ(prompts[2].prompt, "a");
  std::ofstream(path) << "{\"prompt\": \"a\"}\n{\"prompt\": 3}\n";
  EXPECT_THAT(make_prompts(dataset).error().message, HasSubstr(".jsonl:2: neither"));
  std::ofstream(path) << "";
  EXPECT_THAT(make_prompts(dataset).error().message, HasSubstr("holds no prompts"));
  dataset.path = "/no/such";
  EXPECT_EQ(make_prompts(dataset).error().code, ErrorCode::kNotFound);
  dataset.name = "sonnet";
  EXPECT_THAT(make_prompts(dataset).error().message, HasSubstr("'sonnet'"));
}

TEST(ArrivalTimes, HaveTheirRateAndTheirBurstiness) {
  EXPECT_THAT(arrival_times(2, kInf, 1, 0), ElementsAre(0.0, 0.0));
  const auto variation = [](double burstiness) {
    const std::vector<double> times = arrival_times(4000, 10, burstiness, 7);
    EXPECT_NEAR(times.back(), 400, 1e-6);
    double sum = 0;
    double before = 0;
    for (const double time : times) {
      EXPECT_GE(time, before);
      sum += std::pow((time - before) * 10 - 1, 2);
      before = time;
    }
    return std::sqrt(sum / 4000);  // standard deviation over mean: 1 / sqrt(burstiness)
  };
  EXPECT_NEAR(variation(1), 1.0, 0.1);
  EXPECT_NEAR(variation(4), 0.5, 0.05);
  EXPECT_NEAR(variation(0.25), 2.0, 0.3);
}

TEST(ServeLoad, BodiesOfRequests) {
  ServeLoad load;
  load.model = "m";
  load.ignore_eos = true;
  load.extra_body = {{"temperature", 0.5}, {"top_p", 0.9}};
  nlohmann::json body = request_body(load, {nlohmann::json::array({1, 2}), 5});
  EXPECT_EQ(body["prompt"], nlohmann::json::array({1, 2}));
  EXPECT_EQ(body["max_tokens"], 5);
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  load.endpoint = "/v1/chat/completions";
  body = request_body(load, {"hi", 5});
  EXPECT_EQ(body["messages"][0]["content"], "hi");
  EXPECT_FALSE(body.contains("prompt"));
  const auto messages = nlohmann::json::parse(R"([{"role":"system","content":"s"}])");
  EXPECT_EQ(request_body(load, {messages, 5})["messages"], messages);
}

TEST(AnswerTimes, CountsPiecesOfACompletion) {
  AnswerTimes times;
  ServeRecord record;
  times.read(event(R"({"choices":[{"text":"a","finish_reason":null}]})"), 1, record);
  times.read(event(R"({"choices":[{"text":"","finish_reason":null}]})"), 1.5, record);
  times.read(event(R"({"choices":[{"text":"b","finish_reason":"length"}]})") +
                 event(R"({"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}})"),
             2.5,
             record);
  times.read(event("[DONE]"), 9, record);
  EXPECT_EQ(record.ttft_s, 1);
  EXPECT_THAT(record.itls_s, ElementsAre(0.5, 1.0));
  EXPECT_EQ(record.latency_s, 2.5);
  EXPECT_EQ(record.text, "ab");
  EXPECT_EQ(record.num_input_tokens, 3);
  EXPECT_EQ(record.num_output_tokens, 4);
}

TEST(AnswerTimes, RoleAndEndOfAChatAreNoPieces) {
  AnswerTimes times;
  ServeRecord record;
  times.read(event(R"({"choices":[{"delta":{"role":"assistant","content":null}}]})"), 1, record);
  times.read(event(R"({"choices":[{"delta":{"reasoning_content":"x"}}]})"), 2, record);
  times.read(event(R"({"choices":[{"delta":{"content":"y"}}]})"), 3, record);
  times.read(event(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})"), 4, record);
  EXPECT_EQ(record.ttft_s, 2);
  EXPECT_THAT(record.itls_s, ElementsAre(1.0));
  EXPECT_EQ(record.latency_s, 4);
  EXPECT_EQ(record.num_output_tokens, 2);  // counted from the pieces, because no usage came
  EXPECT_EQ(record.text, "xy");
}

TEST(AnswerTimes, AnEmptyAnswerAndAnError) {
  ServeRecord empty;
  AnswerTimes().read(event(R"({"choices":[{"text":"","finish_reason":"stop"}]})"), 2, empty);
  EXPECT_EQ(empty.ttft_s, 2);
  ServeRecord failed;
  AnswerTimes().read(event(R"({"error":{"message":"out of luck","code":503}})"), 2, failed);
  EXPECT_THAT(failed.error, HasSubstr("out of luck"));
}

TEST(ServeReport, FiguresOfKnownRequests) {
  ServeRecords records;
  records.duration_s = 2;
  records.max_concurrent = 3;
  records.requests = {{.start_s = 0,
                       .ttft_s = 0.1,
                       .latency_s = 0.5,
                       .itls_s = {0.2, 0.2},
                       .num_input_tokens = 10,
                       .num_output_tokens = 3},
                      {.start_s = 1.2,
                       .ttft_s = 0.3,
                       .latency_s = 0.3,
                       .num_input_tokens = 20,
                       .num_output_tokens = 1},
                      {.start_s = 0, .error = "404: no"}};
  ServeReportOptions options;
  options.metrics = *parse_metrics("ttft,tpot,itl,e2el");
  options.percentiles = *parse_percentiles("50,99.9");
  options.goodput = *parse_goodput("ttft:150");
  options.detailed = true;
  const AnswerJson json = serve_report(records, options);
  const auto number = [&json](const char* name) { return json[name].get<double>(); };
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["total_input_tokens"], 30);
  EXPECT_EQ(json["total_output_tokens"], 4);
  EXPECT_EQ(number("request_throughput"), 1);
  EXPECT_EQ(number("request_goodput"), 0.5);
  EXPECT_EQ(number("output_throughput"), 2);
  EXPECT_EQ(number("total_token_throughput"), 17);
  EXPECT_EQ(number("max_output_tokens_per_s"), 3);
  EXPECT_EQ(number("max_concurrent_requests"), 3);
  EXPECT_THAT(number("mean_ttft_ms"), DoubleNear(200, 1e-9));
  EXPECT_THAT(number("std_ttft_ms"), DoubleNear(100, 1e-9));
  EXPECT_THAT(number("p50_ttft_ms"), DoubleNear(200, 1e-9));
  EXPECT_THAT(number("p99.9_ttft_ms"), DoubleNear(299.8, 1e-9));
  EXPECT_THAT(number("mean_tpot_ms"),
              DoubleNear(200, 1e-9));  // of the only answer with several tokens
  EXPECT_THAT(number("median_itl_ms"), DoubleNear(200, 1e-9));
  EXPECT_THAT(number("mean_e2el_ms"), DoubleNear(400, 1e-9));
  EXPECT_EQ(json["errors"][2], "404: no");
  EXPECT_THAT(serve_report_text(json, options), HasSubstr("2 requests done, 1 failed"));
}

TEST(ServeReport, FlagsAreNamed) {
  EXPECT_THAT(parse_metrics("ttft,x").error().message, HasSubstr("'x'"));
  EXPECT_THAT(parse_percentiles("101").error().message, HasSubstr("'101'"));
  EXPECT_THAT(parse_percentiles("").error().message, HasSubstr("''"));
  for (const char* text : {"itl:5", "ttft", "ttft:", "ttft:-1", "ttft:nan"}) {
    EXPECT_FALSE(parse_goodput(text)) << text;
  }
}

}  // namespace
}  // namespace warprow
