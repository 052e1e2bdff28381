// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/flags/flag_set.h"
#include "cli/flags/parser_flags.h"
#include "cli/flags/record_flags.h"
#include "server/api.h"
#include "server/http/http_options.h"
#include "server/metrics/span_exporter.h"

#include <optional>

namespace warprow {

// The options of `warprow serve` in addition to the engine's settings.
struct ServeOptions {
  HttpOptions http;
  ApiOptions api;
  ParserFlags parsers;
  RecordFlags record;
  std::optional<SpanTarget> traces;  // where spans go
};

// Adds the flags that set `options`, which must outlive the parsing. The names are vLLM's if vLLM has the flag.
void add_serve_flags(FlagSet& flags, ServeOptions& options);

}  // namespace warprow
