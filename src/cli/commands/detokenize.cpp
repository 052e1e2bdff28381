// SPDX-License-Identifier: Apache-2.0
#include "cli/answer.h"
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/commands/token_list.h"
#include "cli/flags/prompt_flags.h"
#include "cli/output.h"
#include "files/model_files.h"
#include "text/text_model.h"

#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

namespace warprow {

Result<ExitCode> run_detokenize(const Arguments& arguments) {
  CommandFrame frame("detokenize",
                     "turn token ids into text; without ids, read them from standard input as "
                     "tokenize wrote them",
                     "MODEL [ID...] [FLAGS]");
  frame.add_output_flag();
  bool skip_special = false;
  frame.flags().add_switch({.name = "skip-special-tokens",
                            .value = "",
                            .group = "Output",
                            .help = "leave special tokens out of the text [false]"},
                           [&](bool on) { skip_special = on; });
  const Result<std::optional<ExitCode>> begun =
      frame.begin(arguments, {.takes_more_arguments = true, .runs_ranks = false});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  const Result<std::string> list =
      frame.more_arguments().empty()
          ? read_bytes("-")
          : Result<std::string>(fmt::format("{}", fmt::join(frame.more_arguments(), " ")));
  if (!list) {
    return tl::unexpected(list.error());
  }
  const auto text =
      value_or_throw(load_text_model(value_or_throw(resolve_model(frame.config().model))));
  const Result<std::vector<TokenId>> ids = parse_token_list(*list, text->tokenizer.vocab_size());
  if (!ids) {
    return tl::unexpected(ids.error());
  }
  const std::string decoded = text->tokenizer.decode(*ids, skip_special);
  AnswerJson json;
  json["text"] = decoded;
  Output out(STDOUT_FILENO);
  out.write(frame.as_json() ? json_line(json) : decoded);
  if (out.is_terminal()) {
    out.end_line();
  }
  return out.status().map([] { return ExitCode::kOk; });
}

}  // namespace warprow
