// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

struct wr_template;

namespace warprow {

// Templates print mappings in insertion order, so JSON for templates keeps the order.
using OrderedJson = nlohmann::ordered_json;

struct ChatRequest {
  OrderedJson messages = OrderedJson::array();    // role and content, as in OpenAI's API
  bool add_generation_prompt = true;              // end with the opening of the assistant's turn
  bool continue_final_message = false;            // the answer continues the last message
  OrderedJson tools = nullptr;                    // an array of tool definitions, or null
  OrderedJson documents = nullptr;                // an array for retrieval templates, or null
  OrderedJson variables = OrderedJson::object();  // further variables (enable_thinking, ...)
  std::optional<std::string> chat_template = {};  // the request's own, in place of the model's
};

// Names of special tokens as templates know them (bos_token, ...), and their texts.
using NamedTokens = std::vector<std::pair<std::string, std::string>>;

// A model's chat template, rendered as transformers' apply_chat_template does: Jinja2 with
// trim_blocks, lstrip_blocks and loop controls; raise_exception, strftime_now; tojson as Python's
// json.dumps; special tokens as variables. A template may come from an untrusted source, so worker processes parse and
// render it, within limits on steps, time, memory, stack and output.
// Owns: the worker processes, which hold the parsed templates.
// Thread: const methods from any thread at once.
class ChatTemplate {
 public:
  struct Source {
    std::string_view text;
    std::string_view tool_use;  // the variant for requests with tools; empty if there is none
    NamedTokens
        special_tokens;  // bos_token, eos_token, unk_token, pad_token: those that the model has
  };

  // kUnsupported with the line if the template cannot be parsed, or with the limit that parsing exceeds. kBusy if no
  // worker process is available.
  static Result<ChatTemplate> parse(const Source& source);
  // The same at model load. A refused template is logged, because the model runs without it. StartupError if no worker
  // process is available.
  static Result<ChatTemplate> parse_of_model(const Source& source);

  // The prompt; special tokens appear as text (encode the prompt with add_special = false). kInvalidArgument with the
  // template's own message if it refuses the messages, with the line if it fails, or with the limit that it exceeds.
  // kBusy if no worker process is free. Does not look at continue_final_message: a model's chats are rendered by
  // render_chat (text/chat_prompt.h). Before rendering, a tool call's `arguments` given as JSON text become the
  // parsed value. A content given as a list of text parts becomes one text (joined by line ends) if the template does
  // not iterate over lists of parts itself.
  [[nodiscard]] Result<std::string> render(const ChatRequest& request) const;

  // The same with the request's own template, which must be set. A worker process for it alone parses and renders it,
  // within the same limits. Errors begin with chat_template.
  static Result<std::string> render_own(const ChatRequest& request,
                                        const NamedTokens& special_tokens);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

 private:
  struct Free {
    void operator()(wr_template* t) const;
  };
  using Handle = std::unique_ptr<wr_template, Free>;
  ChatTemplate() = default;
  static Result<Handle> parse_one(std::string_view source);
  static Result<std::string> render_context(const wr_template* chosen, const OrderedJson& context);

  Handle main_;
  Handle tool_use_;  // may be null
  OrderedJson special_tokens_ = OrderedJson::object();
};

}  // namespace warprow
