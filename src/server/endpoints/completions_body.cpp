// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/completions_body.h"

#include "engine/prompt_embeds.h"
#include "server/base64.h"
#include "server/json_value.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = OrderedJson;

constexpr int64_t kCompletionMaxTokens = 16;  // OpenAI's and vLLM's default

Result<void> read_prompt(const char* field, const Json& value, BodyDraft& draft) {
  Result<std::vector<TextOrIds>> prompts = read_prompts(field, value);
  if (!prompts) {
    return tl::unexpected(prompts.error());
  }
  draft.body.prompts = *std::move(prompts);
  return {};
}

// Base64 of a safetensors file, or a list of such.
Result<void> read_embeds(const char* field, const Json& value, BodyDraft& draft) {
  std::vector<std::string> files;
  if (Result<void> read = read_value(field, value, files); !read) {
    return read;
  }
  if (files.size() > kMaxPrompts) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: {} entries, must be {} or less", field, files.size(), kMaxPrompts));
  }
  for (const std::string& file : files) {
    const std::optional<std::vector<std::byte>> bytes = from_base64(file);
    if (!bytes) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("{}: is no base64", field));
    }
    Result<PromptEmbeds> vectors = read_prompt_embeds(*bytes);
    if (!vectors) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: {}", field, vectors.error().message));
    }
    draft.body.embeds.push_back(*std::move(vectors));
  }
  return {};
}

bool has_places(const TextOrIds& prompt) {
  const auto* ids = std::get_if<std::vector<TokenId>>(&prompt);
  return ids != nullptr && std::ranges::find(*ids, TokenId{-1}) != ids->end();
}

constexpr BodyField kCompletionsFields[] = {
    {"prompt", &read_prompt},
    {"prompt_embeds", &read_embeds},
    {"logprobs", &sampling<&SamplingOptions::logprobs>},
};

// Pairs prompts and vectors.
Result<void> give_embeds(GenerationBody& body, std::vector<PromptEmbeds> embeds) {
  if (embeds.empty()) {
    return {};
  }
  if (body.echo || body.truncate_prompt_tokens) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: not supported with prompt_embeds",
                            body.echo ? "echo" : "truncate_prompt_tokens"));
  }
  const auto places = std::ranges::count_if(body.prompts, has_places);
  if (places == 0) {
    std::vector<TextOrIds> prompts;
    prompts.reserve(embeds.size() + body.prompts.size());
    for (const PromptEmbeds& vectors : embeds) {
      prompts.emplace_back(std::vector<TokenId>(vectors->num_vectors(), -1));
    }
    std::ranges::move(body.prompts, std::back_inserter(prompts));
    body.prompts = std::move(prompts);
    embeds.resize(body.prompts.size());
    body.embeds = std::move(embeds);
    return {};
  }
  if (std::cmp_not_equal(places, embeds.size())) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("prompt_embeds: {} entries for {} prompts with places (-1) for vectors",
                            embeds.size(),
                            places));
  }
  auto next = embeds.begin();
  for (const TextOrIds& prompt : body.prompts) {
    body.embeds.push_back(has_places(prompt) ? std::move(*next++) : nullptr);
  }
  return {};
}

Result<void> finish_completion(BodyDraft& draft) {
  GenerationBody& body = draft.body;
  if (Result<void> given = give_embeds(body, std::exchange(body.embeds, {})); !given) {
    return given;
  }
  if (body.prompts.empty()) {
    return fail(ErrorCode::kInvalidArgument, "prompt: missing, must be text or token ids");
  }
  body.sampling.max_tokens = body.sampling.max_tokens.value_or(kCompletionMaxTokens);
  if (body.echo && body.sampling.max_tokens == 0) {  // for the prompt's own logprobs
    body.only_prompt = true;
    body.sampling.max_tokens = 1;
  }
  return {};
}

}  // namespace

Result<std::vector<TextOrIds>> read_prompts(const char* field, const Json& value, size_t most) {
  const bool is_list =
      value.is_array() && !value.empty() && (value[0].is_string() || value[0].is_array());
  if (is_list && value.size() > most) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "{}: {} prompts in one request, must be {} or less", field, value.size(), most));
  }
  std::vector<TextOrIds> prompts;
  for (const Json& prompt : is_list ? value : Json::array({value})) {
    if (prompt.is_string() && (!is_list || value[0].is_string())) {
      prompts.emplace_back(prompt.get<std::string>());
      continue;
    }
    Result<std::vector<TokenId>> ids = read_token_ids(field, prompt, -1);
    if (!ids || (is_list && value[0].is_string())) {
      return wrong_value(field, "text, a list of token ids, or a list of either kind", value);
    }
    prompts.emplace_back(*std::move(ids));
  }
  return prompts;
}

Result<GenerationBody> parse_completions_body(std::string_view text) {
  return parse_json_object(text).and_then(
      [&](const Json& root) { return read_completions_body(root, text, {}); });
}

Result<GenerationBody> read_completions_body(const Json& root,
                                             std::string_view text,
                                             std::vector<PromptEmbeds> embeds) {
  Result<BodyDraft> draft = read_generation_fields(root, text, kCompletionsFields);
  if (!draft) {
    return tl::unexpected(draft.error());
  }
  if (!embeds.empty() && !std::exchange(draft->body.embeds, std::move(embeds)).empty()) {
    return fail(ErrorCode::kInvalidArgument, "prompt_embeds: given twice");
  }
  if (Result<void> done = finish_completion(*draft); !done) {
    return tl::unexpected(done.error());
  }
  return std::move(draft->body);
}

}  // namespace warprow
