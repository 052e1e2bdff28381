// SPDX-License-Identifier: Apache-2.0
#include "cli/answer.h"
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/flags/prompt_flags.h"
#include "cli/output.h"
#include "engine/encode_prompt.h"
#include "files/model_files.h"
#include "text/text_model.h"

#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

std::string render(const TextModel& text, const std::vector<TokenId>& ids, bool as_json) {
  if (!as_json) {
    return fmt::format("{}\n", fmt::join(ids, " "));
  }
  AnswerJson out;
  out["token_ids"] = ids;
  out["tokens"] = AnswerJson::array();
  for (const TokenId id : ids) {
    out["tokens"].push_back(std::string(text.tokenizer.token_text(id)));
  }
  return json_line(out);
}

}  // namespace

Result<ExitCode> run_tokenize(const Arguments& arguments) {
  CommandFrame frame(
      "tokenize",
      "show the tokens of a text, with the special tokens that the model's rules add",
      "MODEL (-p TEXT | --chat TEXT | --prompt-file FILE) [FLAGS]");
  const PromptFlags prompt(frame.flags());
  frame.add_output_flag();
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {.runs_ranks = false});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  const Result<GenerationRequest> request = prompt.read();
  if (!request) {
    return tl::unexpected(request.error());
  }
  const auto text =
      value_or_throw(load_text_model(value_or_throw(resolve_model(frame.config().model))));
  const Result<std::vector<TokenId>> ids = encode_prompt(*request, *text);
  if (!ids) {
    return tl::unexpected(ids.error());
  }
  Output out(STDOUT_FILENO);
  out.write(render(*text, *ids, frame.as_json()));
  return out.status().map([] { return ExitCode::kOk; });
}

}  // namespace warprow
