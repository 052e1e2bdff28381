// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/serve_report.h"

#include "cli/bench/bench_run.h"
#include "cli/bench/draft_counters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace warprow {
namespace {

constexpr const char* kMetrics[] = {"ttft", "tpot", "itl", "e2el"};

bool is_metric(std::string_view name) {
  return std::find(std::begin(kMetrics), std::end(kMetrics), name) != std::end(kMetrics);
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

bool read_number(std::string_view text, double& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(out);
}

// Seconds for each token after the first.
double tpot_of(const ServeRecord& record) {
  return record.num_output_tokens > 1 ? (record.latency_s - record.ttft_s) /
                                            static_cast<double>(record.num_output_tokens - 1)
                                      : 0.0;
}

std::map<std::string, double> metrics_of(const ServeRecord& record) {
  return {{"ttft", record.ttft_s}, {"tpot", tpot_of(record)}, {"e2el", record.latency_s}};
}

bool is_good(const ServeRecord& record, const std::map<std::string, double>& limits_ms) {
  const std::map<std::string, double> seconds = metrics_of(record);
  return std::all_of(limits_ms.begin(), limits_ms.end(), [&](const auto& limit) {
    return 1e3 * seconds.at(limit.first) <= limit.second;
  });
}

double deviation(const std::vector<double>& values) {
  const double average = mean(values);
  double sum = 0;
  for (const double value : values) {
    sum += (value - average) * (value - average);
  }
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// "99", "99.9".
std::string percentile_name(double p) { return fmt::format("{}", p); }

void add_latencies(AnswerJson& json,
                   const std::string& metric,
                   std::vector<double> seconds,
                   const std::vector<double>& percentiles) {
  if (seconds.empty()) {
    seconds.push_back(0);
  }
  const auto name = [&metric](const std::string& what) {
    return fmt::format("{}_{}_ms", what, metric);
  };
  json[name("mean")] = 1e3 * mean(seconds);
  json[name("median")] = 1e3 * percentile(seconds, 50);
  json[name("std")] = 1e3 * deviation(seconds);
  for (const double p : percentiles) {
    json[name("p" + percentile_name(p))] = 1e3 * percentile(seconds, p);
  }
}

// The largest number of tokens that arrived in one second, counted in whole seconds since the start.
double peak_tokens_per_s(const ServeRecords& records) {
  std::vector<double> buckets(static_cast<size_t>(records.duration_s) + 1, 0.0);
  const auto add = [&buckets](double time_s, double tokens) {
    buckets[std::min(static_cast<size_t>(std::max(0.0, time_s)), buckets.size() - 1)] += tokens;
  };
  for (const ServeRecord& record : records.requests) {
    if (!record.error.empty()) {
      continue;
    }
    const double num_pieces = 1.0 + static_cast<double>(record.itls_s.size());
    const double tokens = static_cast<double>(record.num_output_tokens) / num_pieces;
    double time = record.start_s + record.ttft_s;
    add(time, tokens);
    for (const double itl : record.itls_s) {
      time += itl;
      add(time, tokens);
    }
  }
  return *std::max_element(buckets.begin(), buckets.end());
}

void add_details(AnswerJson& json, const ServeRecords& records) {
  for (const char* name :
       {"input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors"}) {
    json[name] = AnswerJson::array();
  }
  for (const ServeRecord& record : records.requests) {
    json["input_lens"].push_back(record.num_input_tokens);
    json["output_lens"].push_back(record.num_output_tokens);
    json["start_times"].push_back(record.start_s);
    json["ttfts"].push_back(record.ttft_s);
    json["itls"].push_back(record.itls_s);
    json["generated_texts"].push_back(record.text);
    json["errors"].push_back(record.error);
  }
}

struct Totals {
  int64_t completed = 0;
  int64_t good = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  std::map<std::string, std::vector<double>> seconds;  // by metric
};

Totals add_up(const ServeRecords& records, const std::map<std::string, double>& limits_ms) {
  Totals totals;
  for (const ServeRecord& record : records.requests) {
    if (!record.error.empty()) {
      continue;
    }
    ++totals.completed;
    totals.good += is_good(record, limits_ms) ? 1 : 0;
    totals.input_tokens += record.num_input_tokens;
    totals.output_tokens += record.num_output_tokens;
    totals.seconds["ttft"].push_back(record.ttft_s);
    totals.seconds["e2el"].push_back(record.latency_s);
    if (record.num_output_tokens > 1) {
      totals.seconds["tpot"].push_back(tpot_of(record));
    }
    std::vector<double>& itls = totals.seconds["itl"];
    itls.insert(itls.end(), record.itls_s.begin(), record.itls_s.end());
  }
  return totals;
}

}  // namespace

Result<std::vector<std::string>> parse_metrics(std::string_view text) {
  std::vector<std::string> out;
  for (const std::string_view name : split(text)) {
    if (!is_metric(name)) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("--percentile-metrics: '{}' is none of {}", name, fmt::join(kMetrics, "|")));
    }
    out.emplace_back(name);
  }
  return out;
}

Result<std::vector<double>> parse_percentiles(std::string_view text) {
  std::vector<double> out;
  for (const std::string_view part : split(text)) {
    double value = 0;
    if (!read_number(part, value) || value < 0 || value > 100) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--metric-percentiles: '{}' is not a number from 0 to 100", part));
    }
    out.push_back(value);
  }
  return out;
}

Result<std::map<std::string, double>> parse_goodput(std::string_view text) {
  std::map<std::string, double> out;
  for (const std::string_view part : split(text)) {
    const size_t colon = std::min(part.find(':'), part.size());
    const std::string name(part.substr(0, colon));
    double ms = 0;
    if (!is_metric(name) || name == "itl" || colon == part.size() ||
        !read_number(part.substr(colon + 1), ms) || ms < 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--goodput: '{}' is not ttft:MS, tpot:MS or e2el:MS", part));
    }
    out[name] = ms;
  }
  return out;
}

AnswerJson serve_report(const ServeRecords& records, const ServeReportOptions& options) {
  const Totals totals = add_up(records, options.goodput);
  const auto count = static_cast<int64_t>(records.requests.size());
  const auto rate = [&records](int64_t things) {
    return records.duration_s > 0 ? static_cast<double>(things) / records.duration_s : 0.0;
  };
  AnswerJson json;
  json["duration"] = records.duration_s;
  json["completed"] = totals.completed;
  json["failed"] = count - totals.completed;
  json["total_input_tokens"] = totals.input_tokens;
  json["total_output_tokens"] = totals.output_tokens;
  json["request_throughput"] = rate(totals.completed);
  json["request_goodput"] =
      options.goodput.empty() ? AnswerJson(nullptr) : AnswerJson(rate(totals.good));
  json["output_throughput"] = rate(totals.output_tokens);
  json["total_token_throughput"] = rate(totals.input_tokens + totals.output_tokens);
  json["max_output_tokens_per_s"] = peak_tokens_per_s(records);
  json["max_concurrent_requests"] = records.max_concurrent;
  for (const std::string& metric : options.metrics) {
    const auto found = totals.seconds.find(metric);
    add_latencies(json,
                  metric,
                  found != totals.seconds.end() ? found->second : std::vector<double>{},
                  options.percentiles);
  }
  if (options.detailed) {
    add_details(json, records);
  }
  return json;
}

std::string serve_report_text(const AnswerJson& report, const ServeReportOptions& options) {
  const auto number = [&report](const std::string& name) { return report[name].get<double>(); };
  std::string out = fmt::format(
      "{} requests done, {} failed in {:.2f} s; at most {} at the same time\n"
      "{:.2f} requests/s, {:.1f} output tokens/s (peak {:.0f}), {:.1f} total tokens/s\n",
      report["completed"].get<int64_t>(),
      report["failed"].get<int64_t>(),
      number("duration"),
      report["max_concurrent_requests"].get<int64_t>(),
      number("request_throughput"),
      number("output_throughput"),
      number("max_output_tokens_per_s"),
      number("total_token_throughput"));
  out += fmt::format("{} input tokens, {} output tokens\n",
                     report["total_input_tokens"].get<int64_t>(),
                     report["total_output_tokens"].get<int64_t>());
  out += draft_report_text(report);
  if (!report["request_goodput"].is_null()) {
    out +=
        fmt::format("{:.2f} requests/s within the goodput's limits\n", number("request_goodput"));
  }
  if (report["completed"] == 0) {
    return out;
  }
  std::vector<std::string> columns{"mean", "median", "std"};
  for (const double p : options.percentiles) {
    columns.push_back("p" + percentile_name(p));
  }
  out += fmt::format("\n{:<6}", "ms");
  for (const std::string& column : columns) {
    out += fmt::format("{:>11}", column);
  }
  for (const std::string& metric : options.metrics) {
    out += fmt::format("\n{:<6}", metric);
    for (const std::string& column : columns) {
      out += fmt::format("{:>11.2f}", number(fmt::format("{}_{}_ms", column, metric)));
    }
  }
  return out;
}

}  // namespace warprow
