// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/api_keys.h"
#include "server/chat/tool_parser.h"
#include "server/generation.h"
#include "server/generation_body.h"
#include "server/http_message.h"
#include "server/prompt_encoder.h"
#include "server/watch/server_watch.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace warprow {

struct ApiOptions {
  std::vector<std::string> model_names;  // one or more; responses carry the first
  std::vector<std::string> api_keys;     // each key opens all paths
  std::vector<KeyFile> key_files;        // files of more keys; without any key all paths are open
  bool metrics_without_key = false;
  std::string version;
  bool strict = false;         // unknown fields are an error; else they are ignored
  bool dev_endpoints = false;  // /sleep, /wake_up, /is_sleeping, /reset_prefix_cache
  int64_t max_queued = 2048;   // limit of waiting requests, in addition to those in rows
  double stall_seconds = kDefaultStallSeconds;
  ToolFormat tool_format = ToolFormat::kNone;  // of tool calls that no grammar forces
  bool reasoning = false;  // the model writes reasoning sections, <think> ... </think>
};

// The endpoints: from a request to a complete reply or to a Generation. Does not depend on sockets.
//
// Thread: any; each Generation by one thread at a time. The engine outlives this and every Generation, the
// watch outlives the engine.
class Api {
 public:
  Api(Engine& engine, ServerWatch& watch, ApiOptions options);

  using Answer = std::variant<HttpReply, std::unique_ptr<Generation>>;
  // wake: see UpdateBox. Never throws: an exception becomes an error reply. May block for a while, unless
  // the request's effort is kNone.
  Answer handle(const HttpRequest& request, const std::function<void()>& wake) noexcept;

  // The reply if the head alone decides it: an unknown path or method, a missing key, OPTIONS. nullopt: the request
  // goes on to handle(). Does not read the body.
  [[nodiscard]] std::optional<HttpReply> judge(const HttpRequest& head) const;
  // The work that an endpoint needs. kNone: no time, so it may run on the I/O thread. kText: work on texts; only these
  // requests have their body read. kReport: reads the engine's state. kCommand: a command to the engine, which may
  // take long.
  enum class Effort { kNone, kText, kReport, kCommand };
  [[nodiscard]] static Effort effort(const HttpRequest& head);
  // The path if it is one of our routes, else "other".
  [[nodiscard]] static std::string known_path(const std::string& path);

  [[nodiscard]] bool needs_key() const { return !keys_.empty(); }
  [[nodiscard]] ApiKeys& keys() { return keys_; }
  [[nodiscard]] ServerWatch& watch() { return watch_; }

 private:
  using Wake = std::function<void()>;
  struct Route;
  static std::span<const Route> routes();
  static const Route* find_route(const HttpRequest& request);

  Answer route(const HttpRequest& request, const Wake& wake);
  [[nodiscard]] bool has_key(const HttpRequest& request) const;

  // api_generate.cpp
  Answer completions(const HttpRequest& request, const Wake& wake);
  Answer chat_completions(const HttpRequest& request, const Wake& wake);
  Answer responses(const HttpRequest& request, const Wake& wake);
  // echoed: see make_responses_writer.
  Answer generate(Endpoint endpoint,
                  const HttpRequest& request,
                  Wake wake,
                  OrderedJson echoed = nullptr);
  // The token ids of each prompt. All errors are the client's.
  using Prompts = std::vector<std::vector<TokenId>>;
  tl::expected<Prompts, ApiError> encode_prompts(Endpoint endpoint, GenerationBody& body) const;
  // Encodes one text. Its length is not limited if truncate_prompt_tokens is set.
  tl::expected<std::vector<TokenId>, ApiError> encode_prompt(const std::string& text,
                                                             bool add_special,
                                                             const GenerationBody& body) const;
  // Sets the sampling options that tools need: a grammar for forced calls, special tokens in the text.
  Result<void> apply_tools(GenerationBody& body) const;
  [[nodiscard]] MakeChatParser chat_parser(const ChatOptions& chat,
                                           const std::string& answer_id) const;
  Result<void> truncate_prompts(const GenerationBody& body,
                                std::vector<std::vector<TokenId>>& prompts) const;
  [[nodiscard]] std::string prompt_echo(const GenerationBody& body,
                                        size_t index,
                                        const std::vector<TokenId>& prompt) const;
  [[nodiscard]] std::optional<ApiError> length_error(const std::vector<TokenId>& prompt,
                                                     const GenerationBody& body) const;
  std::optional<ApiError> reserve_places(size_t num_choices);
  // Checks that the body's model is served. Returns the headers that name the body's ignored fields.
  tl::expected<HttpHeaders, ApiError> check_names(const std::string& model,
                                                  const std::vector<std::string>& ignored);
  // nullopt: the name is served.
  [[nodiscard]] std::optional<ApiError> model_error(const std::string& model) const;
  // The header that names the ignored fields; with --strict an error. Logs each name once.
  Result<HttpHeaders> report_ignored(const std::vector<std::string>& names);
  [[nodiscard]] AnswerInfo answer_info(Endpoint endpoint,
                                       const HttpRequest& request,
                                       const GenerationBody& body) const;
  [[nodiscard]] std::unique_ptr<AnswerWriter> make_writer(Endpoint endpoint,
                                                          const AnswerInfo& info,
                                                          AnswerShape shape,
                                                          const GenerationBody& body,
                                                          OrderedJson echoed) const;

  // api_text.cpp
  Answer tokenize(const HttpRequest& request, const Wake& wake);
  Answer detokenize(const HttpRequest& request, const Wake& wake);

  // api_status.cpp
  Answer page(const HttpRequest& request, const Wake& wake);
  Answer openapi(const HttpRequest& request, const Wake& wake);
  Answer models(const HttpRequest& request, const Wake& wake);
  Answer version(const HttpRequest& request, const Wake& wake);
  Answer health(const HttpRequest& request, const Wake& wake);
  Answer live(const HttpRequest& request, const Wake& wake);
  Answer ready(const HttpRequest& request, const Wake& wake);
  Answer metrics(const HttpRequest& request, const Wake& wake);
  Answer engine_state(const HttpRequest& request, const Wake& wake);
  Answer trace(const HttpRequest& request, const Wake& wake);
  Answer sleep(const HttpRequest& request, const Wake& wake);
  Answer wake_up(const HttpRequest& request, const Wake& wake);
  Answer is_sleeping(const HttpRequest& request, const Wake& wake);
  Answer reset_prefix_cache(const HttpRequest& request, const Wake& wake);

  Engine& engine_;
  ServerWatch& watch_;
  ApiOptions options_;
  ApiKeys keys_;
  PromptEncoder encoder_;
  int64_t started_;  // seconds since 1970
  std::mutex mutex_;
  std::set<std::string> logged_;  // under mutex_
};

}  // namespace warprow
