// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/serve_flags.h"

#include "cli/flags/number_flags.h"

#include <cmath>
#include <string>
#include <utility>

namespace warprow {

void add_dataset_flags(FlagSet& flags, ServeDataset& dataset, const char* num_prompts_help) {
  const auto flag = [](const char* name, const char* help, bool common = true) {
    return Flag{.name = name, .value = "", .group = "Prompts", .help = help, .common = common};
  };
  flags.add_value({.name = "dataset-name",
                   .value = "random|custom",
                   .group = "Prompts",
                   .help = "random tokens, or the lines of --dataset-path [random]"},
                  [&dataset](const std::string& text) -> Result<void> {
                    dataset.name = text;
                    return {};
                  });
  flags.add_text({.name = "dataset-path",
                  .value = "FILE",
                  .group = "Prompts",
                  .help = "JSON lines with \"prompt\" or \"messages\", and \"output_tokens\" if "
                          "another number than --custom-output-len is wanted"},
                 dataset.path);
  add_count_flag(flags, flag("num-prompts", num_prompts_help), dataset.num_prompts);
  add_count_flag(flags, flag("random-input-len", "tokens of a random prompt"), dataset.input_len);
  add_count_flag(
      flags, flag("random-output-len", "tokens generated for a random prompt"), dataset.output_len);
  add_number_flag(
      flags,
      flag("random-range-ratio", "lengths are drawn from len * (1 - X) to len * (1 + X)"),
      dataset.range_ratio);
  add_count_flag(flags,
                 flag("random-prefix-len", "tokens that all random prompts share, in front", false),
                 dataset.prefix_len);
  add_count_flag(flags,
                 flag("custom-output-len", "tokens generated for a line of the file", false),
                 dataset.custom_output_len);
  add_count_flag(
      flags, flag("vocab-size", "random token ids are below; 0: 8192", false), dataset.vocab_size);
  flags.add_switch({.name = "random-text",
                    .value = "",
                    .group = "Prompts",
                    .help = "random prompts are words, about a token each, not token ids; always "
                            "so in a chat",
                    .common = false},
                   [&dataset](bool on) { dataset.as_text = on; });
}

void add_arrival_flags(FlagSet& flags, ServeLoad& load) {
  const auto flag = [](const char* name, const char* help) {
    return Flag{.name = name, .value = "", .group = "Load", .help = help};
  };
  add_number_flag(
      flags, flag("request-rate", "requests a second; inf: all at once"), load.request_rate);
  add_number_flag(flags,
                  flag("burstiness", "1: Poisson arrivals; lower: burstier, higher: more even"),
                  load.burstiness);
  add_count_flag(flags,
                 flag("max-concurrency", "requests under way at most; 0: no limit"),
                 load.max_concurrency);
  add_count_flag(flags, flag("seed", "of prompts and arrivals"), load.seed);
}

Result<void> check_arrivals(const ServeLoad& load) {
  if (load.request_rate == 0 || load.burstiness == 0 || std::isinf(load.burstiness)) {
    return fail(ErrorCode::kInvalidArgument,
                "--request-rate and --burstiness must be above 0, and --burstiness finite");
  }
  return {};
}

void add_report_flags(FlagSet& flags, ServeReportOptions& report) {
  const auto add = [&flags](const char* name, const char* value, const char* help, auto read) {
    flags.add_value({.name = name, .value = value, .group = "Result", .help = help}, read);
  };
  const auto into = [](auto parse, auto& target) {
    return [parse, &target](const std::string& text) -> Result<void> {
      return parse(text).map([&target](auto value) { target = std::move(value); });
    };
  };
  add("percentile-metrics",
      "NAME[,NAME...]",
      "latencies to show: ttft, tpot, itl, e2el [ttft,tpot,itl]",
      into(parse_metrics, report.metrics));
  add("metric-percentiles",
      "P[,P...]",
      "their percentiles [99]",
      into(parse_percentiles, report.percentiles));
  add("goodput",
      "NAME:MS[,...]",
      "limits of ttft, tpot and e2el that a good request keeps",
      into(parse_goodput, report.goodput));
  flags.add_switch({.name = "save-detailed",
                    .value = "",
                    .group = "Result",
                    .help = "with the lengths, times, texts and errors of each request"},
                   [&report](bool on) { report.detailed = on; });
}

}  // namespace warprow
