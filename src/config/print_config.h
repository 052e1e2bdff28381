// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/load_config.h"
#include "config/resolve.h"

#include <string>

namespace warprow {

// Every setting with its value, its origin and, if 0 left it open, its resolved value on this machine. The text
// form is YAML that --config reads back, with the origin as a comment:
// max-num-seqs: 0   # default, becomes 64
std::string config_as_yaml(const LoadedConfig& loaded, const ResolvedConfig& resolved);

// One JSON object: {"max-num-seqs":{"value":0,"source":"default","resolved":64},…}.
std::string config_as_json(const LoadedConfig& loaded, const ResolvedConfig& resolved);

// One JSON object of the values as they were given: {"max-num-seqs":0,…}.
std::string settings_json(const LoadedConfig& loaded);

// The settings that are not left at their defaults, on one line: "--max-num-seqs 17 (flag)", with
// commas between them.
std::string settings_line(const LoadedConfig& loaded);

}  // namespace warprow
