// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include "base/log.h"
#include "text/helper_entry.h"
#include "text/textkit_call.h"

#include <functional>

#include <fmt/format.h>

namespace warprow {
namespace {

// Generous limits: a template normally takes milliseconds and little memory.
constexpr wr_template_limits kLimits = {.cpu_ms = 1000, .memory_mb = 256, .output_mb = 64};

void parse_arguments(OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) {
    return;
  }
  for (OrderedJson& call : *calls) {
    if (!call.is_object()) {
      continue;
    }
    OrderedJson& holder = call.contains("function") ? call["function"] : call;
    if (holder.is_object() && holder.contains("arguments") && holder["arguments"].is_string()) {
      OrderedJson value =
          OrderedJson::parse(holder["arguments"].get<std::string>(), nullptr, false);
      if (value.is_object()) {
        holder["arguments"] = std::move(value);
      }
    }
  }
}

// Joins text parts into one text. Leaves the content unchanged if it has parts of other kinds.
void join_parts(OrderedJson& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) {
    return;
  }
  std::string joined;
  bool first = true;
  for (const OrderedJson& part : *content) {
    if (!part.is_object() || part.value("type", "") != "text" || !part.contains("text") ||
        !part["text"].is_string()) {
      return;
    }
    joined += first ? "" : "\n";
    joined += part["text"].get_ref<const std::string&>();
    first = false;
  }
  *content = std::move(joined);
}

// Renders a template with these variables.
using Render = std::function<Result<std::string>(const OrderedJson& context)>;

// Whether the template iterates over lists of content parts itself. For a probe list, such a template prints the text
// of the part; another template prints the list around it, where a quote precedes the text.
bool takes_parts(const Render& render, const OrderedJson& special_tokens) {
  static constexpr std::string_view kProbe = "warprow-probe";
  OrderedJson context = special_tokens;
  context["messages"] = {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", kProbe}}}}}};
  context["tools"] = nullptr;
  context["documents"] = nullptr;
  context["add_generation_prompt"] = true;
  const auto text = render(context);
  const size_t at = text ? text->find(kProbe) : std::string::npos;
  return at != std::string::npos &&
         (at == 0 || ((*text)[at - 1] != '\'' && (*text)[at - 1] != '"'));
}

bool has_tools(const ChatRequest& request) {
  return request.tools.is_array() && !request.tools.empty();
}

Result<std::string> render_request(const ChatRequest& request,
                                   const OrderedJson& special_tokens,
                                   const Render& render) {
  if (!request.messages.is_array()) {
    return fail(ErrorCode::kInvalidArgument, "messages must be a list");
  }
  OrderedJson messages = request.messages;
  bool any_parts = false;
  for (OrderedJson& message : messages) {
    if (!message.is_object()) {
      return fail(ErrorCode::kInvalidArgument,
                  "every message must be an object with role and content");
    }
    parse_arguments(message);
    any_parts |= message.contains("content") && message["content"].is_array();
  }
  if (any_parts && !takes_parts(render, special_tokens)) {
    for (OrderedJson& message : messages) {
      join_parts(message);
    }
  }
  OrderedJson context = special_tokens;
  if (request.variables.is_object()) {
    context.update(request.variables);
  }
  context["messages"] = std::move(messages);
  context["tools"] = has_tools(request) ? request.tools : OrderedJson();
  context["documents"] = request.documents;
  context["add_generation_prompt"] = request.add_generation_prompt;
  return render(context);
}

OrderedJson variables_of(const NamedTokens& special_tokens) {
  OrderedJson out = OrderedJson::object();
  for (const auto& [name, text] : special_tokens) {
    out[name] = text;
  }
  return out;
}

std::string json_text(const OrderedJson& context) {
  return context.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

void ChatTemplate::Free::operator()(wr_template* t) const { wr_template_free(t); }
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate::Handle> ChatTemplate::parse_one(std::string_view source) {
  link_helper_entry();
  wr_template* parsed = nullptr;
  TextkitOwned error;
  const int failed = wr_template_parse(to_textkit(source), kLimits, &parsed, error.out());
  if (failed != 0) {
    return fail(textkit_error(failed, ErrorCode::kUnsupported),
                fmt::format("chat template: {}", error.text()));
  }
  return Handle(parsed);
}

Result<std::string> ChatTemplate::render_context(const wr_template* chosen,
                                                 const OrderedJson& context) {
  const std::string json = json_text(context);
  TextkitOwned text;
  TextkitOwned error;
  const int failed = wr_template_render(chosen, to_textkit(json), text.out(), error.out());
  if (failed != 0) {
    return fail(textkit_error(failed), fmt::format("chat template: {}", error.text()));
  }
  return text.str();
}

Result<ChatTemplate> ChatTemplate::parse(const Source& source) {
  ChatTemplate out;
  auto main = parse_one(source.text);
  if (!main) {
    return tl::unexpected(main.error());
  }
  out.main_ = *std::move(main);
  if (!source.tool_use.empty()) {
    auto tool_use = parse_one(source.tool_use);
    if (!tool_use) {
      return tl::unexpected(tool_use.error());
    }
    out.tool_use_ = *std::move(tool_use);
  }
  out.special_tokens_ = variables_of(source.special_tokens);
  return out;
}

Result<ChatTemplate> ChatTemplate::parse_of_model(const Source& source) {
  Result<ChatTemplate> parsed = parse(source);
  if (!parsed && parsed.error().code == ErrorCode::kBusy) {
    throw StartupError(parsed.error());
  }
  if (!parsed) {
    WR_LOG_WARN("{}; chats are refused", parsed.error().message);
  }
  return parsed;
}

Result<std::string> ChatTemplate::render(const ChatRequest& request) const {
  const bool for_tools = has_tools(request) && tool_use_ != nullptr;
  const wr_template* chosen = for_tools ? tool_use_.get() : main_.get();
  return render_request(request, special_tokens_, [chosen](const OrderedJson& context) {
    return render_context(chosen, context);
  });
}

Result<std::string> ChatTemplate::render_own(const ChatRequest& request,
                                             const NamedTokens& special_tokens) {
  link_helper_entry();
  const auto render = [&](const OrderedJson& context) -> Result<std::string> {
    const std::string json = json_text(context);
    TextkitOwned text;
    TextkitOwned error;
    const int failed = wr_template_render_once(
        to_textkit(*request.chat_template), to_textkit(json), kLimits, text.out(), error.out());
    if (failed != 0) {
      return fail(textkit_error(failed), fmt::format("chat_template: {}", error.text()));
    }
    return text.str();
  };
  return render_request(request, variables_of(special_tokens), render);
}

}  // namespace warprow
