// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/flag_set.h"
#include "cli/parser_flags.h"
#include "server/api.h"
#include "server/http/http_options.h"

namespace warprow {

// What `warprow serve` can be told beside the engine's settings.
struct ServeOptions {
  HttpOptions http;
  ApiOptions api;
  ParserFlags parsers;
};

// The flags that fill `options`, which must outlive the parsing. Their names are those of vLLM where
// it has one.
void add_serve_flags(FlagSet& flags, ServeOptions& options);

}  // namespace warprow
