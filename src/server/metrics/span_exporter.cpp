// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/span_exporter.h"

#include "base/log.h"
#include "client/http_client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr milliseconds kInterval{1000};  // spans wait so long for others
constexpr milliseconds kLongestPause{30'000};
constexpr std::chrono::seconds kConnect{2};
constexpr std::chrono::seconds kSilence{5};

Json attribute(const char* key, const std::string& text) {
  return {{"key", key}, {"value", {{"stringValue", text}}}};
}
Json attribute(const char* key, int64_t number) {  // 64-bit numbers are texts in OTLP's JSON
  return {{"key", key}, {"value", {{"intValue", std::to_string(number)}}}};
}
Json attribute(const char* key, double number) {
  return {{"key", key}, {"value", {{"doubleValue", number}}}};
}

double in_seconds(EngineClock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// The system's time, in nanoseconds since 1970, at a time of the engine's clock.
std::string unix_nanos(EngineClock::time_point time) {
  const auto ago = EngineClock::now() - time;
  const auto then = std::chrono::system_clock::now().time_since_epoch() - ago;
  return std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(then).count());
}

Json attributes_of(const ChoiceRecord& record, const std::string& model) {
  const bool has_token = record.num_output_toks > 0;
  Json out = Json::array({
      attribute("gen_ai.response.model", model),
      attribute("gen_ai.request.id", record.answer),
      attribute("gen_ai.request.temperature", record.trace->temperature),
      attribute("gen_ai.request.top_p", record.trace->top_p),
      attribute("gen_ai.request.max_tokens", int64_t{record.max_tokens}),
      attribute("gen_ai.request.n", int64_t{record.trace->num_choices}),
      attribute("gen_ai.usage.prompt_tokens", int64_t{record.num_prompt_toks}),
      attribute("gen_ai.usage.completion_tokens", int64_t{record.num_output_toks}),
      attribute("gen_ai.latency.time_in_queue", record.queue_ms / 1e3),
      attribute("gen_ai.latency.e2e", in_seconds(record.ended - record.arrived)),
  });
  if (has_token) {
    out.push_back(attribute("gen_ai.latency.time_to_first_token",
                            in_seconds(record.first_token - record.arrived)));
    out.push_back(attribute("gen_ai.latency.time_in_model_prefill", record.prompt_ms / 1e3));
    out.push_back(attribute("gen_ai.latency.time_in_model_decode", record.predicted_ms / 1e3));
    out.push_back(attribute("gen_ai.latency.time_in_model_inference",
                            (record.prompt_ms + record.predicted_ms) / 1e3));
  }
  return out;
}

}  // namespace

Result<SpanTarget> parse_span_target(std::string_view url) {
  const size_t scheme = url.find("://");
  const bool is_http = url.starts_with("http://") || url.starts_with("https://");
  if (!is_http) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--otlp-traces-endpoint: '{}' is no URL of http:// or https://", url));
  }
  const size_t path = std::min(url.find('/', scheme + 3), url.size());
  Result<HttpOrigin> origin = parse_origin(url.substr(0, path));
  if (!origin) {
    return fail(origin.error().code,
                fmt::format("--otlp-traces-endpoint: {}", origin.error().message));
  }
  SpanTarget target{.origin = *std::move(origin)};
  if (url.size() > path + 1) {
    target.path = url.substr(path);
  }
  return target;
}

SpanExporter::SpanExporter(SpanTarget target)
    : target_(std::move(target)),
      random_(std::random_device{}() * 0x9e3779b97f4a7c15U + std::random_device{}()),
      thread_([this] { run(); }) {}

SpanExporter::~SpanExporter() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// Not all zeros, which is no id.
std::string SpanExporter::random_id(int num_words) {
  const std::scoped_lock lock(mutex_);
  std::string out;
  for (int i = 0; i < num_words; ++i) {
    out += fmt::format("{:016x}", std::max<uint64_t>(random_(), 1));
  }
  return out;
}

std::string SpanExporter::span(const ChoiceRecord& record) {
  const TraceContext& context = record.trace->context;
  Json out;
  out["traceId"] = context.trace_id.empty() ? random_id(2) : context.trace_id;
  out["spanId"] = random_id(1);
  if (!context.parent_id.empty()) {
    out["parentSpanId"] = context.parent_id;
  }
  if (!context.state.empty()) {
    out["traceState"] = context.state;
  }
  out["name"] = "llm_request";
  out["kind"] = 2;  // server
  out["startTimeUnixNano"] = unix_nanos(record.arrived);
  out["endTimeUnixNano"] = unix_nanos(record.ended);
  out["attributes"] = attributes_of(record, target_.model);
  if (record.finish_reason == FinishReason::kError) {
    out["status"] = {{"code", 2}};
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string SpanExporter::body(const std::deque<std::string>& spans) const {
  const Json resource = {
      {"attributes", Json::array({attribute("service.name", target_.service_name)})}};
  std::string out = fmt::format(
      R"({{"resourceSpans":[{{"resource":{},"scopeSpans":[{{"scope":{{"name":"warprow"}},"spans":[)",
      resource.dump(-1, ' ', false, Json::error_handler_t::replace));
  for (const std::string& span : spans) {
    out += (&span == &spans.front() ? "" : ",") + span;
  }
  return out + "]}]}]}";
}

void SpanExporter::add(const ChoiceRecord& record) {
  if (record.trace == nullptr || !record.trace->context.sampled) {
    return;
  }
  std::string text = span(record);
  const std::scoped_lock lock(mutex_);
  if (queue_.size() >= kMaxQueued) {
    ++num_lost_;
    return;
  }
  queue_.push_back(std::move(text));
  if (queue_.size() == 1 || queue_.size() == kMaxBatch) {
    changed_.notify_all();
  }
}

SpanExporter::Outcome SpanExporter::send(HttpClient& client, const std::deque<std::string>& spans) {
  const Result<HttpAnswer> answer =
      client.ask({.method = "POST", .path = target_.path, .body = body(spans)});
  if (answer && answer->status >= 200 && answer->status < 300) {
    return Outcome::kTaken;
  }
  const std::string why =
      answer ? fmt::format("status {}", answer->status) : answer.error().message;
  const bool later = !answer || answer->status == 429 || answer->status == 502 ||
                     answer->status == 503 || answer->status == 504;
  WR_LOG_WARN("the collector of traces at {}{} does not take {} spans{}: {}",
              target_.origin.url(),
              target_.path,
              spans.size(),
              later ? " now" : "",
              why);
  return later ? Outcome::kLater : Outcome::kRefused;
}

void SpanExporter::run() {
  HttpClient client(target_.origin, target_.headers, {.connect = kConnect, .silence = kSilence});
  milliseconds pause = kInterval;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;  // closed
    }
    const bool waits_for_others = pause == kInterval;
    changed_.wait_for(
        lock, pause, [&] { return closed_ || (waits_for_others && queue_.size() >= kMaxBatch); });
    std::deque<std::string> batch;
    while (!queue_.empty() && batch.size() < kMaxBatch) {
      batch.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    const bool is_last = closed_;
    lock.unlock();
    const Outcome outcome = send(client, batch);
    lock.lock();
    if (outcome == Outcome::kLater && !is_last) {
      queue_.insert(queue_.begin(),
                    std::make_move_iterator(batch.begin()),
                    std::make_move_iterator(batch.end()));
      pause = std::min(2 * pause, kLongestPause);
    } else {
      pause = kInterval;
    }
    if (const int64_t lost = std::exchange(num_lost_, 0); lost > 0) {
      WR_LOG_WARN("{} spans of traces are lost: more than {} wait", lost, kMaxQueued);
    }
    if (is_last && outcome != Outcome::kTaken) {
      return;
    }
  }
}

}  // namespace warprow
