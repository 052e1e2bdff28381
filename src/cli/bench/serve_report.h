// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/answer.h"
#include "cli/bench/serve_load.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// The latencies to report, under vLLM's short names: "ttft" to the first piece, "tpot" per token after the first, "itl"
// between pieces, "e2el" to the last piece.
struct ServeReportOptions {
  std::vector<std::string> metrics{"ttft", "tpot", "itl"};
  std::vector<double> percentiles{99};
  std::map<std::string, double>
      goodput;            // limits in ms that a good request does not exceed; tpot, ttft, e2el
  bool detailed = false;  // include the results of each request
};

// These parse "ttft,tpot", "50,99.9" and "ttft:200,tpot:50". Errors name the flag and the value.
Result<std::vector<std::string>> parse_metrics(std::string_view text);
Result<std::vector<double>> parse_percentiles(std::string_view text);
Result<std::map<std::string, double>> parse_goodput(std::string_view text);

// The results under the names of `vllm bench serve --save-result`. Failed requests contribute only their number and
// errors.
AnswerJson serve_report(const ServeRecords& records, const ServeReportOptions& options);

// The same as text.
std::string serve_report_text(const AnswerJson& report, const ServeReportOptions& options);

}  // namespace warprow
