// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_frame.h"

#include "cli/flags/number_flags.h"
#include "cli/flags/sampling_fields.h"
#include "cli/output.h"
#include "engine/validate.h"

#include <algorithm>
#include <fstream>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace warprow {

BenchFrame::BenchFrame(const char* name, const char* summary)
    : frame_(name, summary, "MODEL [FLAGS]") {
  flags().add_text({.name = "output-json",
                    .value = "FILE",
                    .group = "Bench",
                    .help = "also write the result as JSON to FILE"},
                   output_json_);
  frame_.add_output_flag();
}

void BenchFrame::add_count(const char* name, const std::string& help, int64_t& target) {
  add_count_flag(flags(), {.name = name, .value = "", .group = "Bench", .help = help}, target);
}

void BenchFrame::add_counts(const char* name,
                            const std::string& help,
                            std::vector<int64_t>& target) {
  flags().add_value({.name = name,
                     .value = "N[,N...]",
                     .group = "Bench",
                     .help = fmt::format("{} [{}]", help, fmt::join(target, ","))},
                    [name, &target](const std::string& text) -> Result<void> {
                      target.clear();
                      for (size_t at = 0; at <= text.size();) {
                        const size_t end = std::min(text.find(',', at), text.size());
                        const Result<int64_t> value = parse_count(name, text.substr(at, end - at));
                        if (!value) {
                          return tl::unexpected(value.error());
                        }
                        target.push_back(*value);
                        at = end + 1;
                      }
                      return {};
                    });
}

void BenchFrame::add_lengths(BenchLoad& load) {
  add_count("input-len", "tokens of each prompt", load.input_len);
  add_count("output-len", "tokens that each generates", load.output_len);
}

void BenchFrame::add_sampling(BenchLoad& load) {
  sampling_ = &load.sampling;
  add_sampling_flags(flags(), load.sampling);
}

Result<std::optional<ExitCode>> BenchFrame::begin(const Arguments& arguments) {
  Arguments all{"--no-enable-prefix-caching"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  auto begun = frame_.begin(all, {.has_request_seed = sampling_ != nullptr, .is_offline = true});
  if (!begun || *begun || sampling_ == nullptr) {
    return begun;
  }
  if (sampling_->max_tokens || !sampling_->stop.empty() || !sampling_->stop_token_ids.empty()) {
    return fail(
        ErrorCode::kInvalidArgument,
        "--output-len alone says how long the answers are: leave out --max-tokens and stops");
  }
  if (Result<void> checked = check_without_model(*sampling_); !checked) {
    return tl::unexpected(refused_request(checked.error()));
  }
  return begun;
}

Result<ExitCode> BenchFrame::report(const AnswerJson& json, const std::string& text) const {
  if (output_json_) {
    std::ofstream file(*output_json_);
    if (!(file << json_line(json) << std::flush)) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("--output-json: cannot write '{}'", *output_json_));
    }
  }
  Output out(STDOUT_FILENO);
  out.write(frame_.as_json() ? json_line(json) : text);
  out.end_line();
  return out.status().map([] { return ExitCode::kOk; });
}

Result<void> check_counts(const std::vector<int64_t>& counts, const char* names) {
  if (std::any_of(counts.begin(), counts.end(), [](int64_t count) { return count < 1; })) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} must be at least 1", names));
  }
  return {};
}

AnswerJson percentiles_json(const std::vector<double>& values) {
  AnswerJson json;
  for (const int p : {10, 25, 50, 75, 90, 99}) {
    json[std::to_string(p)] = percentile(values, p);
  }
  return json;
}

std::string graphs_text(const AnswerJson& graphs) {
  const auto count = [&](const char* name) { return graphs[name].get<int64_t>(); };
  if (count("full") + count("piecewise") + count("eager") == 0) {
    return "";
  }
  return fmt::format("\nparts of steps from graphs: {} full, {} piecewise; {} without; {} captured",
                     count("full"),
                     count("piecewise"),
                     count("eager"),
                     count("captures"));
}

}  // namespace warprow
