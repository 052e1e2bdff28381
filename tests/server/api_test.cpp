// SPDX-License-Identifier: Apache-2.0
// The endpoints over a toy engine, without sockets.
#include "server/api.h"

#include "tests/engine/toy_engine.h"
#include "tests/support/temp_dir.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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

TEST_F(ApiTest, ARequestIsExplainedToItsOwnKey) {
  ApiOptions options;
  options.api_keys = {"a", "b"};
  serve({}, options);
  const std::string body = R"({"prompt": [9, 3, 4], "max_tokens": 4, "ignore_eos": true, "n": 2})";
  ASSERT_EQ(reply("POST", "/v1/completions", body, "Bearer a").status, 200);
  const HttpReply got = reply("GET", "/v1/requests/cmpl-r", "", "Bearer a");
  ASSERT_EQ(got.status, 200) << got.body;
  const json answer = json::parse(got.body);
  EXPECT_EQ(answer["id"], "cmpl-r");
  ASSERT_EQ(answer["choices"].size(), 2);
  EXPECT_EQ(answer["choices"][1]["choice"], 1);
  EXPECT_EQ(answer["choices"][0]["state"], "length");
  EXPECT_EQ(answer["choices"][0]["output_tokens"], 4);
  EXPECT_EQ(answer["choices"][0]["timeline"][0]["event"], "arrived");
  EXPECT_EQ(reply("GET", "/v1/requests/r", "", "Bearer a").status, 200);  // the request's own id
  // The other key learns nothing, not even that it is there.
  HttpReply others = reply("GET", "/v1/requests/cmpl-r", "", "Bearer b");
  EXPECT_EQ(others.status, 404);
  EXPECT_EQ(others.body.replace(others.body.find("cmpl-r"), 6, "cmpl-x"),
            reply("GET", "/v1/requests/cmpl-x", "", "Bearer b").body);
  EXPECT_EQ(status("GET", "/v1/requests/cmpl-r"), 401);
  // The newest request of this id and key counts.
  const std::string one = R"({"prompt": [9], "max_tokens": 1, "ignore_eos": true})";
  ASSERT_EQ(reply("POST", "/v1/completions", one, "Bearer b").status, 200);
  EXPECT_EQ(json::parse(reply("GET", "/v1/requests/cmpl-r", "", "Bearer b").body)["choices"].size(),
            1);
  EXPECT_EQ(json::parse(reply("GET", "/v1/requests/cmpl-r", "", "Bearer a").body)["choices"].size(),
            2);
}

TEST_F(ApiTest, StatusesOfWhatItIsNotFor) {
  ApiOptions options;
  options.api_keys = {"a", "b"};
  options.strict = true;
  serve({}, options);
  EXPECT_EQ(reply("GET", "/nowhere", "", "Bearer a").status, 404);
  EXPECT_EQ(reply("POST", "/sleep", "", "Bearer a").status, 404);
  for (const char* path : {"/", "/docs", "/dashboard", "/health", "/ping", "/livez", "/readyz"}) {
    EXPECT_EQ(status("GET", path), 200) << path;
  }
  for (const char* path : {"/tokenizer_info", "/server_info", "/is_paused"}) {
    EXPECT_EQ(reply("GET", path, "", "Bearer a").status, 404) << path;
  }
  for (const char* path : {"/v1/models",
                           "/v1/models/toy",
                           "/v1/messages",
                           "/v1/messages/count_tokens",
                           "/v1/engine/state",
                           "/v1/requests/cmpl-r",
                           "/version",
                           "/metrics",
                           "/trace",
                           "/openapi.json",
                           "/tokenize",
                           "/sleep",
                           "/tokenizer_info",
                           "/server_info",
                           "/pause",
                           "/update_weights",
                           "/start_profile",
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

TEST_F(ApiTest, ARequestsTemplateNeedsTheServersTrust) {
  const std::string fields =
      R"("messages": [{"role": "user", "content": "5 6"}], "max_tokens": 2, "ignore_eos": true)";
  const std::string own = "{" + fields + R"(, "chat_template": "{{ messages[0].content }} 7 8"})";
  serve_chats("{{ messages[0].content }}", {});
  for (const char* path : {"/v1/chat/completions", "/tokenize"}) {
    const HttpReply refused = reply("POST", path, own);
    EXPECT_EQ(refused.status, 400) << path;
    EXPECT_EQ(json::parse(refused.body)["error"]["param"], "chat_template");
    EXPECT_THAT(refused.body, HasSubstr("without --trust-request-chat-template"));
  }
  ApiOptions trusting;
  trusting.trust_request_chat_template = true;
  serve_chats("{{ messages[0].content }}", trusting);
  const auto num_tokens = [&](const std::string& body) {
    const json answer = json::parse(reply("POST", "/tokenize", body).body);
    return answer["count"].get<int>();
  };
  EXPECT_GT(num_tokens(own), num_tokens("{" + fields + "}"));
  const json answer = json::parse(reply("POST", "/v1/chat/completions", own).body);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], num_tokens(own));
  EXPECT_THAT(reply("POST", "/tokenize", "{" + fields + R"(, "chat_template": "{% if %}"})").body,
              HasSubstr("chat_template: line 1"));
}

TEST_F(ApiTest, ThePagesLoadNothing) {
  serve({}, {});
  for (const char* path : {"/", "/docs", "/dashboard"}) {
    const HttpReply page = reply("GET", path);
    EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
    const auto policy = std::find_if(page.headers.begin(), page.headers.end(), [](const auto& h) {
      return h.first == "Content-Security-Policy";
    });
    ASSERT_NE(policy, page.headers.end());
    EXPECT_THAT(policy->second, HasSubstr("default-src 'none'"));
    for (const char* word : {"http://", "https://", "src=", "@import", "innerHTML"}) {
      const std::string text = path == std::string("/docs") ? page.body : "";
      EXPECT_EQ(text.find(word), text.npos) << word;
    }
  }
}

TEST_F(ApiTest, TokenizerInfoHasAFlag) {
  ApiOptions options;
  options.tokenizer_info = true;
  serve({}, options);
  const json info = json::parse(reply("GET", "/tokenizer_info").body);
  EXPECT_EQ(info["vocab_size"], engine_->text().tokenizer.vocab_size());
  EXPECT_EQ(info["added_tokens_decoder"]["0"], (json{{"content", "<eos>"}, {"special", true}}));
  EXPECT_EQ(info["eos_token_ids"], json(engine_->text().eos));
  EXPECT_TRUE(info["chat_template"].is_null());
}

TEST_F(ApiTest, TheEngineIsPausedAndResumed) {
  ApiOptions options;
  options.dev_endpoints = true;
  serve({}, options);
  const auto command = [&](const std::string& path, const std::string& query) {
    HttpRequest request;
    request.method = "POST";
    request.path = path;
    request.query = query;
    return std::get<HttpReply>(api_->handle(request, [] {}));
  };
  const auto is_paused = [&] { return json::parse(reply("GET", "/is_paused").body)["is_paused"]; };
  EXPECT_EQ(is_paused(), false);
  for (const char* query : {"mode=keep", "", "mode=abort&clear_cache=false"}) {
    EXPECT_EQ(command("/pause", query).body, R"({"status":"paused"})") << query;
    EXPECT_EQ(is_paused(), true);
    EXPECT_EQ(status("GET", "/readyz"), 503);
    EXPECT_EQ(status("GET", "/livez"), 200);
  }
  EXPECT_THAT(command("/pause", "mode=soon").body, HasSubstr("neither abort, keep nor wait"));
  EXPECT_THAT(command("/pause", "clear_cache=1").body, HasSubstr("neither true nor false"));
  const auto update = [&](const std::string& body) {
    return reply("POST", "/update_weights", body).body;
  };
  EXPECT_THAT(update("{}"), HasSubstr("update_info.weights_path: must name"));
  EXPECT_EQ(update(R"({"update_info": {"weights_path": "new"}})"),
            R"({"message":"Weights updated"})");
  EXPECT_EQ(command("/resume", "").body, R"({"status":"resumed"})");
  EXPECT_THAT(update(R"({"update_info": {"weights_path": "new"}})"), HasSubstr("pause it first"));
  EXPECT_EQ(is_paused(), false);
  EXPECT_EQ(status("GET", "/readyz"), 200);
  EXPECT_EQ(status("POST", "/v1/completions", R"({"prompt": [5], "max_tokens": 1})"), 200);
}

TEST_F(ApiTest, ServerInfoHasTheSettings) {
  ApiOptions options;
  options.dev_endpoints = true;
  options.version = "1.2.3";
  options.settings = R"({"max-num-seqs":7})";
  serve({}, options);
  const json info = json::parse(reply("GET", "/server_info").body);
  EXPECT_EQ(info["version"], "1.2.3");
  EXPECT_EQ(info["settings"]["max-num-seqs"], 7);
  EXPECT_EQ(info["models"], json::array({"toy"}));
}

TEST_F(ApiTest, ARenderedRequestHasItsTokensAndOptions) {
  serve({}, {});
  const std::string given =
      R"(, "temperature": 0.5, "seed": 7, "logit_bias": {"5": 1}, "cache_salt": "s")";
  const json list = json::parse(reply("POST",
                                      "/v1/completions/render",
                                      R"({"prompt": [[5, 6], [7]], "max_tokens": 3)" + given + "}")
                                    .body);
  ASSERT_EQ(list.size(), 2) << list;
  EXPECT_EQ(list[0]["token_ids"], json({5, 6}));
  EXPECT_EQ(list[1]["token_ids"], json({7}));
  EXPECT_EQ(list[1]["priority"], 0);
  EXPECT_EQ(list[1]["cache_salt"], "s");
  EXPECT_EQ(list[1]["model"], "toy");
  EXPECT_EQ(
      list[1]["sampling_params"],
      json::parse(R"({"temperature": 0.5, "seed": 7, "max_tokens": 3, "logit_bias": {"5": 1.0},
                            "ignore_eos": false, "include_stop_str_in_output": false,
                            "skip_special_tokens": true, "spaces_between_special_tokens": true})"));
  EXPECT_TRUE(list[0]["features"].is_null());
  EXPECT_EQ(status("POST", "/v1/completions/render", R"({"prompt": [5], "temperature": -1})"), 400);
  EXPECT_EQ(status("POST", "/v1/chat/completions/render", "{}"), 400);
  EXPECT_EQ(engine_->stats().steps, 0) << "nothing ran";
}

TEST_F(ApiTest, AProfileIsAFileOfTheTimeBetween) {
  ApiOptions options;
  options.dev_endpoints = true;
  serve({}, options);
  EXPECT_THAT(reply("POST", "/start_profile").body, HasSubstr("without --profile-dir"));
  const test::TempDir dir;
  options.profile_dir = dir.path().string();
  serve({}, options);
  const std::string body = R"({"prompt": [5], "max_tokens": 3, "ignore_eos": true})";
  EXPECT_THAT(reply("POST", "/stop_profile").body, HasSubstr("no profile was started"));
  EXPECT_EQ(status("POST", "/v1/completions", body), 200);
  EXPECT_EQ(status("POST", "/start_profile"), 200);
  EXPECT_EQ(status("POST", "/v1/completions", body), 200);
  const HttpReply stopped = reply("POST", "/stop_profile");
  ASSERT_EQ(stopped.status, 200) << stopped.body;
  const std::filesystem::path file(json::parse(stopped.body)["file"].get<std::string>());
  EXPECT_EQ(file.parent_path(), dir.path());
  std::ifstream content(file);
  const json events = json::parse(content)["traceEvents"];
  EXPECT_EQ(std::count_if(events.begin(),
                          events.end(),
                          [](const json& event) { return event["name"] == "to first token"; }),
            1)
      << "the request before the profile is not a part of it";
  EXPECT_EQ(status("POST", "/stop_profile"), 400);
}

TEST_F(ApiTest, ThoughtsEndWithTheirBudget) {
  ApiOptions options;
  options.reasoning = ReasoningFormat::kThink;
  const std::string chat_template =
      "{{ messages[0].content }}{% if enable_thinking == false %}<think></think>{% else "
      "%}<think>{% endif %}";
  serve_chats(chat_template, options);
  const TokenId end = *engine_->text().tokenizer.find("</think>");
  const auto choice = [&](char first, const json& fields) {
    json body = {{"messages", {{{"role", "user"}, {"content", std::string(1, first)}}}},
                 {"max_tokens", 12},
                 {"temperature", 0},
                 {"ignore_eos", true},
                 {"return_token_ids", true}};
    body.update(fields);
    const HttpReply got = reply("POST", "/v1/chat/completions", body.dump());
    EXPECT_EQ(got.status, 200) << got.body;
    return got.status == 200 ? json::parse(got.body)["choices"][0] : json();
  };
  // The length of the thought, without the tag.
  const auto thought_len = [&](char first, const json& fields) {
    const auto ids = choice(first, fields)["token_ids"].get<std::vector<TokenId>>();
    return std::find(ids.begin(), ids.end(), end) - ids.begin();
  };
  int num_cut = 0;
  for (char first = 'a'; first <= 'z'; ++first) {
    const auto by_itself = thought_len(first, json::object());
    EXPECT_EQ(thought_len(first, {{"thinking_token_budget", 0}}), 0);
    EXPECT_EQ(thought_len(first, {{"thinking_token_budget", 3}}),
              std::min<ptrdiff_t>(by_itself, 3));
    EXPECT_EQ(thought_len(first, {{"thinking_token_budget", -1}}), by_itself);
    num_cut += by_itself > 3 ? 1 : 0;
  }
  EXPECT_GT(num_cut, 5);
  const json structured = choice(
      'a', {{"thinking_token_budget", 2}, {"structured_outputs", {{"choice", {"stop", "xyz"}}}}});
  EXPECT_THAT(structured["message"]["content"].get<std::string>(), ::testing::AnyOf("stop", "xyz"));
  const json off = {{"chat_template_kwargs", {{"enable_thinking", false}}}};
  json off_with_budget = off;
  off_with_budget["thinking_token_budget"] = 0;
  EXPECT_EQ(choice('a', off)["token_ids"], choice('a', off_with_budget)["token_ids"])
      << "there is no section to end";
  const std::string bad = R"({"messages": [{"role": "user", "content": "a"}],
                              "thinking_token_budget": -2})";
  EXPECT_THAT(reply("POST", "/v1/chat/completions", bad).body,
              HasSubstr("thinking_token_budget: -2 must be 0 or more"));
  serve_chats(chat_template, {});
  const std::string good = R"({"messages": [{"role": "user", "content": "a"}],
                               "thinking_token_budget": 2})";
  EXPECT_THAT(reply("POST", "/v1/chat/completions", good).body,
              HasSubstr("thinking_token_budget: this server separates no"));
}

TEST_F(ApiTest, TextEndpointsNameWhatTheyIgnore) {
  const std::string detokenize = R"({"tokens": [5], "model": null, "odd": null, "skip": 1})";
  serve({}, {});
  const std::pair<std::string, std::string> named("X-Ignored-Params", "skip");
  EXPECT_THAT(reply("POST", "/detokenize", detokenize).headers, ElementsAre(named));
  const HttpReply tokenized = reply("POST", "/tokenize", R"({"prompt": "", "skip": 1})");
  EXPECT_THAT(tokenized.headers, ElementsAre(named)) << tokenized.body;
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
