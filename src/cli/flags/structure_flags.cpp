// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/structure_flags.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr const char* kStructureGroup = "Structured output";

Result<StructuredOutput> read_grammar_file(GrammarKind kind,
                                           const char* flag,
                                           const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.peek();  // opening a directory works, reading it does not
  if (!file.is_open() || file.bad()) {
    return fail(ErrorCode::kNotFound, fmt::format("{} {}: cannot read the file", flag, path));
  }
  file.clear();
  return StructuredOutput{
      kind, std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>())};
}

}  // namespace

StructureFlags::StructureFlags(FlagSet& flags) {
  flags.add_text({.name = "json-schema",
                  .value = "FILE",
                  .group = kStructureGroup,
                  .help = "the answer is JSON that this schema allows"},
                 schema_file_);
  flags.add_switch({.name = "json-object",
                    .value = "",
                    .group = kStructureGroup,
                    .help = "the answer is a JSON object",
                    .common = false},
                   [this](bool on) { json_object_ = on; });
  flags.add_text({.name = "regex",
                  .value = "REGEX",
                  .group = kStructureGroup,
                  .help = "the answer matches this as a whole",
                  .common = false},
                 regex_);
  flags.add_text({.name = "grammar",
                  .value = "FILE",
                  .group = kStructureGroup,
                  .help = "the answer is in the language of this grammar: Lark, or EBNF with ::=",
                  .common = false},
                 grammar_file_);
  flags.add_value({.name = "choice",
                   .value = "A,B",
                   .group = kStructureGroup,
                   .help = "the answer is one of these texts; may be given several times",
                   .common = false},
                  [this](std::string_view text) -> Result<void> {
                    while (true) {
                      const size_t end = std::min(text.find(','), text.size());
                      choices_.emplace_back(text.substr(0, end));
                      if (end == text.size()) {
                        return {};
                      }
                      text.remove_prefix(end + 1);
                    }
                  });
}

Result<std::optional<StructuredOutput>> StructureFlags::read() const {
  const int count = int{schema_file_.has_value()} + int{json_object_} + int{regex_.has_value()} +
                    int{grammar_file_.has_value()} + int{!choices_.empty()};
  if (count == 0) {
    return std::nullopt;
  }
  if (count > 1) {
    return fail(ErrorCode::kInvalidArgument,
                "--json-schema, --json-object, --regex, --grammar and --choice exclude each other");
  }
  if (schema_file_) {
    return read_grammar_file(GrammarKind::kJsonSchema, "--json-schema", *schema_file_);
  }
  if (grammar_file_) {
    return read_grammar_file(GrammarKind::kLark, "--grammar", *grammar_file_);
  }
  if (regex_) {
    return StructuredOutput{GrammarKind::kRegex, *regex_};
  }
  if (json_object_) {
    return StructuredOutput{GrammarKind::kJsonObject, ""};
  }
  return StructuredOutput{GrammarKind::kChoice, choice_text(choices_)};
}

}  // namespace warprow
