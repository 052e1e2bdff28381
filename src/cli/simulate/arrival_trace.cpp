// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/arrival_trace.h"

#include "cli/simulate/trace_line.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

using nlohmann::json;

constexpr int32_t kMooncakeUnit = 512;  // tokens of a hash
constexpr int64_t kMaxResultBytes = int64_t{1} << 30;

// One request of a line, without its place in the pools. nullopt: a request without an output, which is left out.
struct LineRequest {
  TraceRequest request;
  std::vector<uint64_t> keys;
};
using ReadLine = std::function<std::optional<LineRequest>(TraceLine& line)>;

std::optional<LineRequest> read_own(TraceLine& line) {
  LineRequest out;
  TraceRequest& request = out.request;
  request.arrival_s = line.number("arrival_s");
  request.input_tokens = line.count("input_tokens", 1, kMaxTraceLen);
  request.output_tokens = line.count("output_tokens", 1, kMaxTraceLen);
  request.priority = line.has("priority") ? line.whole("priority") : 0;
  if (line.has("prefix_id") || line.has("prefix_tokens")) {
    request.prefix_unit = line.count("prefix_tokens", 1, std::max(request.input_tokens, 1));
    out.keys.push_back(line.key("prefix_id"));
  }
  return out;
}

std::optional<LineRequest> read_mooncake(TraceLine& line) {
  LineRequest out;
  TraceRequest& request = out.request;
  request.arrival_s = 1e-3 * line.number("timestamp");
  request.input_tokens = line.count("input_length", 1, kMaxTraceLen);
  request.output_tokens = line.count("output_length", 0, kMaxTraceLen);
  request.prefix_unit = kMooncakeUnit;
  if (line.has("hash_ids")) {
    out.keys = line.keys("hash_ids", request.input_tokens / kMooncakeUnit + 1);
  }
  return request.output_tokens > 0 ? std::optional(std::move(out)) : std::nullopt;
}

std::optional<LineRequest> read_burstgpt(TraceLine& line) {
  LineRequest out;
  out.request.arrival_s = line.number("Timestamp");
  out.request.input_tokens = line.count("Request tokens", 0, kMaxTraceLen);
  out.request.output_tokens = line.count("Response tokens", 0, kMaxTraceLen);
  const bool is_whole = out.request.input_tokens > 0 && out.request.output_tokens > 0;
  return is_whole ? std::optional(std::move(out)) : std::nullopt;
}

std::optional<LineRequest> read_azure(TraceLine& line) {
  LineRequest out;
  out.request.arrival_s = line.date("TIMESTAMP");
  out.request.input_tokens = line.count("ContextTokens", 0, kMaxTraceLen);
  out.request.output_tokens = line.count("GeneratedTokens", 0, kMaxTraceLen);
  const bool is_whole = out.request.input_tokens > 0 && out.request.output_tokens > 0;
  return is_whole ? std::optional(std::move(out)) : std::nullopt;
}

struct Format {
  std::string_view name;
  bool is_csv;
  const char* field;  // in its first line, and in that of no other
  std::optional<LineRequest> (*read)(TraceLine& line);
};
constexpr std::array kFormats = {
    Format{"warprow", false, "\"arrival_s\"", &read_own},
    Format{"mooncake", false, "\"input_length\"", &read_mooncake},
    Format{"burstgpt", true, "Response tokens", &read_burstgpt},
    Format{"azure", true, "ContextTokens", &read_azure},
};

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

// A result is one object, and so one line.
bool is_bench_result(std::string_view text) {
  return text.find("\"input_lens\"") != std::string_view::npos;
}

Result<ArrivalTrace> read_bench_result(std::string_view text,
                                       const std::string& path,
                                       int64_t max_requests) {
  const json result = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!result.is_object()) {
    return refuse(fmt::format("{}: no JSON object", path));
  }
  const auto list = [&result](const char* name) { return result.value(name, json::array()); };
  const json starts = list("start_times");
  const json inputs = list("input_lens");
  const json outputs = list("output_lens");
  if (!starts.is_array() || !inputs.is_array() || !outputs.is_array() || inputs.empty() ||
      starts.size() != inputs.size() || outputs.size() != inputs.size()) {
    return refuse(
        fmt::format("{}: start_times, input_lens and output_lens have {}, {} and {} entries; they "
                    "must have as many, at least 1 (--save-detailed writes them)",
                    path,
                    starts.size(),
                    inputs.size(),
                    outputs.size()));
  }
  ArrivalTrace trace;
  for (size_t i = 0; i < inputs.size() && std::cmp_less(trace.requests.size(), max_requests); ++i) {
    const json row = {
        {"start_times", starts[i]}, {"input_lens", inputs[i]}, {"output_lens", outputs[i]}};
    TraceLine line = TraceLine::of(row, fmt::format("{}: request {}", path, i));
    TraceRequest request;
    request.arrival_s = line.number("start_times");
    request.input_tokens = line.count("input_lens", 0, kMaxTraceLen);
    request.output_tokens = line.count("output_lens", 0, kMaxTraceLen);
    if (!line.error().empty()) {
      return refuse(line.error());
    }
    if (request.input_tokens > 0 && request.output_tokens > 0) {
      trace.requests.push_back(request);
    } else {
      ++trace.num_skipped;  // it failed
    }
  }
  return trace;
}

// Lines of at most kMaxTraceLineBytes. text() is valid until next().
class LineFile {
 public:
  explicit LineFile(const std::string& path)
      : file_(path, std::ios::binary), buffer_(static_cast<size_t>(kMaxTraceLineBytes) + 1, '\0') {}
  [[nodiscard]] bool is_open() const { return file_.is_open(); }
  // False at the end, and after a line that is too long.
  bool next() {
    file_.getline(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    too_long_ = file_.fail() && !file_.eof() && file_.gcount() > 0;
    size_ = static_cast<size_t>(file_.gcount());
    size_ -= size_ > 0 && !file_.eof() && !too_long_ ? 1 : 0;  // the line end was counted
    size_ -= size_ > 0 && buffer_[size_ - 1] == '\r' ? 1 : 0;
    ++number_;
    return !file_.fail();
  }
  [[nodiscard]] bool too_long() const { return too_long_; }
  [[nodiscard]] std::string_view text() const { return std::string_view(buffer_).substr(0, size_); }
  [[nodiscard]] bool is_blank() const {
    return text().find_first_not_of(" \t") == std::string_view::npos;
  }
  [[nodiscard]] int64_t number() const { return number_; }

 private:
  std::ifstream file_;
  std::string buffer_;
  size_t size_ = 0;
  int64_t number_ = 0;
  bool too_long_ = false;
};

Result<std::string> read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const int64_t size = file ? static_cast<int64_t>(file.tellg()) : 0;
  if (size > kMaxResultBytes) {
    return refuse(fmt::format("{}: {} bytes; the limit is {}", path, size, kMaxResultBytes));
  }
  std::string text(static_cast<size_t>(size), '\0');
  file.seekg(0);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

Result<ArrivalTrace> read_lines(LineFile& file,
                                const std::string& path,
                                const Format& format,
                                int64_t max_requests) {
  ArrivalTrace trace;
  std::vector<std::string> header;
  for (bool more = true; more && std::cmp_less(trace.requests.size(), max_requests);
       more = file.next()) {
    if (file.is_blank()) {
      continue;
    }
    if (format.is_csv && header.empty()) {
      header = split_csv(file.text());
      continue;
    }
    TraceLine line(file.text(), header, fmt::format("{}:{}", path, file.number()));
    std::optional<LineRequest> read = format.read(line);
    if (!line.error().empty()) {
      return refuse(line.error());
    }
    if (!read) {
      ++trace.num_skipped;
      continue;
    }
    read->request.first_key = static_cast<int64_t>(trace.keys.size());
    read->request.num_keys = static_cast<int32_t>(read->keys.size());
    trace.requests.push_back(read->request);
    trace.keys.insert(trace.keys.end(), read->keys.begin(), read->keys.end());
    if (std::cmp_greater(trace.keys.size(), kMaxTraceKeys)) {
      return refuse(fmt::format("{}:{}: hash_ids: more than {} in all; --num-prompts {} reads less",
                                path,
                                file.number(),
                                kMaxTraceKeys,
                                trace.requests.size() - 1));
    }
  }
  if (file.too_long()) {
    return refuse(fmt::format(
        "{}:{}: the line has more than {} bytes", path, file.number(), kMaxTraceLineBytes));
  }
  return trace;
}

// Those of one time keep their order.
void sort_by_arrival(std::vector<TraceRequest>& requests) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(requests[i].arrival_s, i); });
  std::vector<TraceRequest> sorted;
  sorted.reserve(requests.size());
  for (const size_t i : order) {
    sorted.push_back(requests[i]);
  }
  requests = std::move(sorted);
}

// Arrivals from 0 on, in their order.
void settle_arrivals(ArrivalTrace& trace) {
  sort_by_arrival(trace.requests);
  const double first = trace.requests.empty() ? 0 : trace.requests.front().arrival_s;
  for (TraceRequest& request : trace.requests) {
    request.arrival_s -= first;
  }
}

Result<ArrivalTrace> read_unsettled(const std::string& path,
                                    const std::string& format,
                                    int64_t max_requests) {
  LineFile file(path);
  if (!file.is_open()) {
    return fail(ErrorCode::kNotFound, fmt::format("--trace: cannot read '{}'", path));
  }
  bool has_line = file.next();
  while (has_line && file.is_blank()) {
    has_line = file.next();
  }
  // A result of many requests is one line, or an indented object.
  const bool is_result = format == "bench" ||
                         (format == "auto" && !file.text().empty() && file.text().front() == '{' &&
                          (is_bench_result(file.text()) || file.text().size() == 1));
  if (is_result) {
    return read_whole(path).and_then(
        [&](const std::string& text) { return read_bench_result(text, path, max_requests); });
  }
  if (!has_line) {
    return refuse(
        file.too_long()
            ? fmt::format(
                  "{}:{}: the line has more than {} bytes", path, file.number(), kMaxTraceLineBytes)
            : fmt::format("--trace: '{}' holds no requests", path));
  }
  for (const Format& known : kFormats) {
    if (format == known.name ||
        (format == "auto" && file.text().find(known.field) != std::string_view::npos)) {
      return read_lines(file, path, known, max_requests);
    }
  }
  return refuse(
      fmt::format("{}:{}: the line is of no known format; --trace-format says which of {}",
                  path,
                  file.number(),
                  kTraceFormats));
}

}  // namespace

Result<ArrivalTrace> read_trace(const std::string& path,
                                const std::string& format,
                                int64_t max_requests) {
  Result<ArrivalTrace> trace = read_unsettled(path, format, max_requests);
  if (!trace) {
    return trace;
  }
  if (trace->requests.empty()) {
    return refuse(fmt::format("--trace: '{}' holds no requests", path));
  }
  settle_arrivals(*trace);
  return trace;
}

Result<void> check_trace(const ArrivalTrace& trace, const std::string& source) {
  const auto too_many = [&source](const char* what, int64_t count, int64_t limit) {
    return refuse(fmt::format(
        "{}: {} {}; the limit is {}, and --num-prompts takes less", source, count, what, limit));
  };
  const auto count = static_cast<int64_t>(trace.requests.size());
  if (count > kMaxTraceRequests) {
    return too_many("requests", count, kMaxTraceRequests);
  }
  int64_t num_toks = 0;
  for (const TraceRequest& request : trace.requests) {
    num_toks += request.output_tokens;
  }
  if (num_toks > kMaxTraceOutputTokens) {
    return too_many("output tokens", num_toks, kMaxTraceOutputTokens);
  }
  return {};
}

}  // namespace warprow
