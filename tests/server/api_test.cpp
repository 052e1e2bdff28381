// SPDX-License-Identifier: Apache-2.0
// The endpoints over a toy engine, without sockets.
#include "server/api.h"

#include "tests/engine/toy_engine.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ApiTest : public ::testing::Test {
 protected:
  void serve(const testing::FakeModel& model, ApiOptions options) {
    options.model_names = {"toy"};
    engine_ = testing::make_toy_engine({}, model);
    api_ = std::make_unique<Api>(*engine_, watch_, std::move(options));
  }

  // A toy engine with a chat template.
  void serve_chats(const std::string& chat_template, ApiOptions options) {
    std::unique_ptr<TextModel> text = testing::make_toy_text();
    text->chat_template = ChatTemplate::parse({chat_template, {}, {}});
    options.model_names = {"toy"};
    engine_ = make_engine(
        {}, std::move(text), std::make_unique<testing::FakeExecutor>(testing::FakeModel{}));
    api_ = std::make_unique<Api>(*engine_, watch_, std::move(options));
  }

  Api::Answer ask(const std::string& method,
                  const std::string& path,
                  const std::string& body = "",
                  const std::string& authorization = "") {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.authorization = authorization;
    request.request_id = "r";
    request.body = body;
    return api_->handle(request, [this] {
      const std::scoped_lock lock(mutex_);
      woken_ = true;
      wake_.notify_all();
    });
  }
  HttpReply reply(const std::string& method,
                  const std::string& path,
                  const std::string& body = "",
                  const std::string& authorization = "") {
    Api::Answer answer = ask(method, path, body, authorization);
    auto* generation = std::get_if<std::unique_ptr<Generation>>(&answer);
    if (generation == nullptr) {
      return std::get<HttpReply>(answer);
    }
    while (!(*generation)->finished()) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return std::exchange(woken_, false); });
      lock.unlock();
      (*generation)->take();
    }
    return (*generation)->reply();
  }
  int status(const std::string& method, const std::string& path, const std::string& body = "") {
    return reply(method, path, body).status;
  }

  std::atomic<bool> shut_ = false;
  ServerWatch watch_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Api> api_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
};

TEST_F(ApiTest, CompletesPromptsInTheirOrder) {
  serve({}, {});
  const HttpReply got = reply(
      "POST",
      "/v1/completions",
      R"({"prompt": [[9, 3, 4], [5]], "max_tokens": 4, "temperature": 0, "ignore_eos": true})");
  ASSERT_EQ(got.status, 200) << got.body;
  const json answer = json::parse(got.body);
  EXPECT_EQ(answer["id"], "cmpl-r");
  ASSERT_EQ(answer["choices"].size(), 2);
  EXPECT_EQ(answer["choices"][1]["index"], 1);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 8);
}

TEST_F(ApiTest, OneModelByItsName) {
  serve({}, {});
  EXPECT_EQ(json::parse(reply("GET", "/v1/models/toy").body)["id"], "toy");
  EXPECT_EQ(json::parse(reply("GET", "/v1/models/t%6Fy").body)["object"], "model");
  EXPECT_EQ(status("GET", "/v1/models/org/other"), 404);
  EXPECT_EQ(status("POST", "/v1/models/toy"), 405);
  EXPECT_EQ(status("GET", "/v1/models/"), 404);
  EXPECT_EQ(Api::known_path("/v1/models/org/other"), "/v1/models/{model}");
}

TEST_F(ApiTest, MessagesAndTheirCount) {
  serve_chats("{% for m in messages %}{{ m.content }}{% endfor %}", {});
  const std::string messages = R"("messages": [{"role": "user", "content": "5 6 7"}])";
  const HttpReply count = reply("POST", "/v1/messages/count_tokens", "{" + messages + "}");
  EXPECT_EQ(count.status, 200) << count.body;
  const HttpReply got = reply("POST", "/v1/messages", R"({"max_tokens": 3, )" + messages + "}");
  const json answer = json::parse(got.body);
  EXPECT_EQ(got.status, 200) << got.body;
  EXPECT_EQ(answer["role"], "assistant");
  EXPECT_EQ(answer["usage"]["input_tokens"], json::parse(count.body)["input_tokens"]);
  const HttpReply refused =
      reply("POST", "/v1/messages", R"({"max_tokens": 3, "model": "x", )" + messages + "}");
  EXPECT_EQ(refused.status, 404);
  EXPECT_EQ(json::parse(refused.body)["error"]["type"], "not_found_error");
  EXPECT_EQ(json::parse(refused.body)["type"], "error");
  EXPECT_EQ(status("POST", "/v1/messages/count_tokens", "{}"), 400);
}

TEST_F(ApiTest, StatusesOfWhatItIsNotFor) {
  ApiOptions options;
  options.api_keys = {"a", "b"};
  options.strict = true;
  serve({}, options);
  EXPECT_EQ(reply("GET", "/nowhere", "", "Bearer a").status, 404);
  EXPECT_EQ(reply("POST", "/sleep", "", "Bearer a").status, 404);
  for (const char* path : {"/", "/health", "/ping", "/livez", "/readyz"}) {
    EXPECT_EQ(status("GET", path), 200) << path;
  }
  for (const char* path : {"/v1/models",
                           "/v1/models/toy",
                           "/v1/messages",
                           "/v1/messages/count_tokens",
                           "/v1/engine/state",
                           "/version",
                           "/metrics",
                           "/trace",
                           "/openapi.json",
                           "/tokenize",
                           "/sleep",
                           "/nowhere"}) {
    EXPECT_EQ(status("GET", path), 401) << path;
    EXPECT_EQ(status("POST", path), 401) << path;
  }
  EXPECT_EQ(reply("GET", "/v1/models", "", "Bearer b").status, 200);
  EXPECT_EQ(reply("GET", "/v1/models", "", "bEARER  b").status, 200);
  for (const char* wrong : {"Bearer ab", "Bearer a b", "Bearer ", "Bearer", "Basic b", "b"}) {
    EXPECT_EQ(reply("GET", "/v1/models", "", wrong).status, 401) << wrong;
  }
  EXPECT_EQ(status("OPTIONS", "/v1/models"), 204);  // a preflight carries no key
  const HttpReply wrong_method = reply("GET", "/tokenize", "", "Bearer a");
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(wrong_method.headers.at(0).second, "POST");
  EXPECT_EQ(status("OPTIONS", "/tokenize"), 204);
  EXPECT_EQ(status("HEAD", "/health"), 200);
  const HttpReply strict =
      reply("POST", "/v1/completions", R"({"prompt": [5], "tempo": 1})", "Bearer a");
  EXPECT_EQ(strict.status, 400);
  EXPECT_THAT(strict.body, HasSubstr("tempo: no such field"));
  watch_.draining = true;
  EXPECT_EQ(reply("POST", "/v1/completions", R"({"prompt": [5]})", "Bearer a").status, 503);
  EXPECT_EQ(status("GET", "/readyz"), 503);
  EXPECT_EQ(status("GET", "/livez"), 200);
}

TEST_F(ApiTest, MetricsMayNeedNoKey) {
  ApiOptions options;
  options.api_keys = {"a"};
  options.metrics_without_key = true;
  serve({}, options);
  EXPECT_EQ(status("GET", "/metrics"), 200);
  EXPECT_EQ(status("GET", "/v1/models"), 401);
}

// The grammar starts after the thinking section that the template opens. If the template has closed the section, it
// starts at once.
TEST_F(ApiTest, StructuredAnswersComeBehindThinking) {
  ApiOptions options;
  options.reasoning = ReasoningFormat::kThink;
  serve_chats(
      "{{ messages[0].content }}{% if enable_thinking == false %}<think></think>{% else "
      "%}<think>{% endif %}",
      options);
  int num_thoughts = 0;
  for (char first = 'a'; first <= 'z'; ++first) {
    for (const bool thinks : {true, false}) {
      json body = {{"messages", {{{"role", "user"}, {"content", std::string(1, first)}}}},
                   {"max_tokens", 60},
                   {"temperature", 0},
                   {"ignore_eos", true},
                   {"chat_template_kwargs", {{"enable_thinking", thinks}}},
                   {"structured_outputs", {{"choice", {"stop", "xyz"}}}}};
      const HttpReply got = reply("POST", "/v1/chat/completions", body.dump());
      ASSERT_EQ(got.status, 200) << got.body;
      const json choice = json::parse(got.body)["choices"][0];
      const std::string content = choice["message"]["content"];
      const bool has_thought = choice["message"].contains("reasoning_content");
      EXPECT_TRUE(thinks || !has_thought) << got.body;
      if (choice["finish_reason"] == "stop") {
        EXPECT_TRUE(content == "stop" || content == "xyz") << got.body;
        num_thoughts += has_thought ? 1 : 0;
      } else {
        EXPECT_TRUE(thinks && std::string("stop xyz").find(content) != std::string::npos)
            << got.body;
      }
    }
  }
  EXPECT_GT(num_thoughts, 5);
}

TEST_F(ApiTest, TextEndpointsNameWhatTheyIgnore) {
  const std::string detokenize = R"({"tokens": [5], "model": null, "odd": null, "skip": 1})";
  serve({}, {});
  const std::pair<std::string, std::string> named("X-Ignored-Params", "skip");
  EXPECT_THAT(reply("POST", "/detokenize", detokenize).headers, ElementsAre(named));
  const HttpReply tokenized = reply("POST", "/tokenize", R"({"prompt": "", "skip": 1})");
  EXPECT_THAT(tokenized.headers, ElementsAre(named)) << tokenized.body;
  EXPECT_THAT(reply("POST", "/tokenize", R"({"prompt": "", "chat_template": "x"})").body,
              HasSubstr("chat_template: not supported yet"));
  EXPECT_EQ(status("POST", "/detokenize", R"({"tokens": [5], "model": "other"})"), 404);
  EXPECT_THAT(reply("POST", "/detokenize", "{}").body, HasSubstr(R"("param":"tokens")"));
  ApiOptions strict;
  strict.strict = true;
  serve({}, strict);
  EXPECT_THAT(reply("POST", "/detokenize", detokenize).body, HasSubstr("skip: no such field"));
  EXPECT_EQ(status("POST", "/tokenize", R"({"prompt": "", "skip": 1})"), 400);
}

TEST_F(ApiTest, ATextThatCannotFitIsRefusedByItsLength) {
  serve({}, {});
  const size_t longest =
      std::string("</think>").size();  // length in toy tokens, as they are spelled
  const auto limit = static_cast<size_t>(engine_->model_facts().max_model_len);
  const auto ask_with = [&](const std::string& path, size_t size) {
    return reply("POST", path, json{{"prompt", std::string(size, 'a')}, {"max_tokens", 1}}.dump());
  };
  EXPECT_EQ(ask_with("/tokenize", limit * longest).status, 200);
  for (const char* path : {"/tokenize", "/v1/completions"}) {
    const HttpReply refused = ask_with(path, (limit + 1) * longest);
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.body, HasSubstr("this model's maximum context length is"));
    const json error = json::parse(refused.body)["error"];
    EXPECT_EQ(error["type"], "context_length_exceeded");
    EXPECT_EQ(error["param"], "prompt");
    EXPECT_EQ(error["n_prompt_tokens"], limit + 1);
  }
  // A prompt that may be truncated can have any length.
  const std::string cut = json{{"prompt", std::string((limit + 1) * longest, 'a')},
                               {"max_tokens", 1},
                               {"truncate_prompt_tokens", 3}}
                              .dump();
  EXPECT_EQ(reply("POST", "/v1/completions", cut).status, 200);
}

TEST_F(ApiTest, HealthNamesThePhaseOfAnEngineThatIsStuck) {
  testing::FakeModel model;
  model.gate_shut = &shut_;
  serve(model, {});
  EXPECT_EQ(status("GET", "/health"), 200);
  shut_ = true;
  {
    const Api::Answer stuck = ask("POST", "/v1/completions", R"({"prompt": [5], "max_tokens": 2})");
    const auto begin = std::chrono::steady_clock::now();
    while (status("GET", "/health") == 200 &&
           std::chrono::steady_clock::now() - begin < milliseconds(5'000)) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    const HttpReply health = reply("GET", "/health");
    EXPECT_EQ(health.status, 503);
    EXPECT_THAT(health.body, HasSubstr("in phase device"));
    EXPECT_EQ(status("GET", "/readyz"), 503);
    const json state = json::parse(reply("GET", "/v1/engine/state").body);
    EXPECT_FALSE(state["engine"]["answered"]);
    EXPECT_EQ(state["requests"].size(), 1);
    shut_ = false;
  }
  while (status("GET", "/health") != 200) {
    std::this_thread::sleep_for(milliseconds(5));
  }
}

TEST_F(ApiTest, PlacesAreBoundedAndComeBack) {
  testing::FakeModel model;
  model.max_num_seqs = 1;
  model.gate_shut = &shut_;
  shut_ = true;
  ApiOptions options;
  options.max_queued = 1;
  serve(model, options);
  const std::string body = R"({"prompt": [5], "max_tokens": 2, "ignore_eos": true})";
  {
    const Api::Answer first = ask("POST", "/v1/completions", body);
    const Api::Answer second = ask("POST", "/v1/completions", body);
    const HttpReply third = reply("POST", "/v1/completions", body);
    EXPECT_EQ(third.status, 429) << third.body;
    EXPECT_EQ(third.headers.at(0).first, "Retry-After");
    shut_ = false;
  }
  for (int i = 0; i < 5000 && watch_.journal.num_live() > 0; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(watch_.journal.num_live(), 0);
  EXPECT_EQ(status("POST", "/v1/completions", body), 200);
}

}  // namespace
}  // namespace warprow
