// SPDX-License-Identifier: Apache-2.0
// Spans of requests, without a collector; tests/e2e/server_test.py has one.
#include "server/metrics/span_exporter.h"

#include "server/metrics/trace_context.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;

constexpr const char* kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContext, IsReadByTheStandard) {
  const auto context = parse_traceparent(kParent, "a=1,b=2");
  ASSERT_TRUE(context);
  EXPECT_EQ(context->trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(context->parent_id, "b7ad6b7169203331");
  EXPECT_EQ(context->state, "a=1,b=2");
  EXPECT_TRUE(context->sampled);
  const auto with_flags = [](const char* flags) {
    return parse_traceparent(std::string(kParent, 53) + flags, "");
  };
  EXPECT_FALSE(with_flags("00")->sampled);
  EXPECT_FALSE(with_flags("fe")->sampled);
  EXPECT_TRUE(with_flags("ff")->sampled);
  EXPECT_TRUE(parse_traceparent("cc" + std::string(kParent).substr(2) + "-more", ""));
  EXPECT_EQ(parse_traceparent(kParent, std::string(513, 'a'))->state, "");
}

TEST(TraceContext, OtherTextsAreNone) {
  const std::string good = kParent;
  for (const std::string& bad :
       std::vector<std::string>{std::string(),
                                good.substr(1),
                                good + "0",
                                good + "-more",
                                "ff" + good.substr(2),
                                "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                                "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                                "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x"}) {
    EXPECT_FALSE(parse_traceparent(bad, "")) << bad;
  }
}

TEST(SpanTarget, IsAUrl) {
  const SpanTarget local = value_or_throw(parse_span_target("http://localhost:4318"));
  EXPECT_EQ(local.origin.port, "4318");
  EXPECT_EQ(local.path, "/v1/traces");
  EXPECT_EQ(value_or_throw(parse_span_target("http://localhost:4318/")).path, "/v1/traces");
  const SpanTarget other = value_or_throw(parse_span_target("https://otel.example/a/v1/traces"));
  EXPECT_TRUE(other.origin.tls);
  EXPECT_EQ(other.origin.host, "otel.example");
  EXPECT_EQ(other.path, "/a/v1/traces");
  for (const char* bad : {"", "localhost:4317", "grpc://localhost:4317", "http://"}) {
    EXPECT_FALSE(parse_span_target(bad)) << bad;
  }
}

ChoiceRecord traced_record() {
  using std::chrono::milliseconds;
  RequestTrace trace;
  trace.temperature = 0.5;
  trace.top_p = 0.9;
  trace.num_choices = 2;
  ChoiceRecord out;
  out.answer = "chatcmpl-7";
  out.ended = EngineClock::now();
  out.arrived = out.ended - milliseconds(2000);
  out.first_token = out.ended - milliseconds(1500);
  out.num_prompt_toks = 3;
  out.num_output_toks = 5;
  out.max_tokens = 6;
  out.queue_ms = 250;
  out.prompt_ms = 250;
  out.predicted_ms = 1500;
  out.finish_reason = FinishReason::kStop;
  out.trace = std::make_shared<RequestTrace>(trace);
  return out;
}

json attributes(const json& span) {
  json out;
  for (const json& each : span["attributes"]) {
    out[each["key"].get<std::string>()] = each["value"].begin().value();
  }
  return out;
}

TEST(SpanExporter, SpansHaveVllmsAttributes) {
  SpanExporter exporter({.origin = {}, .service_name = "tests", .model = "toy"});
  const json span = json::parse(exporter.span(traced_record()));
  EXPECT_EQ(span["name"], "llm_request");
  EXPECT_EQ(span["kind"], 2);
  EXPECT_EQ(span["traceId"].get<std::string>().size(), 32U);
  EXPECT_EQ(span["spanId"].get<std::string>().size(), 16U);
  EXPECT_FALSE(span.contains("parentSpanId"));
  EXPECT_FALSE(span.contains("status"));
  const auto nanos = [&](const char* key) { return std::stoll(span[key].get<std::string>()); };
  const auto took = nanos("endTimeUnixNano") - nanos("startTimeUnixNano");
  EXPECT_NEAR(static_cast<double>(took), 2e9, 1e9);
  EXPECT_EQ(attributes(span),
            (json{{"gen_ai.response.model", "toy"},
                  {"gen_ai.request.id", "chatcmpl-7"},
                  {"gen_ai.request.temperature", 0.5},
                  {"gen_ai.request.top_p", 0.9},
                  {"gen_ai.request.max_tokens", "6"},
                  {"gen_ai.request.n", "2"},
                  {"gen_ai.usage.prompt_tokens", "3"},
                  {"gen_ai.usage.completion_tokens", "5"},
                  {"gen_ai.latency.time_in_queue", 0.25},
                  {"gen_ai.latency.e2e", 2.0},
                  {"gen_ai.latency.time_to_first_token", 0.5},
                  {"gen_ai.latency.time_in_model_prefill", 0.25},
                  {"gen_ai.latency.time_in_model_decode", 1.5},
                  {"gen_ai.latency.time_in_model_inference", 1.75}}));
  const json other = json::parse(exporter.span(traced_record()));
  EXPECT_NE(other["traceId"], span["traceId"]);
  EXPECT_NE(other["spanId"], span["spanId"]);
  const json body = json::parse(exporter.body({span.dump(), other.dump()}));
  const json& spans = body["resourceSpans"][0];
  EXPECT_EQ(spans["resource"]["attributes"][0],
            (json{{"key", "service.name"}, {"value", {{"stringValue", "tests"}}}}));
  EXPECT_EQ(spans["scopeSpans"][0]["spans"], json::array({span, other}));
}

TEST(SpanExporter, ASpanBelongsToTheClientsTrace) {
  SpanExporter exporter(SpanTarget{});
  ChoiceRecord failed = traced_record();
  RequestTrace trace = *failed.trace;
  trace.context = *parse_traceparent(kParent, "a=1");
  failed.trace = std::make_shared<RequestTrace>(trace);
  failed.finish_reason = FinishReason::kError;
  failed.num_output_toks = 0;
  const json span = json::parse(exporter.span(failed));
  EXPECT_EQ(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(span["parentSpanId"], "b7ad6b7169203331");
  EXPECT_EQ(span["traceState"], "a=1");
  EXPECT_EQ(span["status"]["code"], 2);
  EXPECT_FALSE(attributes(span).contains("gen_ai.latency.time_to_first_token"));
}

}  // namespace
}  // namespace warprow
