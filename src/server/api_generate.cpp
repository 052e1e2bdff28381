// SPDX-License-Identifier: Apache-2.0
// The endpoints that generate: they turn a body into engine requests.
#include "base/log.h"
#include "server/api.h"
#include "server/api_error.h"
#include "server/chat/chat_prompt.h"
#include "server/chat/tool_grammar.h"
#include "server/chat/tool_parser.h"
#include "server/responses_body.h"
#include "text/text_model.h"

#include <algorithm>
#include <ctime>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace warprow {
namespace {

// The names come from the client, so they must neither end the header nor make it arbitrarily long.
std::string header_value(const std::vector<std::string>& names) {
  constexpr size_t kLongest = 512;
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ", ") + name;
  }
  for (char& c : out) {
    c = c >= ' ' && c <= '~' ? c : '?';
  }
  return out.size() > kLongest ? out.substr(0, kLongest) + "..." : out;
}

struct EndpointNames {
  const char* name;
  const char* id_prefix;
};

EndpointNames names_of(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kCompletions:
      return {"completions", "cmpl"};
    case Endpoint::kChat:
      return {"chat", "chatcmpl"};
    case Endpoint::kResponses:
      return {"responses", "resp"};
  }
  return {"?", "?"};
}

// As vLLM: the last message's text, if the assistant wrote it or if the prompt has no generation prompt.
std::string chat_echo(const ChatRequest& request) {
  const auto& last = request.messages.back();
  const auto content = last.find("content");
  const bool is_authors = !request.add_generation_prompt || last.value("role", "") == "assistant";
  return is_authors && content != last.end() && content->is_string() ? content->get<std::string>()
                                                                     : "";
}

}  // namespace

Api::Answer Api::completions(const HttpRequest& request, const Wake& wake) {
  return generate(Endpoint::kCompletions, request, wake);
}

Api::Answer Api::chat_completions(const HttpRequest& request, const Wake& wake) {
  return generate(Endpoint::kChat, request, wake);
}

Api::Answer Api::responses(const HttpRequest& request, const Wake& wake) {
  Result<ResponsesBody> body = parse_responses_body(request.body);
  if (!body) {
    return error_reply(api_error(body.error()));
  }
  HttpRequest chat = request;
  chat.body = std::move(body->chat);
  return generate(Endpoint::kResponses, chat, wake, std::move(body->echoed));
}

Api::Answer Api::generate(Endpoint endpoint,
                          const HttpRequest& request,
                          Wake wake,
                          OrderedJson echoed) {
  if (watch_.draining) {
    return error_reply({.status = 503,
                        .type = "service_unavailable",
                        .message = "the server is shutting down",
                        .retry_after_s = 1});
  }
  Result<GenerationBody> body = parse_generation_body(endpoint, request.body);
  if (!body) {
    return error_reply(api_error(body.error()));
  }
  tl::expected<HttpHeaders, ApiError> headers = check_names(body->model, body->ignored);
  if (!headers) {
    return error_reply(headers.error());
  }
  tl::expected<Prompts, ApiError> prompts = encode_prompts(endpoint, *body);
  if (!prompts) {
    return error_reply(prompts.error());
  }
  if (Result<void> cut = truncate_prompts(*body, *prompts); !cut) {
    return error_reply(api_error(cut.error()));
  }
  if (Result<void> applied = apply_tools(*body); !applied) {
    return error_reply(api_error(applied.error()));
  }
  if (options_.reasoning && body->sampling.structured_output) {
    body->sampling.structured_output->thinking = body->chat.thinking;
  }
  GenerationRequest generation;
  generation.sampling = body->sampling;
  generation.priority = body->priority;
  generation.cache_salt = body->cache_salt;
  // With echo, logprobs cover the prompt's tokens too.
  const bool is_chat = endpoint != Endpoint::kCompletions;
  if (body->echo && !is_chat && generation.sampling.logprobs &&
      !generation.sampling.prompt_logprobs) {
    generation.sampling.prompt_logprobs = generation.sampling.logprobs;
  }
  AnswerShape shape{.num_prompts = prompts->size(),
                    .only_prompt = body->only_prompt,
                    .shows_prompt_logprobs = body->sampling.prompt_logprobs.has_value()};
  for (const std::vector<TokenId>& prompt : *prompts) {
    if (const std::optional<ApiError> error = length_error(prompt, *body)) {
      return error_reply(*error);
    }
    if (body->echo) {
      shape.echo.push_back(is_chat ? chat_echo(body->chat.request)
                                   : prompt_echo(*body, shape.echo.size(), prompt));
    }
    if (body->return_token_ids) {
      shape.prompt_token_ids.push_back(prompt);
    }
    shape.first_tokens.push_back(prompt.empty() ? 0 : prompt.front());
  }
  const Result<std::vector<ValidRequest>> valid =
      engine_.validate_prompts(generation, *std::move(prompts));
  if (!valid) {
    return error_reply(api_error(valid.error()));
  }
  const RequestFields& first = valid->front().fields();
  shape.choices_per_prompt = static_cast<size_t>(first.num_choices);
  if (const std::optional<ApiError> error = reserve_places(shape.num_choices())) {
    return error_reply(*error);
  }
  watch_.metrics.params_n.observe(static_cast<double>(shape.choices_per_prompt));
  watch_.metrics.params_max_tokens.observe(first.max_tokens);
  const AnswerInfo info = answer_info(endpoint, request, *body);
  Generation::Form form{.stream = body->stream,
                        .include_usage = body->include_usage,
                        .id = info.id,
                        .endpoint = names_of(endpoint).name,
                        .headers = *std::move(headers)};
  return std::make_unique<Generation>(
      engine_,
      *valid,
      make_writer(endpoint, info, std::move(shape), *body, std::move(echoed)),
      std::move(form),
      watch_.journal,
      std::move(wake));
}

std::unique_ptr<AnswerWriter> Api::make_writer(Endpoint endpoint,
                                               const AnswerInfo& info,
                                               AnswerShape shape,
                                               const GenerationBody& body,
                                               OrderedJson echoed) const {
  const Tokenizer& tokenizer = engine_.text().tokenizer;
  const TokenBytes token_bytes = [&tokenizer, by_id = body.return_tokens_as_token_ids](TokenId id) {
    return by_id ? fmt::format("token_id:{}", id) : std::string(tokenizer.token_bytes(id));
  };
  if (endpoint == Endpoint::kCompletions) {
    return make_completion_writer(info, token_bytes, std::move(shape));
  }
  if (endpoint == Endpoint::kResponses) {
    return make_responses_writer(info, std::move(echoed), chat_parser(body.chat, info.id));
  }
  return make_chat_writer(info, token_bytes, std::move(shape), chat_parser(body.chat, info.id));
}

MakeChatParser Api::chat_parser(const ChatOptions& chat, const std::string& answer_id) const {
  ChatParserOptions options{.function = chat.tools.name,
                            .parallel = chat.tools.parallel,
                            .reasoning = options_.reasoning,
                            .begins_reasoning = chat.thinking == Thinking::kOpen,
                            .include_reasoning = chat.include_reasoning,
                            .short_ids = options_.tool_format == ToolFormat::kMistral};
  switch (chat.tools.choice) {
    case ToolOptions::Choice::kNone:
      break;
    case ToolOptions::Choice::kAuto:
      options.format = options_.tool_format;
      break;
    case ToolOptions::Choice::kRequired:
      options.format = ToolFormat::kList;
      break;
    case ToolOptions::Choice::kNamed:
      options.format = ToolFormat::kNamed;
      break;
  }
  if (options.format == ToolFormat::kNone && !options.reasoning) {
    return {};
  }
  return [options, id = answer_id.substr(answer_id.find('-') + 1)](size_t choice) {
    ChatParserOptions of_choice = options;
    of_choice.id_prefix = fmt::format("call_{}_{}_", id, choice);
    return make_chat_parser(std::move(of_choice));
  };
}

Result<void> Api::apply_tools(GenerationBody& body) const {
  using Choice = ToolOptions::Choice;
  const ToolOptions& tools = body.chat.tools;
  if (tools.choice == Choice::kRequired || tools.choice == Choice::kNamed) {
    if (body.sampling.structured_output) {
      return fail(ErrorCode::kInvalidArgument,
                  "tool_choice: response_format and structured_outputs leave no room for a call");
    }
    body.sampling.structured_output = tool_grammar(tools);
  }
  // In these formats special tokens mark a call, so the text must keep them.
  const bool needs_special =
      options_.tool_format == ToolFormat::kMistral || options_.tool_format == ToolFormat::kLlama3;
  if (tools.choice == Choice::kAuto && needs_special) {
    body.sampling.skip_special_tokens = false;
  }
  return {};
}

tl::expected<std::vector<TokenId>, ApiError> Api::encode_prompt(const std::string& text,
                                                                bool add_special,
                                                                const GenerationBody& body) const {
  if (body.truncate_prompt_tokens) {
    return engine_.text().tokenizer.encode(text, add_special);
  }
  return encoder_.encode(text, add_special, body.prompts.empty() ? "messages" : "prompt");
}

tl::expected<Api::Prompts, ApiError> Api::encode_prompts(Endpoint endpoint,
                                                         GenerationBody& body) const {
  Prompts out;
  if (endpoint != Endpoint::kCompletions) {
    const Result<std::string> rendered = render_chat(body.chat, engine_.text());
    if (!rendered) {
      return tl::unexpected(api_error(rendered.error()));
    }
    body.chat.thinking = thinking_behind(body.chat, *rendered);
    return encode_prompt(*rendered, body.add_special_tokens.value_or(false), body)
        .map([&](std::vector<TokenId> ids) {
          out.push_back(std::move(ids));
          return std::move(out);
        });
  }
  for (const TextOrIds& prompt : body.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    if (text == nullptr) {
      out.push_back(std::get<std::vector<TokenId>>(prompt));
      continue;
    }
    tl::expected<std::vector<TokenId>, ApiError> ids =
        encode_prompt(*text, body.add_special_tokens.value_or(true), body);
    if (!ids) {
      return tl::unexpected(std::move(ids.error()));
    }
    out.push_back(*std::move(ids));
    // Check this prompt before encoding the next.
    if (std::optional<ApiError> error =
            body.truncate_prompt_tokens ? std::nullopt : length_error(out.back(), body)) {
      return tl::unexpected(*std::move(error));
    }
  }
  return out;
}

// With -1 a prompt is cut so that the answer fits into max_model_len.
Result<void> Api::truncate_prompts(const GenerationBody& body,
                                   std::vector<std::vector<TokenId>>& prompts) const {
  if (!body.truncate_prompt_tokens) {
    return {};
  }
  const int64_t limit = engine_.model_facts().max_model_len;
  const int64_t wanted = *body.truncate_prompt_tokens;
  if (wanted > limit) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("truncate_prompt_tokens: {} is above the maximum context length of {} "
                            "tokens (max_model_len)",
                            wanted,
                            limit));
  }
  const int64_t answer = std::max<int64_t>(body.sampling.max_tokens.value_or(1), 1);
  const int64_t most = wanted < 0 ? std::max<int64_t>(limit - answer, 1) : wanted;
  for (std::vector<TokenId>& prompt : prompts) {
    const int64_t excess = std::ssize(prompt) - most;
    if (excess > 0) {
      const auto first = body.truncates_right ? prompt.begin() + most : prompt.begin();
      prompt.erase(first, first + excess);
    }
  }
  return {};
}

// The client's own text, or the decoded tokens if the prompt may have been truncated.
std::string Api::prompt_echo(const GenerationBody& body,
                             size_t index,
                             const std::vector<TokenId>& prompt) const {
  const auto* text = std::get_if<std::string>(&body.prompts[index]);
  return text != nullptr && !body.truncate_prompt_tokens
             ? *text
             : engine_.text().tokenizer.decode(prompt, false);
}

std::optional<ApiError> Api::length_error(const std::vector<TokenId>& prompt,
                                          const GenerationBody& body) const {
  const int64_t limit = engine_.model_facts().max_model_len;
  const auto len = static_cast<int64_t>(prompt.size());
  const int64_t wanted = std::max<int64_t>(body.sampling.max_tokens.value_or(1), 1);
  if (len + std::min(wanted, limit) <= limit) {
    return std::nullopt;
  }
  // Clients recognise this error by the words "this model's maximum context length is".
  return ApiError{.status = 400,
                  .type = "context_length_exceeded",
                  .message = fmt::format("prompt: {} tokens and max_tokens {} are too many: this "
                                         "model's maximum context length is {} tokens "
                                         "(max_model_len)",
                                         len,
                                         wanted,
                                         limit),
                  .param = len < limit            ? "max_tokens"
                           : body.prompts.empty() ? "messages"
                                                  : "prompt",
                  .context = std::pair(len, limit)};
}

std::optional<ApiError> Api::reserve_places(size_t num_choices) {
  const int64_t limit = engine_.model_facts().max_num_seqs + options_.max_queued;
  const auto wanted = static_cast<int64_t>(num_choices);
  if (wanted > limit) {
    return ApiError{.message = fmt::format(
                        "n: the request's prompts have {} choices together, more than the {} that "
                        "this server takes at a time",
                        wanted,
                        limit),
                    .param = "n"};
  }
  if (watch_.journal.reserve(wanted, limit)) {
    return std::nullopt;
  }
  return ApiError{.status = 429,
                  .type = "rate_limit_error",
                  .message = fmt::format("{} requests run or wait, no more than {} may; try again "
                                         "later",
                                         watch_.journal.num_live(),
                                         limit),
                  .retry_after_s = 1};
}

std::optional<ApiError> Api::model_error(const std::string& model) const {
  const std::vector<std::string>& names = options_.model_names;
  if (model.empty() || std::find(names.begin(), names.end(), model) != names.end()) {
    return std::nullopt;
  }
  return ApiError{
      404,
      "not_found_error",
      fmt::format("model: '{}' is not served here, but {} is", model, fmt::join(names, ", ")),
      "model"};
}

tl::expected<HttpHeaders, ApiError> Api::check_names(const std::string& model,
                                                     const std::vector<std::string>& ignored) {
  if (std::optional<ApiError> error = model_error(model)) {
    return tl::unexpected(*std::move(error));
  }
  return report_ignored(ignored).map_error([](const Error& error) { return api_error(error); });
}

Result<HttpHeaders> Api::report_ignored(const std::vector<std::string>& names) {
  constexpr size_t kMostLogged = 256;
  if (names.empty()) {
    return HttpHeaders();
  }
  const std::string shown = header_value(names);
  if (options_.strict) {
    return fail(ErrorCode::kInvalidArgument,
                names.size() == 1 ? shown + ": no such field" : "no such fields: " + shown);
  }
  const std::scoped_lock lock(mutex_);
  for (const std::string& name : names) {
    if (logged_.size() < kMostLogged && logged_.insert(name).second) {
      WR_LOG_WARN("requests bring a field that is not known and is ignored: {}",
                  header_value({name}));
    }
  }
  return HttpHeaders{{"X-Ignored-Params", shown}};
}

AnswerInfo Api::answer_info(Endpoint endpoint,
                            const HttpRequest& request,
                            const GenerationBody& body) const {
  const std::string& id = body.request_id.empty() ? request.request_id : body.request_id;
  return {.id = fmt::format("{}-{}", names_of(endpoint).id_prefix, id),
          .model = options_.model_names.front(),
          .created = std::time(nullptr)};
}

}  // namespace warprow
