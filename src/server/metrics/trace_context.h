// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace warprow {

// The place of a request in a client's trace, as the client's headers tell it.
struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits; empty: a new trace
  std::string parent_id;  // the client's span, 16 digits; empty: none
  std::string state;      // tracestate as it came
  bool sampled = true;    // false: the client records nothing, so the server must not either
};

// Reads the two headers. nullopt if `traceparent` is not one.
//
// Origin: W3C Trace Context, version 00; later versions are read by its rules.
std::optional<TraceContext> parse_traceparent(std::string_view traceparent,
                                              std::string_view tracestate);

// What a span says of a request beside its record.
struct RequestTrace {
  TraceContext context;
  double temperature = 0;
  double top_p = 0;
  int num_choices = 1;
};

}  // namespace warprow
