// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/pooling.h"

#include "engine/prompt_length.h"
#include "server/base64.h"
#include "server/response/answer_json.h"
#include "text/text_model.h"

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include <fmt/format.h>

namespace warprow {
namespace {

// The writer of an answer that is never a stream.
class VectorsWriter final : public AnswerWriter {
 public:
  VectorsWriter(AnswerInfo info, WriteVectors write)
      : info_(std::move(info)), write_(std::move(write)) {}

  std::string whole(std::span<const RequestUpdate> choices) override {
    return write_(info_, choices);
  }
  std::string events(size_t /*choice*/, const RequestUpdate& /*update*/) override { return ""; }
  std::string last_events(std::span<const RequestUpdate> /*choices*/,
                          bool /*with_usage*/) override {
    return "";
  }

 private:
  AnswerInfo info_;
  WriteVectors write_;
};

// The tokens that a text may have with truncate_prompt_tokens.
Result<int64_t> most_tokens(const Served& served, const PoolingBody& body) {
  return PromptLength(served.engine.model_facts().max_model_len)
      .truncated_alone(*body.truncate_prompt_tokens);
}

void cut(std::vector<TokenId>& ids, int64_t most, bool left) {
  const int64_t excess = std::ssize(ids) - most;
  if (excess > 0) {
    const auto first = left ? ids.begin() : ids.begin() + most;
    ids.erase(first, first + excess);
  }
}

// A text's tokens with the special ones around them, of which the text's own are cut.
std::vector<TokenId> encode_cut(const Tokenizer& tokenizer,
                                const std::string& text,
                                int64_t most,
                                bool left) {
  std::vector<TokenId> whole = tokenizer.encode(text, true);
  if (std::ssize(whole) <= most) {
    return whole;
  }
  std::vector<TokenId> own = tokenizer.encode(text, false);
  const auto at = std::ranges::search(whole, own);
  const int64_t num_special = std::ssize(whole) - std::ssize(own);
  if (at.empty() || num_special >= most) {
    cut(whole, most, left);
    return whole;
  }
  std::vector<TokenId> out(whole.begin(), at.begin());
  cut(own, most - num_special, left);
  out.insert(out.end(), own.begin(), own.end());
  out.insert(out.end(), at.end(), whole.end());
  return out;
}

std::optional<ApiError> too_long(const Served& served,
                                 const std::vector<TokenId>& ids,
                                 const char* field) {
  std::optional<PromptExcess> excess =
      PromptLength(served.engine.model_facts().max_model_len).judge_alone(std::ssize(ids));
  return excess ? std::optional(context_error(*std::move(excess), field)) : std::nullopt;
}

}  // namespace

std::string vector_json(std::span<const float> values, bool base64) {
  return base64 ? fmt::format("\"{}\"", to_base64(std::as_bytes(values)))
                : fmt::format("[{}]", fmt::join(values, ","));
}

std::string pooled_usage_json(std::span<const RequestUpdate> texts) {
  int64_t num_toks = 0;
  for (const RequestUpdate& text : texts) {
    num_toks += text.num_prompt_tokens;
  }
  return fmt::format(R"({{"prompt_tokens":{0},"total_tokens":{0},"completion_tokens":0}})",
                     num_toks);
}

std::string list_answer(const AnswerInfo& info,
                        const char* member,
                        const std::vector<std::string>& items,
                        std::span<const RequestUpdate> texts) {
  std::string out = json_text(answer_head(info, "list"));
  out.pop_back();
  fmt::format_to(std::back_inserter(out),
                 R"(,"{}":[{}],"usage":{}}})",
                 member,
                 fmt::join(items, ","),
                 pooled_usage_json(texts));
  return out;
}

tl::expected<std::vector<TokenId>, ApiError> encode_pooled(const Served& served,
                                                           const PoolingBody& body,
                                                           const std::string& text,
                                                           const char* field) {
  const bool special = body.add_special_tokens.value_or(true);
  const Tokenizer& tokenizer = served.engine.text().tokenizer;
  if (!body.truncate_prompt_tokens) {
    tl::expected<std::vector<TokenId>, ApiError> ids = served.encoder.encode(text, special, field);
    if (!ids) {
      return ids;
    }
    if (std::optional<ApiError> error = too_long(served, *ids, field)) {
      return tl::unexpected(*std::move(error));
    }
    return ids;
  }
  const Result<int64_t> most = most_tokens(served, body);
  if (!most) {
    return tl::unexpected(api_error(most.error()));
  }
  if (special) {
    return encode_cut(tokenizer, text, *most, body.truncates_left);
  }
  std::vector<TokenId> ids = tokenizer.encode(text, false);
  cut(ids, *most, body.truncates_left);
  return ids;
}

tl::expected<PooledPrompt, ApiError> encode_segments(const Served& served,
                                                     const PoolingBody& body,
                                                     const std::string& first,
                                                     const std::string& second,
                                                     const char* field) {
  Result<Tokenizer::Pair> pair = served.engine.text().tokenizer.encode_pair(first, second);
  if (!pair) {
    return tl::unexpected(api_error(pair.error()));
  }
  PooledPrompt out{std::move(pair->ids), pair->second};
  if (!body.truncate_prompt_tokens) {
    if (std::optional<ApiError> error = too_long(served, out.ids, field)) {
      return tl::unexpected(*std::move(error));
    }
    return out;
  }
  const Result<int64_t> most = most_tokens(served, body);
  const Result<Tokenizer::Pair> around = served.engine.text().tokenizer.encode_pair(first, "");
  if (!most || !around) {
    return tl::unexpected(api_error(!most ? most.error() : around.error()));
  }
  const int64_t excess = std::ssize(out.ids) - *most;
  if (excess <= 0) {
    return out;
  }
  if (std::cmp_greater(around->ids.size(), *most)) {
    return tl::unexpected(ApiError{
        .message = fmt::format("truncate_prompt_tokens: {} leaves no token of the second text; {} "
                               "are the first and around them",
                               *most,
                               around->ids.size()),
        .param = "truncate_prompt_tokens"});
  }
  const auto last = out.ids.end() - 1;  // the special token behind the second text
  out.ids.erase(last - excess, last);
  return out;
}

PooledPrompts prepare_inputs(const Served& served, const PoolingBody& body) {
  std::vector<PooledPrompt> out;
  for (const TextOrIds& input : body.inputs) {
    if (const auto* text = std::get_if<std::string>(&input)) {
      tl::expected<std::vector<TokenId>, ApiError> ids =
          encode_pooled(served, body, *text, "input");
      if (!ids) {
        return tl::unexpected(std::move(ids.error()));
      }
      out.push_back({*std::move(ids)});
      continue;
    }
    std::vector<TokenId>& ids = out.emplace_back().ids;
    ids = std::get<std::vector<TokenId>>(input);
    if (body.truncate_prompt_tokens) {
      const Result<int64_t> most = most_tokens(served, body);
      if (!most) {
        return tl::unexpected(api_error(most.error()));
      }
      cut(ids, *most, body.truncates_left);
    } else if (std::optional<ApiError> error = too_long(served, ids, "input")) {
      return tl::unexpected(*std::move(error));
    }
  }
  return out;
}

tl::expected<std::vector<ValidRequest>, ApiError> pooled_requests(const Served& served,
                                                                  const PoolingBody& body,
                                                                  PreparePooled prepare) {
  // Whether the model pools at all, before its texts are encoded.
  PoolingRequest wanted = body.request;
  wanted.prompt = std::vector<TokenId>{0};
  if (const Result<ValidRequest> valid = served.engine.validate_pooling(wanted); !valid) {
    return tl::unexpected(api_error(valid.error()));
  }
  PooledPrompts prompts = prepare(served, body);
  if (!prompts) {
    return tl::unexpected(std::move(prompts.error()));
  }
  std::vector<ValidRequest> out;
  for (PooledPrompt& prompt : *prompts) {
    wanted.prompt = std::move(prompt.ids);
    wanted.second_segment = prompt.second_segment;
    Result<ValidRequest> one = served.engine.validate_pooling(wanted);
    if (!one) {
      return tl::unexpected(api_error(one.error()));
    }
    out.push_back(*std::move(one));
  }
  return out;
}

ApiAnswer pool(Served& served,
               const HttpRequest& request,
               const Wake& wake,
               const PoolingEndpoint& endpoint) {
  if (const std::optional<ApiError> error = draining_error(served)) {
    return error_reply(*error);
  }
  Result<PoolingBody> body = endpoint.parse(request.body);
  if (!body) {
    return error_reply(api_error(body.error()));
  }
  tl::expected<HttpHeaders, ApiError> headers = served.names.check(body->model, body->ignored);
  if (!headers) {
    return error_reply(headers.error());
  }
  const tl::expected<std::vector<ValidRequest>, ApiError> valid =
      pooled_requests(served, *body, endpoint.prepare);
  if (!valid) {
    return error_reply(valid.error());
  }
  if (const std::optional<ApiError> error = reserve_places(served, valid->size())) {
    return error_reply(*error);
  }
  const std::string& id = body->request_id.empty() ? request.request_id : body->request_id;
  AnswerInfo info{.id = fmt::format("{}-{}", endpoint.id_prefix, id),
                  .model = served.options.model_names.front(),
                  .created = std::time(nullptr)};
  Generation::Form form{.id = info.id,
                        .owner = owner_of(served, request),
                        .endpoint = endpoint.name,
                        .headers = *std::move(headers)};
  return std::make_unique<Generation>(
      served.engine,
      *valid,
      std::make_unique<VectorsWriter>(std::move(info), endpoint.make_writer(served, *body)),
      std::move(form),
      served.watch.journal,
      wake);
}

}  // namespace warprow
