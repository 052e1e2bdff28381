// SPDX-License-Identifier: Apache-2.0
// /v1/completions/render and /v1/chat/completions/render: the token ids and options that a request would run with, and
// no answer. For routers that choose the server which has the prefix in its cache.
#include "server/endpoints/chat_body.h"
#include "server/endpoints/completions_body.h"
#include "server/endpoints/generate.h"
#include "server/response/answer_json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = OrderedJson;

// How an endpoint whose requests are rendered reads them.
struct Rendered {
  const char* id_prefix;
  Result<GenerationBody> (*parse)(std::string_view text);
  PreparePrompts prepare;
};

template <typename Value>
void add_given(Json& out, const char* name, const Value& value) {
  if constexpr (std::is_same_v<Value, bool>) {
    out[name] = value;
  } else if constexpr (requires { value.empty(); }) {
    if (!value.empty()) {
      out[name] = value;
    }
  } else if (value) {
    out[name] = *value;
  }
}

// The options that the request gives, under vLLM's names, and how many tokens it may get. Without a structure: the
// request's own describes it.
Json sampling_params(const SamplingOptions& sampling, int32_t max_tokens) {
  Json out = Json::object();
  add_given(out, "n", sampling.n);
  add_given(out, "temperature", sampling.temperature);
  add_given(out, "top_p", sampling.top_p);
  add_given(out, "top_k", sampling.top_k);
  add_given(out, "min_p", sampling.min_p);
  add_given(out, "seed", sampling.seed);
  out["max_tokens"] = max_tokens;
  add_given(out, "min_tokens", sampling.min_tokens);
  add_given(out, "logprobs", sampling.logprobs);
  add_given(out, "prompt_logprobs", sampling.prompt_logprobs);
  add_given(out, "logprob_token_ids", sampling.logprob_token_ids);
  add_given(out, "repetition_penalty", sampling.repetition_penalty);
  add_given(out, "frequency_penalty", sampling.frequency_penalty);
  add_given(out, "presence_penalty", sampling.presence_penalty);
  add_given(out, "stop", sampling.stop);
  add_given(out, "stop_token_ids", sampling.stop_token_ids);
  add_given(out, "allowed_token_ids", sampling.allowed_token_ids);
  add_given(out, "bad_words", sampling.bad_words);
  for (const auto& [token, bias] : sampling.logit_bias) {
    out["logit_bias"][std::to_string(token)] = bias;
  }
  add_given(out, "ignore_eos", sampling.ignore_eos);
  add_given(out, "include_stop_str_in_output", sampling.include_stop_str_in_output);
  add_given(out, "skip_special_tokens", sampling.skip_special_tokens);
  add_given(out, "spaces_between_special_tokens", sampling.spaces_between_special_tokens);
  return out;
}

Json rendered_json(const GenerationBody& body,
                   const ValidRequest& request,
                   const std::string& model,
                   std::string id) {
  Json out;
  out["request_id"] = std::move(id);
  out["token_ids"] = request.prompt_token_ids();
  out["features"] = nullptr;
  out["sampling_params"] = sampling_params(body.sampling, request.fields().max_tokens);
  out["model"] = model;
  out["stream"] = body.stream;
  out["cache_salt"] = body.cache_salt.empty() ? Json(nullptr) : Json(body.cache_salt);
  out["priority"] = body.priority;
  return out;
}

// A list with an entry for each prompt.
tl::expected<std::pair<Json, HttpHeaders>, ApiError> render(Served& served,
                                                            const HttpRequest& request,
                                                            const Rendered& endpoint) {
  Result<GenerationBody> body = endpoint.parse(request.body);
  if (!body) {
    return tl::unexpected(api_error(body.error()));
  }
  tl::expected<HttpHeaders, ApiError> headers = served.names.check(body->model, body->ignored);
  if (!headers) {
    return tl::unexpected(headers.error());
  }
  const std::string model = take_adapter(served, *body);
  EncodedPrompts prompts = fitting_prompts(served, endpoint.prepare, *body);
  if (!prompts) {
    return tl::unexpected(prompts.error());
  }
  body->sampling.structured_output.reset();  // it would be compiled
  const Result<std::vector<ValidRequest>> valid =
      served.engine.validate_prompts(*body, *std::move(prompts));
  if (!valid) {
    return tl::unexpected(api_error(valid.error()));
  }
  const std::string& id = body->request_id.empty() ? request.request_id : body->request_id;
  Json list = Json::array();
  for (const ValidRequest& one : *valid) {
    list.push_back(rendered_json(*body, one, model, fmt::format("{}-{}", endpoint.id_prefix, id)));
  }
  return std::pair(std::move(list), *std::move(headers));
}

}  // namespace

ApiAnswer answer_render_completions(Served& served,
                                    const HttpRequest& request,
                                    const Wake& /*wake*/) {
  static constexpr Rendered kCompletions{"cmpl", &parse_completions_body, &prepare_completions};
  auto rendered = render(served, request, kCompletions);
  if (!rendered) {
    return error_reply(rendered.error());
  }
  return HttpReply{.body = json_text(rendered->first), .headers = std::move(rendered->second)};
}

ApiAnswer answer_render_chat(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  static constexpr Rendered kChat{"chatcmpl", &parse_chat_body, &prepare_chat};
  auto rendered = render(served, request, kChat);
  if (!rendered) {
    return error_reply(rendered.error());
  }
  return HttpReply{.body = json_text(rendered->first.front()),
                   .headers = std::move(rendered->second)};
}

}  // namespace warprow
