// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"

#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

// One request of a trace: when it comes, and how long prompt and answer are. Its prompt's content, as far as it matters:
// the tokens [i * prefix_unit, (i + 1) * prefix_unit) are the same in all requests whose i-th key and all before it are
// the same. What follows the keys is the request's own.
struct TraceRequest {
  double arrival_s = 0;  // after the first request's
  int32_t input_tokens = 0;
  int32_t output_tokens = 0;
  int32_t priority = 0;
  int32_t prefix_unit = 0;  // 0: no keys
  int64_t first_key = 0;    // in ArrivalTrace::keys
  int32_t num_keys = 0;
  int64_t first_token = -1;  // in ArrivalTrace::tokens; -1: the tokens are not known
  bool operator==(const TraceRequest&) const = default;
};

struct ArrivalTrace {
  std::vector<TraceRequest> requests;  // in the order of arrival
  std::vector<uint64_t> keys;          // pool of TraceRequest::num_keys
  std::vector<TokenId> tokens;         // pool of prompts that are known
  int64_t num_skipped = 0;             // lines of requests without an output
};

// What one trace may have. Larger ones are read in part, with a limit on the requests.
inline constexpr int64_t kMaxTraceRequests = 1'000'000;
inline constexpr int64_t kMaxTraceOutputTokens = 50'000'000;
inline constexpr int64_t kMaxTraceKeys = 20'000'000;
inline constexpr int32_t kMaxTraceLen = 100'000'000;  // tokens of one prompt or answer
inline constexpr int64_t kMaxTraceLineBytes = 4 << 20;

// auto: by the first line.
//   warprow   JSON lines {"arrival_s": 0.5, "input_tokens": 240, "output_tokens": 33, "prefix_id": "a", "prefix_tokens":
//             128, "priority": 0}; the last three may be left out
//   burstgpt  the CSV that vLLM's benchmark reads: Timestamp (s), Request tokens, Response tokens
//   bench     a result of `vllm bench serve` or `warprow bench serve` with --save-detailed: start_times, input_lens,
//             output_lens
//   azure     the CSV of Azure's LLM inference traces: TIMESTAMP (date and time), ContextTokens, GeneratedTokens
//   mooncake  JSON lines {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}, a hash for each 512
//             tokens
inline constexpr const char* kTraceFormats = "auto|warprow|burstgpt|bench|azure|mooncake";

// Reads the first max_requests of a file. Errors name the file, the line, the field, its value and the limit.
Result<ArrivalTrace> read_trace(const std::string& path,
                                const std::string& format,
                                int64_t max_requests);

// The limits on a whole trace. Errors name `source`.
Result<void> check_trace(const ArrivalTrace& trace, const std::string& source);

}  // namespace warprow
