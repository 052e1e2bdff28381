// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/completions_body.h"

#include "server/json_value.h"

#include <cstdint>
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

constexpr BodyField kFields[] = {
    {"prompt", &read_prompt},
    {"logprobs", &sampling<&SamplingOptions::logprobs>},
};

Result<void> finish_completion(BodyDraft& draft) {
  GenerationBody& body = draft.body;
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
    Result<std::vector<TokenId>> ids = read_token_ids(field, prompt);
    if (!ids || (is_list && value[0].is_string())) {
      return wrong_value(field, "text, a list of token ids, or a list of either kind", value);
    }
    prompts.emplace_back(*std::move(ids));
  }
  return prompts;
}

Result<GenerationBody> parse_completions_body(std::string_view text) {
  const Result<Json> root = parse_json_object(text);
  if (!root) {
    return tl::unexpected(root.error());
  }
  Result<BodyDraft> draft = read_generation_fields(*root, text, kFields);
  if (!draft) {
    return tl::unexpected(draft.error());
  }
  if (Result<void> done = finish_completion(*draft); !done) {
    return tl::unexpected(done.error());
  }
  return std::move(draft->body);
}

}  // namespace warprow
