// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/flags/flag_set.h"
#include "engine/request.h"

#include <optional>
#include <string>
#include <vector>

namespace warprow {

// The flags for structured output: --json-schema, --json-object, --regex, --grammar, --choice.
class StructureFlags {
 public:
  explicit StructureFlags(FlagSet& flags);  // flags must not outlive this
  StructureFlags(const StructureFlags&) = delete;
  StructureFlags& operator=(const StructureFlags&) = delete;

  // The structured output of the flags; reads their files. nullopt without such a flag, an error with more than one.
  [[nodiscard]] Result<std::optional<StructuredOutput>> read() const;

 private:
  std::optional<std::string> schema_file_;
  bool json_object_ = false;
  std::optional<std::string> regex_;
  std::optional<std::string> grammar_file_;
  std::vector<std::string> choices_;
};

}  // namespace warprow
