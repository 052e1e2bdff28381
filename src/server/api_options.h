// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/api_keys.h"
#include "server/chat/tool_parser.h"
#include "server/metrics/server_watch.h"

#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

struct ApiOptions {
  std::vector<std::string> model_names;  // one or more; responses carry the first
  std::vector<std::string> api_keys;     // each key opens all paths
  std::vector<KeyFile> key_files;        // files of more keys; without any key all paths are open
  bool metrics_without_key = false;
  std::string version;
  bool strict = false;         // unknown fields are an error; else they are ignored
  bool dev_endpoints = false;  // /sleep, /wake_up, /is_sleeping, /reset_prefix_cache
  int64_t max_queued = 2048;   // limit of waiting requests, in addition to those in rows
  double stall_seconds = kDefaultStallSeconds;
  ToolFormat tool_format = ToolFormat::kNone;          // of tool calls that no grammar forces
  ReasoningFormat reasoning = ReasoningFormat::kNone;  // how the model writes reasoning
};

}  // namespace warprow
