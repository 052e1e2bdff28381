// SPDX-License-Identifier: Apache-2.0
#include "server/chat/harmony_grammar.h"

#include "server/chat/tool_format.h"

#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr std::string_view kRecipientLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";

// Messages that may come first. In Lark a special token is named in angle brackets; no text matches it.
constexpr std::string_view kNotes =
    "note: <|channel|> (\"analysis\" | \"commentary\") <|message|> TEXT? <|end|> <|start|> "
    "\"assistant\"\n"
    "TEXT: /(.|\\n)+/\n";

std::string header_of_call(std::string_view name) {
  return fmt::format(
      "<|channel|> \"commentary to=functions.{} \" <|constrain|> \"json\" <|message|>", name);
}

}  // namespace

std::string harmony_answer_preamble() {
  return fmt::format(
      "start: note* <|channel|> \"final\" (\" \"? <|constrain|> \"json\")? <|message|>\n{}",
      kNotes);
}

Result<StructuredOutput> harmony_tool_grammar(const ToolOptions& options) {
  const OrderedJson any = {{"type", "object"}};
  std::vector<std::pair<std::string, OrderedJson>> functions;
  for (const OrderedJson& tool : options.tools) {
    const OrderedJson& function = tool["function"];
    const auto name = function["name"].get<std::string>();
    if (options.choice == ToolOptions::Choice::kNamed && name != options.name) {
      continue;
    }
    if (name.find_first_not_of(kRecipientLetters) != std::string::npos) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("tools: the name '{}' has other characters than letters, digits, "
                              "'_', '-' and '.'",
                              name));
    }
    const bool described = function.contains("parameters") && function["parameters"].is_object();
    functions.emplace_back(name, described ? function["parameters"] : any);
  }
  const auto schema_text = [](const OrderedJson& schema) {
    return schema.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  };
  StructuredOutput out;
  out.field = "tools";
  if (functions.size() == 1) {
    out.kind = GrammarKind::kJsonSchema;
    out.text = schema_text(functions.front().second);
    out.preamble =
        fmt::format("start: note* {}\n{}", header_of_call(functions.front().first), kNotes);
    return out;
  }
  out.kind = GrammarKind::kLark;
  out.text = "start: note* (";
  std::string rules;
  for (size_t i = 0; i < functions.size(); ++i) {
    out.text += fmt::format("{}call_{}", i > 0 ? " | " : "", i);
    rules += fmt::format("call_{0}: {1} arguments_{0}\narguments_{0}: %json {2}\n",
                         i,
                         header_of_call(functions[i].first),
                         schema_text(functions[i].second));
  }
  out.text += fmt::format(")\n{}{}", rules, kNotes);
  return out;
}

}  // namespace warprow
