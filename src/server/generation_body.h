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

// A chat before it is rendered with the chat template.
struct ChatOptions {
  ChatRequest request;
  bool continue_final_message = false;  // the answer continues the last message
  ToolOptions tools;
  bool include_reasoning = true;
  Thinking thinking = Thinking::kNone;  // how the answer to the rendered prompt begins
};

// The body of POST /v1/completions or /v1/chat/completions.
struct GenerationBody {
  std::vector<TextOrIds> prompts;  // completions: one or more
  ChatOptions chat;                // chats
  SamplingOptions sampling;
  int32_t priority = 0;
  std::string cache_salt;
  std::optional<bool> add_special_tokens;         // to texts; default: completions yes, chats no
  std::optional<int64_t> truncate_prompt_tokens;  // a prompt's limit in tokens; -1: what fits
  bool truncates_right = false;                   // keep the first tokens, not the last
  // The answer begins with the prompt; in a chat, with the message that the answer continues.
  bool echo = false;
  bool return_token_ids = false;            // of the prompts and the answers
  bool return_tokens_as_token_ids = false;  // logprobs name tokens "token_id:N"
  bool only_prompt = false;  // max_tokens 0 with echo: the answer is the prompt alone
  std::string model;         // empty: not named
  std::string request_id;    // empty: not named
  bool stream = false;
  bool include_usage = false;        // only with stream
  std::vector<std::string> ignored;  // unknown fields; nothing else is ignored
};

// Reads types and shapes; engine/validate checks ranges. Fields and defaults are vLLM's. null counts as absent. A whole
// number may be written 1.0. kInvalidArgument names the field, the value and what the value must be. kUnsupported names
// a known field that would change the answer and is not implemented.
Result<GenerationBody> parse_generation_body(Endpoint endpoint, std::string_view body);

}  // namespace warprow
