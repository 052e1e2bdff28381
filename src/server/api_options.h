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
  bool strict = false;          // unknown fields are an error; else they are ignored
  bool dev_endpoints = false;   // the rows of Api::routes() with .dev
  bool tokenizer_info = false;  // /tokenizer_info
  bool lora_updates = false;    // /v1/load_lora_adapter and /v1/unload_lora_adapter
  std::string profile_dir;      // where /stop_profile writes; empty: profiles are refused
  bool traces = false;          // spans are made of requests
  std::string settings = "{}";  // the engine's, as a JSON object, for /server_info
  bool trust_request_chat_template = false;  // chats may bring a template of their own
  int64_t max_queued = 2048;  // limit of waiting requests, in addition to those in rows
  double stall_seconds = kDefaultStallSeconds;
  ToolFormat tool_format = ToolFormat::kNone;          // of tool calls that no grammar forces
  ReasoningFormat reasoning = ReasoningFormat::kNone;  // how the model writes reasoning
};

}  // namespace warprow
