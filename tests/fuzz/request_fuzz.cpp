// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: for every input, the server's readers of bodies return options or an Error. Each endpoint with a
// body answers it over a toy engine with JSON or events, and never with an internal error.
#include "base/check.h"
#include "server/api.h"
#include "server/chat/tool_grammar.h"
#include "server/endpoints/chat_body.h"
#include "server/endpoints/completions_body.h"
#include "server/endpoints/responses_body.h"
#include "server/http_message.h"
#include "server/json_value.h"
#include "tests/engine/toy_engine.h"
#include "text/chat_template.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

// A template that visits everything a request may contain: contents, tools, calls, variables.
constexpr std::string_view kTemplate =
    "{% for t in tools or [] %}{{ t.function.name }}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content | "
    "trim }}"
    "{% elif m.content %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% "
    "endfor %}"
    "{{ m.reasoning_content }}<|im_end|>\n{% endfor %}{{ enable_thinking }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// Templates parse the arguments of calls; the body's limits do not apply to them.
void check_arguments_of(const GenerationBody& body) {
  for (const auto& message : body.chat.request.messages) {
    for (const auto& call : message.value("tool_calls", OrderedJson::array())) {
      const OrderedJson arguments = call["function"].value("arguments", OrderedJson());
      WR_CHECK(!arguments.is_string() || JsonShape().error(arguments.get<std::string>()).empty());
    }
  }
}

void read_bodies(std::string_view text) {
  const Result<GenerationBody> completions = parse_completions_body(text);
  WR_CHECK(completions.has_value() || !completions.error().message.empty());
  const Result<GenerationBody> chat = parse_chat_body(text);
  WR_CHECK(chat.has_value() || !chat.error().message.empty());
  if (chat) {
    check_arguments_of(*chat);
  }
  if (chat && chat->chat.tools.choice == ToolOptions::Choice::kRequired) {
    WR_CHECK(!tool_grammar(chat->chat.tools).text.empty());
  }
  if (const Result<ResponsesBody> body = parse_responses_body(text)) {
    (void)read_chat_body(body->chat, "");
  }
  (void)query_value(text, "seconds");
}

// A server without sockets.
class ToyServer {
 public:
  ToyServer() {
    auto text = testing::make_toy_text();
    text->chat_template = ChatTemplate::parse({kTemplate, "", {}});
    testing::FakeModel model;
    model.max_model_len = 96;
    engine_ = make_engine({}, std::move(text), std::make_unique<testing::FakeExecutor>(model));
    ApiOptions options;
    options.model_names = {"m"};
    options.max_queued = 16;
    options.tool_format = ToolFormat::kHermes;
    options.reasoning = ReasoningFormat::kThink;
    api_ = std::make_unique<Api>(*engine_, watch_, std::move(options));
  }

  void ask(const char* path, std::string_view body) {
    HttpRequest request;
    request.method = "POST";
    request.path = path;
    request.request_id = "r";
    request.body = body;
    Api::Answer answer = api_->handle(request, [this] {
      const std::scoped_lock lock(mutex_);
      woken_ = true;
      wake_.notify_all();
    });
    if (const auto* reply = std::get_if<HttpReply>(&answer)) {
      check_reply(*reply);
    } else {
      wait(*std::get<std::unique_ptr<Generation>>(answer));
    }
  }

 private:
  static void check_reply(const HttpReply& reply) {
    // 503: too many choices at once, or no worker process is free.
    WR_CHECK(
        reply.status == 200 || (reply.status >= 400 && reply.status < 500) || reply.status == 503,
        "{} {}",
        reply.status,
        reply.body);
    WR_CHECK(nlohmann::json::accept(reply.body), "{}", reply.body);
  }

  static void check_events(std::string_view events) {
    while (!events.empty()) {
      const size_t end = events.find("\n\n");
      WR_CHECK(end != std::string_view::npos);
      const std::string_view event = events.substr(0, end);
      const size_t data = event.find("data: ");
      WR_CHECK(data != std::string_view::npos && event.find('\n', data) == std::string_view::npos);
      const std::string_view text = event.substr(data + 6);
      WR_CHECK(text == "[DONE]" || nlohmann::json::accept(text), "{}", text);
      events.remove_prefix(end + 2);
    }
  }

  void wait(Generation& generation) {
    while (true) {
      check_events(generation.take());
      if (generation.finished()) {
        break;
      }
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return std::exchange(woken_, false); });
    }
    if (!generation.is_stream()) {
      check_reply(generation.reply());
    }
  }

  ServerWatch watch_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Api> api_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
};

void ask_server(std::string_view body) {
  static ToyServer server;
  for (const char* path :
       {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"}) {
    server.ask(path, body);
  }
}

}  // namespace
}  // namespace warprow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  warprow::read_bodies(text);
  warprow::ask_server(text);
  return 0;
}
