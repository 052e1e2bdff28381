// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/trace_context.h"

#include <algorithm>

namespace warprow {
namespace {

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
}

bool is_id(std::string_view text) {
  return is_hex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view traceparent,
                                              std::string_view tracestate) {
  constexpr size_t kSize = 55;  // of 00-<trace>-<span>-<flags>
  constexpr size_t kLongestState = 512;
  if (traceparent.size() < kSize) {
    return std::nullopt;
  }
  const std::string_view version = traceparent.substr(0, 2);
  const std::string_view trace = traceparent.substr(3, 32);
  const std::string_view span = traceparent.substr(36, 16);
  const std::string_view flags = traceparent.substr(53, 2);
  const bool has_dashes = traceparent[2] == '-' && traceparent[35] == '-' && traceparent[52] == '-';
  const bool ends = traceparent.size() == kSize || (version != "00" && traceparent[kSize] == '-');
  if (!has_dashes || !ends || !is_hex(version) || version == "ff" || !is_id(trace) ||
      !is_id(span) || !is_hex(flags)) {
    return std::nullopt;
  }
  const char last = flags.back();
  const int digit = last <= '9' ? last - '0' : last - 'a' + 10;
  return TraceContext{.trace_id = std::string(trace),
                      .parent_id = std::string(span),
                      .state = std::string(tracestate.size() <= kLongestState ? tracestate : ""),
                      .sampled = digit % 2 == 1};
}

}  // namespace warprow
