// SPDX-License-Identifier: Apache-2.0 libFuzzer target: whatever the bytes, the server's readers of
// bodies give options or an Error, and a chat that was read renders or is refused.
#include "base/check.h"
#include "server/chat/chat_prompt.h"
#include "server/chat/tool_grammar.h"
#include "server/generation_body.h"
#include "server/http_message.h"
#include "server/json_value.h"
#include "server/responses_body.h"
#include "text/chat_template.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace warprow {
namespace {

// Walks through what a request may bring: contents, tools, calls, variables.
constexpr std::string_view kTemplate =
    "{% for t in tools or [] %}{{ t.function.name }}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content | "
    "trim }}"
    "{% elif m.content %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% "
    "endfor %}"
    "{{ m.reasoning_content }}<|im_end|>\n{% endfor %}{{ enable_thinking }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// Templates parse the arguments of calls, which no limit of the body holds.
void check_arguments_of(const GenerationBody& body) {
  for (const auto& message : body.chat.request.messages) {
    for (const auto& call : message.value("tool_calls", OrderedJson::array())) {
      const OrderedJson arguments = call["function"].value("arguments", OrderedJson());
      WR_CHECK(!arguments.is_string() || JsonShape().error(arguments.get<std::string>()).empty());
    }
  }
}

void render(const GenerationBody& body) {
  static const ChatTemplate chat_template =
      value_or_throw(ChatTemplate::parse({kTemplate, "", {}}));
  const Result<std::string> text = chat_template.render(body.chat.request);
  WR_CHECK(text.has_value() || !text.error().message.empty());
}

void read_bodies(std::string_view text) {
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChat}) {
    const Result<GenerationBody> body = parse_generation_body(endpoint, text);
    WR_CHECK(body.has_value() || !body.error().message.empty());
    if (body && endpoint == Endpoint::kChat) {
      check_arguments_of(*body);
      render(*body);
    }
    if (body && body->chat.tools.choice == ToolOptions::Choice::kRequired) {
      WR_CHECK(!tool_grammar(body->chat.tools).text.empty());
    }
  }
  if (const Result<ResponsesBody> body = parse_responses_body(text)) {
    (void)parse_generation_body(Endpoint::kResponses, body->chat);
  }
  (void)query_value(text, "seconds");
}

}  // namespace
}  // namespace warprow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  warprow::read_bodies({reinterpret_cast<const char*>(data), size});
  return 0;
}
