// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/completions_body.h"
#include "server/endpoints/endpoints.h"
#include "server/endpoints/generate.h"
#include "server/endpoints/writers.h"
#include "text/text_model.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace warprow {
namespace {

EncodedPrompts encode_prompts(const Served& served, const GenerationBody& body) {
  Prompts out;
  for (const TextOrIds& prompt : body.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    if (text == nullptr) {
      out.push_back(std::get<std::vector<TokenId>>(prompt));
      continue;
    }
    tl::expected<std::vector<TokenId>, ApiError> ids =
        encode_text(served, body, *text, body.add_special_tokens.value_or(true));
    if (!ids) {
      return tl::unexpected(std::move(ids.error()));
    }
    out.push_back(*std::move(ids));
    // Check this prompt before encoding the next.
    if (std::optional<ApiError> error =
            body.truncate_prompt_tokens ? std::nullopt : length_error(served, body, out.back())) {
      return tl::unexpected(*std::move(error));
    }
  }
  return out;
}

// The client's own text, or the decoded tokens if the prompt may have been truncated.
std::string echo(const Served& served,
                 const GenerationBody& body,
                 size_t index,
                 const std::vector<TokenId>& prompt) {
  const auto* text = std::get_if<std::string>(&body.prompts[index]);
  return text != nullptr && !body.truncate_prompt_tokens
             ? *text
             : served.engine.text().tokenizer.decode(prompt, false);
}

std::unique_ptr<AnswerWriter> make_completions_writer(const Served& served,
                                                      GenerationBody& body,
                                                      AnswerInfo info,
                                                      AnswerShape shape) {
  return make_completions_writer(std::move(info), token_bytes(served, body), std::move(shape));
}

}  // namespace

EncodedPrompts prepare_completions(const Served& served, GenerationBody& body) {
  EncodedPrompts prompts = encode_prompts(served, body);
  // With echo, logprobs cover the prompt's tokens too.
  SamplingOptions& sampling = body.sampling;
  if (body.echo && sampling.logprobs && !sampling.prompt_logprobs) {
    sampling.prompt_logprobs = sampling.logprobs;
  }
  return prompts;
}

ApiAnswer answer_completions(Served& served, const HttpRequest& request, const Wake& wake) {
  static constexpr GeneratingEndpoint kCompletions{"completions",
                                                   "cmpl",
                                                   &parse_completions_body,
                                                   &prepare_completions,
                                                   &echo,
                                                   &make_completions_writer};
  return generate(served, request, wake, kCompletions);
}

}  // namespace warprow
