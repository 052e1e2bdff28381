// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warprow {

// A Prometheus histogram.
//
// Thread: any. The written sum and counts may differ by one value that arrives during the write.
class Histogram {
 public:
  // bounds: the largest value of each bucket, ascending. One more bucket takes all larger values.
  explicit Histogram(std::span<const double> bounds);

  void observe(double value);
  // Appends the lines of one series; labels as in `model_name="m"`.
  void write(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<int64_t>> counts_;  // [bounds + 1], not cumulative
  std::atomic<double> sum_ = 0;
};

// The endpoints of chats, as far as metrics tell them apart.
enum class ChatEndpoint : uint8_t { kChatCompletions, kResponses, kOther };

// The server's counters for /metrics. text() adds the engine's own counters.
//
// Thread: any.
class ServerMetrics {
 public:
  ServerMetrics();

  Histogram time_to_first_token;  // all times here are in seconds
  Histogram inter_token_latency;
  Histogram time_per_output_token;
  Histogram end_to_end;
  Histogram queue_time;
  Histogram prefill_time;
  Histogram decode_time;
  Histogram inference_time;
  Histogram prompt_tokens;
  Histogram computed_prompt_tokens;
  Histogram generation_tokens;
  Histogram longest_choice;
  Histogram params_n;
  Histogram params_max_tokens;

  void count_end(FinishReason reason);
  // Of a choice that ended.
  void count_prompt(int64_t num_toks, int64_t num_cached);
  // What a tool parser found: in the answer of a choice, or in a piece of a streamed one.
  void count_tool_parse(ChatEndpoint endpoint, bool streams, bool found_call);
  // The level of the last sleep: 1 or 2.
  void set_sleep_level(int level) { sleep_level_.store(level, std::memory_order_relaxed); }
  // path: one of our routes, or "other"; never the client's own text.
  void count_http(const std::string& path, int status);
  void count_disconnect() { disconnects_.fetch_add(1, std::memory_order_relaxed); }
  void set_connections(int64_t number) { connections_.store(number, std::memory_order_relaxed); }
  [[nodiscard]] int64_t connections() const { return connections_.load(std::memory_order_relaxed); }

  // In Prometheus' text format. vLLM's metrics have the prefix vllm:, ours warprow:.
  [[nodiscard]] std::string text(const Engine& engine, const std::string& model_name) const;

 private:
  void write_sleep(std::string& out, bool sleeps, const std::string& labels) const;
  void write_requests(std::string& out, const std::string& labels) const;
  void write_tool_parses(std::string& out, const std::string& labels) const;
  void write_http(std::string& out) const;

  static constexpr size_t kNumReasons = static_cast<size_t>(FinishReason::kError) + 1;
  std::array<std::atomic<int64_t>, kNumReasons> ends_{};
  static constexpr size_t kNumChatEndpoints = static_cast<size_t>(ChatEndpoint::kOther) + 1;
  std::array<std::atomic<int64_t>, kNumChatEndpoints * 4>
      tool_parses_{};  // by endpoint, whether streamed, whether a call was found
  std::atomic<int64_t> computed_prompt_toks_ = 0;
  std::atomic<int64_t> cached_prompt_toks_ = 0;
  std::atomic<int> sleep_level_ = 1;
  std::atomic<int64_t> disconnects_ = 0;
  std::atomic<int64_t> connections_ = 0;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> http_;  // under mutex_
};

}  // namespace warprow
