// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/flags/flag_set.h"
#include "engine/request.h"

#include <optional>
#include <string>

namespace warprow {

// -p, --chat and --prompt-file: the flags for a single prompt.
class PromptFlags {
 public:
  explicit PromptFlags(FlagSet& flags);

  // How many of the three were given.
  [[nodiscard]] int count() const;
  // The prompt; reads the file of --prompt-file. kInvalidArgument unless exactly one of the flags is given.
  [[nodiscard]] Result<GenerationRequest> read() const;

 private:
  std::optional<std::string> text_;
  std::optional<std::string> chat_;
  std::optional<std::string> file_;
};

// The whole file, unchanged. "-" is standard input. kNotFound with the system's message.
Result<std::string> read_bytes(const std::string& path);

}  // namespace warprow
