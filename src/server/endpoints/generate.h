// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"
#include "server/chat/chat_parser.h"
#include "server/endpoints/endpoints.h"
#include "server/endpoints/generation_body.h"
#include "server/response/answer_writer.h"
#include "server/response/api_error.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

namespace warprow {

// The token ids of each prompt, or the client's error.
using Prompts = std::vector<std::vector<TokenId>>;
using EncodedPrompts = tl::expected<Prompts, ApiError>;
// Encodes a body's prompts, and sets the sampling options that depend on them.
using PreparePrompts = EncodedPrompts (*)(const Served& served, GenerationBody& body);

// How an endpoint that generates differs from the others.
struct GeneratingEndpoint {
  const char* name;       // in the journal and in traces
  const char* id_prefix;  // of its answers
  Result<GenerationBody> (*parse)(std::string_view text);
  PreparePrompts prepare;
  // With `echo`: the text before the answers to a prompt.
  std::string (*echo)(const Served& served,
                      const GenerationBody& body,
                      size_t index,
                      const std::vector<TokenId>& prompt);
  std::unique_ptr<AnswerWriter> (*make_writer)(const Served& served,
                                               GenerationBody& body,
                                               AnswerInfo info,
                                               AnswerShape shape);
};

// From a request to a Generation, which has submitted a request for each choice of each prompt.
ApiAnswer generate(Served& served,
                   const HttpRequest& request,
                   const Wake& wake,
                   const GeneratingEndpoint& endpoint);

// Sets the body's adapter if its model is one. Returns the name of the model that answers.
std::string take_adapter(const Served& served, GenerationBody& body);

// The error while the server shuts down; nullopt: it takes requests.
std::optional<ApiError> draining_error(const Served& served);
// Reserves places in the journal for the choices of a request, or the error if too many live.
std::optional<ApiError> reserve_places(Served& served, size_t num_choices);

// The body's prompts as the engine takes them: encoded, and truncated if the body asks for it. Refuses those that do not
// fit the model.
EncodedPrompts fitting_prompts(const Served& served, PreparePrompts prepare, GenerationBody& body);

// Encodes one text. Its length is not limited if truncate_prompt_tokens is set.
tl::expected<std::vector<TokenId>, ApiError> encode_text(const Served& served,
                                                         const GenerationBody& body,
                                                         const std::string& text,
                                                         bool add_special);
// Whether a prompt and its answer fit the model.
std::optional<ApiError> length_error(const Served& served,
                                     const GenerationBody& body,
                                     const std::vector<TokenId>& prompt);

// How an answer names a token.
TokenBytes token_bytes(const Served& served, const GenerationBody& body);

// Of completions; completions.cpp.
EncodedPrompts prepare_completions(const Served& served, GenerationBody& body);

// What chats and responses share; chat.cpp.
// Renders a chat with its own template, if the server trusts those of requests, or with the model's.
Result<std::string> render_chat_of(const Served& served, const ChatRequest& chat);
EncodedPrompts prepare_chat(const Served& served, GenerationBody& body);
std::string chat_echo(const Served& served,
                      const GenerationBody& body,
                      size_t index,
                      const std::vector<TokenId>& prompt);
MakeChatParser chat_parser(const Served& served,
                           const GenerationBody& body,
                           ChatEndpoint endpoint,
                           const std::string& answer_id);

}  // namespace warprow
