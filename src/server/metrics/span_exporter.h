// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "client/http_origin.h"
#include "server/metrics/request_journal.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace warprow {

class HttpClient;

// Where spans go.
struct SpanTarget {
  HttpOrigin origin;
  std::string path = "/v1/traces";
  std::vector<std::pair<std::string, std::string>> headers{};
  std::string service_name = "warprow";
  std::string model{};  // as answers name it
};

// Parses the URL of a collector: http or https, with the path of its traces, or without one: /v1/traces.
// kInvalidArgument for anything else.
Result<SpanTarget> parse_span_target(std::string_view url);

// Sends a span for each choice that ended to an OpenTelemetry collector: OTLP over HTTP, in JSON. Names and attributes
// are vLLM's. Spans wait in a queue of fixed size; what does not fit is lost, and the log says so. A collector that
// cannot be reached, or is busy, is asked again after a wait.
//
// Owns: the queue; the thread that sends.
// Thread: any.
class SpanExporter {
 public:
  static constexpr size_t kMaxQueued = 4096;
  static constexpr size_t kMaxBatch = 512;

  explicit SpanExporter(SpanTarget target);
  ~SpanExporter();  // sends what waits, once, and waits some seconds for that
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  // The record of a choice that has ended. Without a trace, or with one that is not sampled, nothing happens. Never
  // blocks for long.
  void add(const ChoiceRecord& record);

  // The spans as a request's body, for tests.
  [[nodiscard]] std::string body(const std::deque<std::string>& spans) const;
  // One span, in JSON.
  [[nodiscard]] std::string span(const ChoiceRecord& record);

 private:
  enum class Outcome : uint8_t { kTaken, kRefused, kLater };

  void run();
  Outcome send(HttpClient& client, const std::deque<std::string>& spans);
  std::string random_id(int num_words);

  const SpanTarget target_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;         // under mutex_, like the next
  std::deque<std::string> queue_;  // spans in JSON
  int64_t num_lost_ = 0;
  bool closed_ = false;
  std::thread thread_;  // last: it uses all members above
};

}  // namespace warprow
