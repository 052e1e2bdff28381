// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/request.h"
#include "server/json_value.h"
#include "text/chat_template.h"
#include "text/thinking.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace warprow {

using TextOrIds = std::variant<std::string, std::vector<TokenId>>;

// A chat's tools and tool choice.
struct ToolOptions {
  enum class Choice { kNone, kAuto, kRequired, kNamed };

  OrderedJson tools = nullptr;  // a list of functions, or null
  Choice choice = Choice::kAuto;
  std::string name;  // with kNamed
  bool parallel = true;
};

// A chat before it is rendered with the chat template.
struct ChatOptions {
  ChatRequest request;
  ToolOptions tools;
  bool include_reasoning = true;
  std::optional<int64_t> thinking_token_budget;  // -1: none
  Thinking thinking = Thinking::kNone;           // how the answer to the rendered prompt begins
};

// The body of an endpoint that generates: the engine's request, without its prompt, and the prompts before they are
// encoded, with what the answer shows.
struct GenerationBody : GenerationRequest {
  std::vector<TextOrIds> prompts;                 // completions: one or more
  ChatOptions chat;                               // chats
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
  bool include_usage = false;     // only with stream
  bool continuous_usage = false;  // the usage so far in every chunk, too; only with include_usage
  std::vector<std::string> ignored;  // unknown fields; nothing else is ignored
  // responses: members of the answer that repeat the request; messages: the number of prompt tokens
  OrderedJson echoed = nullptr;
};

// A body while it is read, with fields whose meaning depends on other fields.
struct BodyDraft {
  GenerationBody body;
  bool has_structure = false;
  bool has_stream_options = false;
  // Chats:
  bool chat_logprobs = false;
  std::optional<int64_t> top_logprobs;
  std::optional<int64_t> max_completion_tokens;
};

using ReadField = Result<void> (*)(const char* field, const OrderedJson& value, BodyDraft& draft);

struct BodyField {
  const char* name;
  ReadField read;
};

// Readers of plain values, for tables of fields.
template <auto kMember>
Result<void> sampling(const char* field, const OrderedJson& value, BodyDraft& draft) {
  return read_value(field, value, draft.body.sampling.*kMember);
}
template <auto kMember>
Result<void> of_body(const char* field, const OrderedJson& value, BodyDraft& draft) {
  return read_value(field, value, draft.body.*kMember);
}
template <auto kMember>
Result<void> of_draft(const char* field, const OrderedJson& value, BodyDraft& draft) {
  return read_value(field, value, draft.*kMember);
}

// Reads the fields that an endpoint has of its own, and those that all endpoints share. Reads types and shapes;
// engine/validate checks ranges. Fields and defaults are vLLM's. null counts as absent. A whole number may be written
// 1.0. kInvalidArgument names the field, the value and what the value must be. kUnsupported names a known field that
// would change the answer and is not implemented. text: what `root` was parsed from; empty: `root` has no text.
Result<BodyDraft> read_generation_fields(const OrderedJson& root,
                                         std::string_view text,
                                         std::span<const BodyField> own);

}  // namespace warprow
