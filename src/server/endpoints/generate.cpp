// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/generate.h"

#include "engine/prompt_length.h"
#include "text/text_model.h"

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <memory>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

// Whether the request may wait for a grammar to be compiled.
bool waits_for_grammar(const GenerationBody& body) {
  return body.sampling.structured_output && body.sampling.structured_output->has_grammar();
}

// With truncate_prompt_tokens.
Result<void> truncate_prompts(const Served& served, const GenerationBody& body, Prompts& prompts) {
  if (!body.truncate_prompt_tokens) {
    return {};
  }
  const Result<int64_t> most =
      PromptLength(served.engine.model_facts().max_model_len)
          .truncated(*body.truncate_prompt_tokens, body.sampling.max_tokens);
  if (!most) {
    return tl::unexpected(most.error());
  }
  for (std::vector<TokenId>& prompt : prompts) {
    const int64_t excess = std::ssize(prompt) - *most;
    if (excess > 0) {
      const auto first = body.truncates_right ? prompt.begin() + *most : prompt.begin();
      prompt.erase(first, first + excess);
    }
  }
  return {};
}

// Null if the server makes no spans.
std::shared_ptr<const RequestTrace> trace_of(const Served& served,
                                             const HttpRequest& request,
                                             const RequestFields& fields) {
  if (!served.options.traces) {
    return nullptr;
  }
  return std::make_shared<RequestTrace>(RequestTrace{
      .context =
          parse_traceparent(request.traceparent, request.tracestate).value_or(TraceContext{}),
      .temperature = fields.params.temperature,
      .top_p = fields.params.top_p,
      .num_choices = fields.num_choices});
}

// The answer's shape, as far as the prompts decide it.
AnswerShape shape_of(const Served& served,
                     const GeneratingEndpoint& endpoint,
                     const GenerationBody& body,
                     const Prompts& prompts) {
  AnswerShape shape{.num_prompts = prompts.size(),
                    .only_prompt = body.only_prompt,
                    .usage_in_chunks = body.include_usage && body.continuous_usage};
  for (const std::vector<TokenId>& prompt : prompts) {
    if (body.echo) {
      shape.echo.push_back(endpoint.echo(served, body, shape.echo.size(), prompt));
    }
    if (body.return_token_ids) {
      shape.prompt_token_ids.push_back(prompt);
    }
    shape.first_tokens.push_back(prompt.empty() ? 0 : prompt.front());
  }
  return shape;
}

}  // namespace

std::string take_adapter(const Served& served, GenerationBody& body) {
  if (const std::optional<LoadedAdapter> adapter = served.names.adapter(body.model)) {
    body.adapter = adapter->name;
    return adapter->name;
  }
  return served.options.model_names.front();
}

std::optional<ApiError> draining_error(const Served& served) {
  if (!served.watch.draining) {
    return std::nullopt;
  }
  return ApiError{.status = 503,
                  .type = "service_unavailable",
                  .message = "the server is shutting down",
                  .retry_after_s = 1};
}

std::optional<ApiError> reserve_places(Served& served, size_t num_choices) {
  const int64_t limit = served.engine.model_facts().max_num_seqs + served.options.max_queued;
  const auto wanted = static_cast<int64_t>(num_choices);
  if (wanted > limit) {
    return ApiError{.message = fmt::format(
                        "n: the request's prompts have {} choices together, more than the {} that "
                        "this server takes at a time",
                        wanted,
                        limit),
                    .param = "n"};
  }
  if (served.watch.journal.reserve(wanted, limit)) {
    return std::nullopt;
  }
  return ApiError{.status = 429,
                  .type = "rate_limit_error",
                  .message = fmt::format("{} requests run or wait, no more than {} may; try again "
                                         "later",
                                         served.watch.journal.num_live(),
                                         limit),
                  .retry_after_s = 1};
}

ApiAnswer generate(Served& served,
                   const HttpRequest& request,
                   const Wake& wake,
                   const GeneratingEndpoint& endpoint) {
  if (const std::optional<ApiError> error = draining_error(served)) {
    return error_reply(*error);
  }
  Result<GenerationBody> body = endpoint.parse(request.body);
  if (!body) {
    return error_reply(api_error(body.error()));
  }
  tl::expected<HttpHeaders, ApiError> headers = served.names.check(body->model, body->ignored);
  if (!headers) {
    return error_reply(headers.error());
  }
  const std::string answering = take_adapter(served, *body);
  if (served.engine.model_facts().pooling.pools()) {  // before texts are rendered and encoded
    if (const auto valid = served.engine.validate_prompts(*body, {{0}}); !valid) {
      return error_reply(api_error(valid.error()));
    }
  }
  if (waits_for_grammar(*body) && !request.may_compile) {
    return NeedsGrammar{};
  }
  const bool shows_prompt_logprobs = body->sampling.prompt_logprobs.has_value();
  EncodedPrompts prompts = fitting_prompts(served, endpoint.prepare, *body);
  if (!prompts) {
    return error_reply(prompts.error());
  }
  if (waits_for_grammar(*body) && !request.may_compile) {
    return NeedsGrammar{};  // for its tools
  }
  AnswerShape shape = shape_of(served, endpoint, *body, *prompts);
  shape.shows_prompt_logprobs = shows_prompt_logprobs;
  const Result<std::vector<ValidRequest>> valid =
      served.engine.validate_prompts(*body, *std::move(prompts));
  if (!valid) {
    return error_reply(api_error(valid.error()));
  }
  const RequestFields& first = valid->front().fields();
  shape.choices_per_prompt = static_cast<size_t>(first.num_choices);
  if (const std::optional<ApiError> error = reserve_places(served, shape.num_choices())) {
    return error_reply(*error);
  }
  served.watch.metrics.params_n.observe(static_cast<double>(shape.choices_per_prompt));
  served.watch.metrics.params_max_tokens.observe(first.max_tokens);
  const std::string& id = body->request_id.empty() ? request.request_id : body->request_id;
  const AnswerInfo info{.id = fmt::format("{}-{}", endpoint.id_prefix, id),
                        .model = answering,
                        .created = std::time(nullptr)};
  Generation::Form form{.stream = body->stream,
                        .include_usage = body->include_usage,
                        .id = info.id,
                        .owner = owner_of(served, request),
                        .endpoint = endpoint.name,
                        .headers = *std::move(headers),
                        .trace = trace_of(served, request, first)};
  return std::make_unique<Generation>(served.engine,
                                      *valid,
                                      endpoint.make_writer(served, *body, info, std::move(shape)),
                                      std::move(form),
                                      served.watch.journal,
                                      wake);
}

EncodedPrompts fitting_prompts(const Served& served, PreparePrompts prepare, GenerationBody& body) {
  EncodedPrompts prompts = prepare(served, body);
  if (!prompts) {
    return prompts;
  }
  if (Result<void> cut = truncate_prompts(served, body, *prompts); !cut) {
    return tl::unexpected(api_error(cut.error()));
  }
  for (const std::vector<TokenId>& prompt : *prompts) {
    if (std::optional<ApiError> error = length_error(served, body, prompt)) {
      return tl::unexpected(*std::move(error));
    }
  }
  return prompts;
}

tl::expected<std::vector<TokenId>, ApiError> encode_text(const Served& served,
                                                         const GenerationBody& body,
                                                         const std::string& text,
                                                         bool add_special) {
  if (body.truncate_prompt_tokens) {
    return served.engine.text().tokenizer.encode(text, add_special);
  }
  return served.encoder.encode(text, add_special, body.prompts.empty() ? "messages" : "prompt");
}

std::optional<ApiError> length_error(const Served& served,
                                     const GenerationBody& body,
                                     const std::vector<TokenId>& prompt) {
  std::optional<PromptExcess> excess = PromptLength(served.engine.model_facts().max_model_len)
                                           .judge(std::ssize(prompt), body.sampling.max_tokens);
  if (!excess) {
    return std::nullopt;
  }
  const char* param = excess->num_toks < excess->limit ? "max_tokens"
                      : body.prompts.empty()           ? "messages"
                                                       : "prompt";
  return context_error(*std::move(excess), param);
}

TokenBytes token_bytes(const Served& served, const GenerationBody& body) {
  const Tokenizer& tokenizer = served.engine.text().tokenizer;
  return [&tokenizer, by_id = body.return_tokens_as_token_ids](TokenId id) {
    return by_id ? fmt::format("token_id:{}", id) : std::string(tokenizer.token_bytes(id));
  };
}

}  // namespace warprow
