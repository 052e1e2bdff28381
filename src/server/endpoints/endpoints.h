// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/api_options.h"
#include "server/endpoints/request_names.h"
#include "server/http_message.h"
#include "server/metrics/profile.h"
#include "server/metrics/server_watch.h"
#include "server/prompt_encoder.h"
#include "server/response/generation.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

namespace warprow {

// What the endpoints work with.
//
// Thread: any.
struct Served {
  Engine& engine;
  ServerWatch& watch;
  const ApiOptions options;
  const PromptEncoder encoder;
  RequestNames names;
  const int64_t started;  // seconds since 1970
  Profile profile{};
};

// The API key of the request; empty if the server needs none.
std::string owner_of(const Served& served, const HttpRequest& request);

// The request has a grammar to compile and HttpRequest::may_compile is false: handle it again where it may wait.
struct NeedsGrammar {};

// A complete reply, or an answer that is being generated.
using ApiAnswer = std::variant<HttpReply, std::unique_ptr<Generation>, NeedsGrammar>;
using Wake = std::function<void()>;  // see UpdateBox

// Each makes the answer to a request of its endpoint. May throw; may block for a while.
using Endpoint = ApiAnswer(Served& served, const HttpRequest& request, const Wake& wake);

// Files of the same name; generate.h has what these share.
Endpoint answer_completions;
Endpoint answer_chat_completions;
Endpoint answer_responses;
Endpoint answer_messages;  // also /v1/messages/count_tokens:
Endpoint answer_count_tokens;

Endpoint answer_embeddings;
Endpoint answer_scores;  // scores.cpp, also:
Endpoint answer_rerank;
Endpoint answer_classes;  // vectors.cpp, also:
Endpoint answer_vectors;

// text.cpp
Endpoint answer_render_completions;
Endpoint answer_render_chat;
Endpoint answer_tokenize;
Endpoint answer_detokenize;
Endpoint answer_tokenizer_info;

// adapters.cpp
Endpoint answer_load_adapter;
Endpoint answer_unload_adapter;

// status.cpp
Endpoint answer_page;
Endpoint answer_docs;
Endpoint answer_dashboard;
Endpoint answer_openapi;
Endpoint answer_models;
Endpoint answer_model;  // one of them
Endpoint answer_version;
Endpoint answer_live;  // also /health and /ping
Endpoint answer_ready;
Endpoint answer_metrics;
Endpoint answer_engine_state;
Endpoint answer_trace;

Endpoint answer_explanation;

// admin.cpp
Endpoint answer_sleep;
Endpoint answer_wake_up;
Endpoint answer_is_sleeping;
Endpoint answer_reset_prefix_cache;
Endpoint answer_server_info;
Endpoint answer_pause;
Endpoint answer_resume;
Endpoint answer_is_paused;
Endpoint answer_update_weights;
Endpoint answer_start_profile;
Endpoint answer_stop_profile;

}  // namespace warprow
