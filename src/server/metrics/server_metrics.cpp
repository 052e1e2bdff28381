// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/server_metrics.h"

#include "text/text_model.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// vLLM's bounds, with smaller ones added: small models on this engine are faster than vLLM's lowest bound.
constexpr double kFirstToken[] = {.001, .0025, .005, .01, .02, .04, .06, .08, .1,  .25, .5,  .75,
                                  1,    2.5,   5,    7.5, 10,  20,  40,  80,  160, 640, 2560};
constexpr double kPerToken[] = {.0001, .00025, .0005, .001, .0025, .005, .0075, .01, .025,
                                .05,   .075,   .1,    .15,  .2,    .3,   .4,    .5,  .75,
                                1,     2.5,    5,     7.5,  10,    20,   40,    80};
constexpr double kRequest[] = {.01, .025, .05, .1, .2, .3, .5, .8,  1,   1.5, 2,   2.5,  5,
                               10,  15,   20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
constexpr double kTokens[] = {
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6};
constexpr double kChoices[] = {1, 2, 5, 10, 20};

// Writes metric lines, with HELP and TYPE lines before the first line of each name.
class Page {
 public:
  explicit Page(std::string& out) : out_(out) {}

  void head(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(
        std::back_inserter(out_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <typename T>
  void line(std::string_view name, std::string_view labels, T value) {
    fmt::format_to(std::back_inserter(out_), "{}{{{}}} {}\n", name, labels, value);
  }
  template <typename T>
  void gauge(std::string_view name, std::string_view help, std::string_view labels, T value) {
    head(name, "gauge", help);
    line(name, labels, value);
  }
  template <typename T>
  void counter(std::string_view name, std::string_view help, std::string_view labels, T value) {
    const std::string total = std::string(name) + "_total";
    head(total, "counter", help);
    line(total, labels, value);
  }
  void histogram(std::string_view name,
                 std::string_view help,
                 std::string_view labels,
                 const Histogram& histogram) {
    head(name, "histogram", help);
    histogram.write(out_, name, labels);
  }

 private:
  std::string& out_;
};

std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') {
      out += '\\';
    }
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// Requests that wait because other adapters have all places of a batch.
int32_t num_deferred(const EngineStats& stats) {
  const auto used = std::ranges::count_if(
      stats.adapter_uses, [](const AdapterUse& use) { return use.num_running > 0; });
  if (used < stats.max_loras) {
    return 0;
  }
  int32_t waiting = 0;
  for (const AdapterUse& use : stats.adapter_uses) {
    waiting += use.num_running == 0 ? use.num_live : 0;
  }
  return waiting;
}

void write_engine(Page& page, const EngineStats& stats, const std::string& labels) {
  page.gauge(
      "vllm:num_requests_running", "Requests in a row of the batch.", labels, stats.num_running);
  page.gauge("vllm:num_requests_waiting",
             "Requests that wait for a row or for KV cache.",
             labels,
             stats.num_waiting);
  const char* const by_reason = "vllm:num_requests_waiting_by_reason";
  const int32_t deferred = num_deferred(stats);
  page.head(by_reason,
            "gauge",
            "Waiting requests by what they wait for: a row or blocks (capacity), an adapter's "
            "place (deferred).");
  page.line(by_reason, labels + ",reason=\"capacity\"", stats.num_waiting - deferred);
  page.line(by_reason, labels + ",reason=\"deferred\"", deferred);
  const double num_blocks = static_cast<double>(stats.num_blocks - 1);
  page.gauge("vllm:kv_cache_usage_perc",
             "Share of the KV cache that requests hold, 0 to 1.",
             labels,
             num_blocks > 0 ? stats.num_blocks_used / num_blocks : 0.0);
  page.gauge("vllm:cache_config_info",
             "The KV cache's shape as labels.",
             fmt::format("{},block_size=\"{}\",cache_dtype=\"{}\",num_gpu_blocks=\"{}\"",
                         labels,
                         stats.block_size,
                         dtype_name(stats.kv_dtype),
                         stats.num_blocks),
             1);
  page.counter("vllm:num_preemptions", "Requests that were preempted.", labels, stats.preemptions);
  page.counter(
      "vllm:prompt_tokens", "Tokens of prompts that arrived.", labels, stats.prompt_tokens);
  page.counter("vllm:generation_tokens", "Tokens generated.", labels, stats.output_tokens);
  page.counter("vllm:prefix_cache_queries",
               "Prompt tokens looked up in the prefix cache.",
               labels,
               stats.prompt_tokens);
  page.counter("vllm:prefix_cache_hits",
               "Prompt tokens found in the prefix cache.",
               labels,
               stats.prefix_hit_tokens);
  page.counter("vllm:prompt_tokens_cached",
               "Prompt tokens found in the prefix cache.",
               labels,
               stats.prefix_hit_tokens);
}

void write_speculation(Page& page, const EngineStats& stats, const std::string& labels) {
  if (stats.max_drafts == 0) {
    return;
  }
  page.counter("vllm:spec_decode_num_drafts",
               "Runs of draft tokens that were verified.",
               labels,
               stats.spec_decode_num_drafts);
  page.counter("vllm:spec_decode_num_draft_tokens",
               "Draft tokens that were verified.",
               labels,
               stats.spec_decode_num_draft_tokens);
  page.counter("vllm:spec_decode_num_accepted_tokens",
               "Draft tokens that were accepted.",
               labels,
               stats.spec_decode_num_accepted_tokens);
  const char* const per_pos = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  page.head(per_pos, "counter", "Draft tokens that were accepted, by place in their run.");
  for (size_t i = 0; i < static_cast<size_t>(stats.max_drafts); ++i) {
    page.line(per_pos,
              fmt::format("{},position=\"{}\"", labels, i),
              stats.spec_decode_num_accepted_tokens_per_pos[i]);
  }
  page.counter("warprow:spec_decode_num_undrafted",
               "Decoding rows of steps that got no drafts because they would not pay.",
               labels,
               stats.spec_decode_num_undrafted);
}

// As vLLM's: the names are labels, the value is the time.
void write_adapters(Page& page, const Engine& engine, const EngineStats& stats) {
  if (stats.max_loras == 0) {
    return;
  }
  std::string running;
  std::string waiting;
  const auto add = [](std::string& names, const std::string& name) {
    names += (names.empty() ? "" : ",") + label_value(name);
  };
  for (const LoadedAdapter& adapter : engine.adapters()) {
    const auto use = std::ranges::find(stats.adapter_uses, adapter.id, &AdapterUse::adapter);
    if (use == stats.adapter_uses.end()) {
      continue;
    }
    if (use->num_running > 0) {
      add(running, adapter.name);
    }
    if (use->num_live > use->num_running) {
      add(waiting, adapter.name);
    }
  }
  page.gauge(
      "vllm:lora_requests_info",
      "Adapters of requests that run and that wait, as labels; the value is the time.",
      fmt::format("max_lora=\"{}\",running_lora_adapters=\"{}\",waiting_lora_adapters=\"{}\"",
                  stats.max_loras,
                  running,
                  waiting),
      std::time(nullptr));
}

void write_steps(Page& page,
                 std::string& out,
                 const Engine& engine,
                 const EngineStats& stats,
                 const std::string& labels) {
  page.counter("warprow:steps", "Steps with tokens.", labels, stats.steps);
  page.counter(
      "warprow:mixed_steps", "Steps with prompts and decoding rows.", labels, stats.mixed_steps);
  page.counter("warprow:padded_tokens", "Tokens of padding computed.", labels, stats.padded_toks);
  page.counter(
      "warprow:step_allocations", "Heap allocations inside steps.", labels, stats.step_allocations);
  page.head("warprow:step_parts_total", "counter", "Parts of steps by how they ran.");
  page.line("warprow:step_parts_total", labels + ",mode=\"full_graph\"", stats.graphs_full);
  page.line(
      "warprow:step_parts_total", labels + ",mode=\"piecewise_graph\"", stats.graphs_piecewise);
  page.line("warprow:step_parts_total", labels + ",mode=\"eager\"", stats.graphs_eager);
  page.counter("warprow:graph_evictions",
               "Captured graphs that were evicted because their reserved memory was full.",
               labels,
               stats.graph_evictions);
  const EngineProgress progress = engine.progress();
  page.gauge("warprow:engine_phase_seconds",
             "How long the engine thread has been in its phase.",
             fmt::format("{},phase=\"{}\"", labels, engine_phase_name(progress.phase)),
             progress.seconds);
  const StepLog::Sizes sizes = engine.steps().sizes();
  page.head("vllm:iteration_tokens_total", "histogram", "Tokens of a step.");
  int64_t count = 0;
  for (size_t i = 0; i < sizes.counts.size(); ++i) {
    count += sizes.counts[i];
    const std::string bound =
        i < StepLog::kSizeBounds.size() ? std::to_string(StepLog::kSizeBounds[i]) : "+Inf";
    page.line(
        "vllm:iteration_tokens_total_bucket", fmt::format("{},le=\"{}\"", labels, bound), count);
  }
  fmt::format_to(std::back_inserter(out),
                 "vllm:iteration_tokens_total_sum{{{}}} {}\n",
                 labels,
                 sizes.num_toks);
  fmt::format_to(
      std::back_inserter(out), "vllm:iteration_tokens_total_count{{{}}} {}\n", labels, count);
}

void write_ranks(Page& page, const Engine& engine, const std::string& labels) {
  const std::vector<RankStatus> ranks = engine.ranks();
  if (ranks.empty()) {
    return;
  }
  const auto of = [&](const RankStatus& rank) {
    return fmt::format("{},rank=\"{}\"", labels, rank.rank);
  };
  page.head("warprow:rank_steps_total", "counter", "Steps that a rank has finished.");
  for (const RankStatus& rank : ranks) {
    page.line("warprow:rank_steps_total", of(rank), rank.num_retired);
  }
  page.head("warprow:rank_phase", "gauge", "1 for the phase that a rank is in.");
  for (const RankStatus& rank : ranks) {
    page.line("warprow:rank_phase", fmt::format("{},phase=\"{}\"", of(rank), rank.phase), 1);
  }
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}

void Histogram::observe(double value) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<size_t>(bound - bounds_.begin())].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

void Histogram::write(std::string& out, std::string_view name, std::string_view labels) const {
  int64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i].load(std::memory_order_relaxed);
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    fmt::format_to(
        std::back_inserter(out), "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, count);
  }
  fmt::format_to(std::back_inserter(out), "{}_sum{{{}}} {}\n", name, labels, sum_.load());
  fmt::format_to(std::back_inserter(out), "{}_count{{{}}} {}\n", name, labels, count);
}

ServerMetrics::ServerMetrics()
    : time_to_first_token(kFirstToken),
      inter_token_latency(kPerToken),
      time_per_output_token(kPerToken),
      end_to_end(kRequest),
      queue_time(kRequest),
      prefill_time(kRequest),
      decode_time(kRequest),
      inference_time(kRequest),
      prompt_tokens(kTokens),
      computed_prompt_tokens(kTokens),
      generation_tokens(kTokens),
      longest_choice(kTokens),
      params_n(kChoices),
      params_max_tokens(kTokens) {}

void ServerMetrics::count_end(FinishReason reason) {
  ends_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

void ServerMetrics::count_prompt(int64_t num_toks, int64_t num_cached) {
  computed_prompt_toks_.fetch_add(num_toks - num_cached, std::memory_order_relaxed);
  cached_prompt_toks_.fetch_add(num_cached, std::memory_order_relaxed);
}

void ServerMetrics::count_http(const std::string& path, int status) {
  const std::scoped_lock lock(mutex_);
  ++http_[{path, status}];
}

std::string ServerMetrics::text(const Engine& engine, const std::string& model_name) const {
  std::string out;
  const std::string labels = fmt::format("model_name=\"{}\",engine=\"0\"", label_value(model_name));
  Page page(out);
  const EngineStats stats = engine.stats();
  write_engine(page, stats, labels);
  write_sleep(out, engine.is_sleeping(), labels);
  write_requests(out, labels);
  write_tool_parses(out, labels);
  write_speculation(page, stats, labels);
  write_adapters(page, engine, stats);
  write_steps(page, out, engine, stats, labels);
  write_ranks(page, engine, labels);
  write_http(out);
  return out;
}

void ServerMetrics::write_sleep(std::string& out, bool sleeps, const std::string& labels) const {
  Page page(out);
  const int level = sleeps ? sleep_level_.load(std::memory_order_relaxed) : 0;
  page.head("vllm:engine_sleep_state", "gauge", "1 for the state that the engine is in.");
  const char* const states[] = {"awake", "weights_offloaded", "discard_all"};
  for (int i = 0; i < static_cast<int>(std::size(states)); ++i) {
    page.line("vllm:engine_sleep_state",
              fmt::format("{},sleep_state=\"{}\"", labels, states[i]),
              i == level ? 1 : 0);
  }
}

void ServerMetrics::count_tool_parse(ChatEndpoint endpoint, bool streams, bool found_call) {
  const size_t at =
      static_cast<size_t>(endpoint) * 4 + (streams ? 2U : 0U) + (found_call ? 1U : 0U);
  tool_parses_[at].fetch_add(1, std::memory_order_relaxed);
}

void ServerMetrics::write_tool_parses(std::string& out, const std::string& labels) const {
  constexpr const char* kName = "vllm:tool_call_parser_invocations_total";
  constexpr const char* kEndpoints[] = {"chat_completions", "responses", "other"};
  Page page(out);
  page.head(kName,
            "counter",
            "Answers, and pieces of streamed answers, that a tool parser read, by what it found.");
  for (size_t at = 0; at < tool_parses_.size(); ++at) {
    page.line(kName,
              fmt::format("{},mode=\"{}\",outcome=\"{}\",request_type=\"{}\"",
                          labels,
                          (at & 2U) != 0 ? "streaming" : "non_streaming",
                          (at & 1U) != 0 ? "tool_call" : "no_tool_call",
                          kEndpoints[at / 4]),
              tool_parses_[at].load(std::memory_order_relaxed));
  }
}

void ServerMetrics::write_requests(std::string& out, const std::string& labels) const {
  Page page(out);
  const char* const by_source = "vllm:prompt_tokens_by_source_total";
  page.head(by_source, "counter", "Prompt tokens of requests that ended, by where they came from.");
  page.line(by_source, labels + ",source=\"local_compute\"", computed_prompt_toks_.load());
  page.line(by_source, labels + ",source=\"local_cache_hit\"", cached_prompt_toks_.load());
  page.head("vllm:request_success_total", "counter", "Requests that ended, by their reason.");
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError}) {
    page.line("vllm:request_success_total",
              fmt::format("{},finished_reason=\"{}\"", labels, finish_reason_name(reason)),
              ends_[static_cast<size_t>(reason)].load());
  }
  const auto histogram = [&](const char* name, const char* help, const Histogram& values) {
    page.histogram(name, help, labels, values);
  };
  histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", time_to_first_token);
  histogram("vllm:inter_token_latency_seconds", "From one token to the next.", inter_token_latency);
  histogram("vllm:request_time_per_output_token_seconds",
            "A request's mean from token to token.",
            time_per_output_token);
  histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", end_to_end);
  histogram("vllm:request_queue_time_seconds", "Arrival to first step.", queue_time);
  histogram("vllm:request_prefill_time_seconds", "First step to first token.", prefill_time);
  histogram("vllm:request_decode_time_seconds", "First to last token.", decode_time);
  histogram("vllm:request_inference_time_seconds", "First step to last token.", inference_time);
  histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", prompt_tokens);
  histogram("vllm:request_prefill_kv_computed_tokens",
            "Tokens of a prompt that no cached prefix had.",
            computed_prompt_tokens);
  histogram("vllm:request_generation_tokens", "Tokens of an answer.", generation_tokens);
  histogram("vllm:request_max_num_generation_tokens",
            "Tokens of the longest choice of a request.",
            longest_choice);
  histogram("vllm:request_params_n", "Choices of a request.", params_n);
  histogram("vllm:request_params_max_tokens", "max_tokens of a request.", params_max_tokens);
}

void ServerMetrics::write_http(std::string& out) const {
  Page page(out);
  page.gauge("warprow:http_connections", "Open connections.", "", connections());
  page.counter("warprow:client_disconnects",
               "Clients that left before their answer's end.",
               "",
               disconnects_.load());
  page.head("warprow:http_requests_total", "counter", "Answered requests.");
  const std::scoped_lock lock(mutex_);
  for (const auto& [key, count] : http_) {
    page.line("warprow:http_requests_total",
              fmt::format("path=\"{}\",status=\"{}\"", key.first, key.second),
              count);
  }
}

}  // namespace warprow
