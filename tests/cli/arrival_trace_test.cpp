// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/arrival_trace.h"

#include "cli/simulate/trace_line.h"
#include "cli/simulate/trace_of_prompts.h"
#include "tests/support/temp_dir.h"

#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Traces : public ::testing::Test {
 protected:
  Result<ArrivalTrace> read(const std::string& text,
                            const std::string& format = "auto",
                            int64_t most = kMaxTraceRequests) {
    std::ofstream(path_, std::ios::binary) << text;
    return read_trace(path_, format, most);
  }
  std::string error(const std::string& text, const std::string& format = "auto") {
    const Result<ArrivalTrace> trace = read(text, format);
    return trace ? "none" : trace.error().message;
  }

  test::TempDir dir_;
  std::string path_ = (dir_.path() / "arrival_trace.txt").string();
};

TEST_F(Traces, OwnLines) {
  const ArrivalTrace trace = *read(
      "{\"arrival_s\": 2.5, \"input_tokens\": 240, \"output_tokens\": 33}\r\n"
      "\n"
      "{\"arrival_s\": 1, \"input_tokens\": 9, \"output_tokens\": 1, \"priority\": -2, "
      "\"prefix_id\": \"a\", \"prefix_tokens\": 4}\n"
      "{\"arrival_s\": 3, \"input_tokens\": 9, \"output_tokens\": 1, \"prefix_id\": \"a\", "
      "\"prefix_tokens\": 4}");
  ASSERT_EQ(trace.requests.size(), 3);
  EXPECT_EQ(trace.requests[0].arrival_s, 0);  // the first to come
  EXPECT_EQ(trace.requests[0].input_tokens, 9);
  EXPECT_EQ(trace.requests[0].priority, -2);
  EXPECT_EQ(trace.requests[0].prefix_unit, 4);
  EXPECT_EQ(trace.requests[1].arrival_s, 1.5);
  EXPECT_EQ(trace.requests[1].input_tokens, 240);
  EXPECT_EQ(trace.requests[1].output_tokens, 33);
  EXPECT_EQ(trace.requests[1].num_keys, 0);
  EXPECT_EQ(trace.keys.at(static_cast<size_t>(trace.requests[0].first_key)),
            trace.keys.at(static_cast<size_t>(trace.requests[2].first_key)));
}

TEST_F(Traces, Mooncake) {
  const ArrivalTrace trace = *read(
      "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, "
      "47]}\n"
      "{\"timestamp\": 30535, \"input_length\": 600, \"output_length\": 26, \"hash_ids\": [46]}\n"
      "{\"timestamp\": 30535, \"input_length\": 600, \"output_length\": 0, \"hash_ids\": []}\n");
  ASSERT_EQ(trace.requests.size(), 2);
  EXPECT_EQ(trace.num_skipped, 1);
  EXPECT_NEAR(trace.requests[1].arrival_s, 3.053, 1e-9);
  EXPECT_EQ(trace.requests[0].prefix_unit, 512);
  EXPECT_EQ(trace.requests[0].num_keys, 2);
  EXPECT_EQ(trace.keys[0], trace.keys[2]);
  EXPECT_NE(trace.keys[0], trace.keys[1]);
}

TEST_F(Traces, BurstGpt) {
  const ArrivalTrace trace = *read(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n"
      "45.5,GPT-4,1087,0,1087,API log\n"
      "118,GPT-4,417,276,693,Conversation log\n");
  ASSERT_EQ(trace.requests.size(), 2);
  EXPECT_EQ(trace.num_skipped, 1);  // it failed there
  EXPECT_EQ(trace.requests[1].arrival_s, 113);
  EXPECT_EQ(trace.requests[1].output_tokens, 276);
}

TEST_F(Traces, Azure) {
  const ArrivalTrace trace = *read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.9799600,4808,10\r\n"
      "2024-05-10 00:00:00.009930+00:00,2162,5\r\n");
  ASSERT_EQ(trace.requests.size(), 2);
  EXPECT_NEAR(trace.requests[1].arrival_s, 175.0 * 86400 + 0.02997, 1e-5);
  EXPECT_EQ(trace.requests[0].input_tokens, 4808);
  const ArrivalTrace near = *read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2024-02-28 23:59:59.5,1,1\n2024-03-01 00:00:01.25,1,1\n");
  EXPECT_NEAR(near.requests[1].arrival_s, 86400 + 1.75, 1e-6);  // a leap year
}

TEST_F(Traces, ResultsOfABench) {
  const ArrivalTrace trace = *read(
      "{\"date\": \"x\", \"input_lens\": [5, 0, 7], \"output_lens\": [2, 0, 3], "
      "\"start_times\": [100.5, 101, 100.25]}\n");
  ASSERT_EQ(trace.requests.size(), 2);
  EXPECT_EQ(trace.num_skipped, 1);
  EXPECT_EQ(trace.requests[0].input_tokens, 7);
  EXPECT_EQ(trace.requests[1].arrival_s, 0.25);
  EXPECT_THAT(error("{\"input_lens\": [5], \"output_lens\": [2]}"),
              HasSubstr("have 0, 1 and 1 entries"));
}

TEST_F(Traces, MistakesNameLineFieldValueAndLimit) {
  const std::string good = "{\"arrival_s\": 0, \"input_tokens\": 5, \"output_tokens\": 5}\n";
  EXPECT_THAT(error(good + "{\"arrival_s\": 0, \"input_tokens\": -3, \"output_tokens\": 5}\n"),
              HasSubstr(":2: input_tokens: -3 is not a whole number from 1 to 100000000"));
  EXPECT_THAT(error(good + "{\"arrival_s\": 0, \"input_tokens\": 1.5, \"output_tokens\": 5}\n"),
              HasSubstr(":2: input_tokens: 1.5 is not"));
  EXPECT_THAT(error(good + "{\"arrival_s\": \"now\", \"input_tokens\": 5, \"output_tokens\": 5}\n"),
              HasSubstr(":2: arrival_s: \"now\" is not a number"));
  EXPECT_THAT(error(good + "{\"arrival_s\": 1, \"output_tokens\": 5}\n"),
              HasSubstr(":2: input_tokens is missing"));
  EXPECT_THAT(error(good + "{\"arrival_s\": 1\n"), HasSubstr(":2: no JSON object"));
  EXPECT_THAT(error(good + "{\"arrival_s\": 0, \"input_tokens\": 5, \"output_tokens\": 5, "
                           "\"prefix_id\": 1, \"prefix_tokens\": 6}\n"),
              HasSubstr(":2: prefix_tokens: 6 is not a whole number from 1 to 5"));
  EXPECT_THAT(error("{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": "
                    "[1, 2, 3]}\n"),
              HasSubstr("hash_ids: \"a list of 3\" is not a list of at most 2"));
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  EXPECT_THAT(error(azure + "2023-13-16 18:17:03.98,1,1\n"),
              HasSubstr(":2: TIMESTAMP: \"2023-13-16 18:17:03.98\" is not a date and time"));
  EXPECT_THAT(error(azure + "2023-11-16 18:17:03.98,1\n"),
              HasSubstr(":2: 2 cells; the header has 3"));
  EXPECT_THAT(error(azure + "2023-11-16 18:17:03.98,x,1\n"), HasSubstr(":2: ContextTokens: \"x\""));
  EXPECT_THAT(error("hello\n"), HasSubstr(":1: the line is of no known format"));
  EXPECT_THAT(error(""), HasSubstr("holds no requests"));
  EXPECT_THAT(error(azure), HasSubstr("holds no requests"));
  EXPECT_EQ(read_trace("/no/such", "auto", 1).error().code, ErrorCode::kNotFound);
}

TEST_F(Traces, LargeOnesAreBounded) {
  EXPECT_THAT(error("{\"arrival_s\": " + std::string(size_t{5} << 20, '1') + "}\n"),
              HasSubstr(":1: the line has more than 4194304 bytes"));
  std::string lines;
  for (int i = 0; i < 10; ++i) {
    lines += "{\"arrival_s\": 0, \"input_tokens\": 5, \"output_tokens\": 90000000}\n";
  }
  const ArrivalTrace all = *read(lines);
  EXPECT_THAT(check_trace(all, "f").error().message,
              HasSubstr("f: 900000000 output tokens; the limit is 50000000"));
  EXPECT_EQ(read(lines, "auto", 3)->requests.size(), 3);
  ArrivalTrace many;
  many.requests.resize(static_cast<size_t>(kMaxTraceRequests) + 1);
  EXPECT_THAT(check_trace(many, "f").error().message, HasSubstr("1000001 requests; the limit is"));
}

TEST(TraceOfPrompts, HasTheLengthsOfBenchServe) {
  ServeDataset dataset;
  dataset.num_prompts = 20;
  dataset.input_len = 40;
  dataset.output_len = 10;
  dataset.range_ratio = 0.5;
  dataset.prefix_len = 8;
  dataset.seed = 3;
  ServeLoad load;
  load.request_rate = 5;
  load.seed = 3;
  const ArrivalTrace trace = *trace_of_prompts(dataset, load, "");
  const auto prompts = *make_prompts(dataset);
  const auto arrivals = arrival_times(20, 5, 1, 3);
  ASSERT_EQ(trace.requests.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(trace.requests[i].input_tokens, prompts[i].prompt.size());
    EXPECT_EQ(trace.requests[i].output_tokens, prompts[i].output_len);
    EXPECT_EQ(trace.requests[i].arrival_s, arrivals[i]);
    EXPECT_EQ(trace.requests[i].prefix_unit, 8);
  }
  dataset.name = "sonnet";
  EXPECT_THAT(trace_of_prompts(dataset, load, "").error().message, HasSubstr("'sonnet'"));
}

TEST(TraceLine, CellsOfCsv) {
  EXPECT_THAT(split_csv("a,\"b c\",,d"), ElementsAre("a", "b c", "", "d"));
  EXPECT_THAT(split_csv(""), ElementsAre(""));
}

}  // namespace
}  // namespace warprow
