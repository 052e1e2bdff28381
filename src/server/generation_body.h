// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/request.h"
#include "server/chat_body.h"
#include "server/prompt_body.h"
#include "text/chat_template.h"
#include "text/thinking.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

enum class Endpoint { kCompletions, kChat, kResponses };

// A chat before its template.
struct ChatOptions {
  ChatRequest request;
  bool continue_final_message = false;  // the answer goes on with the last message
  ToolOptions tools;
  bool include_reasoning = true;
  Thinking thinking = Thinking::kNone;  // how the answer begins behind the rendered prompt
};

// The body of POST /v1/completions or /v1/chat/completions.
struct GenerationBody {
  std::vector<TextOrIds> prompts;  // completions: one or more
  ChatOptions chat;                // chats
  SamplingOptions sampling;
  int32_t priority = 0;
  std::string cache_salt;
  std::optional<bool> add_special_tokens;         // to texts; unset: completions yes, chats no
  std::optional<int64_t> truncate_prompt_tokens;  // of a longer prompt so many stay; -1: what fits
  bool truncates_right = false;                   // the first ones stay, not the last
  bool echo =
      false;  // the answer begins with the prompt; in a chat with the message it goes on with
  bool return_token_ids = false;            // the prompts' and the answers'
  bool return_tokens_as_token_ids = false;  // logprobs name tokens "token_id:N"
  bool only_prompt = false;                 // max_tokens 0 with echo: nothing is added to it
  std::string model;                        // empty: not named
  std::string request_id;                   // empty: not named
  bool stream = false;
  bool include_usage = false;        // only with stream
  std::vector<std::string> ignored;  // fields that are not known; nothing else is ignored
};

// Reads types and shapes; ranges are engine/validate's matter. Fields and defaults are vLLM's, null
// counts as absent, a whole number may be written 1.0. kInvalidArgument names the field, the value
// and what it must be; kUnsupported names a known field that would change the answer and is not
// there yet.
Result<GenerationBody> parse_generation_body(Endpoint endpoint, std::string_view body);

}  // namespace warprow
