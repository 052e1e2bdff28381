// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/flag_set.h"
#include "config/load_config.h"

#include <optional>
#include <string>
#include <vector>

namespace warprow {

// The flags of EngineConfig, with --config and --print-config, in a command's FlagSet; and what
// came of them.
class EngineFlags {
 public:
  // Adds the flags. A command whose own --seed has another meaning says so; the setting is then
  // left to the environment and the config file.
  enum class Seed { kEngine, kOfTheRequest };
  EngineFlags(FlagSet& flags, Seed seed);

  // Takes the model from the first of the positional arguments if -m was not given, and removes it
  // there.
  void take_model(std::vector<std::string>& positionals);

  // Puts file, environment and flags together and starts logging. An error names the flag, variable
  // or key.
  Result<LoadedConfig> load() const;

  // The text of --print-config, or nothing if it was not asked for.
  [[nodiscard]] Result<std::optional<std::string>> printed(const LoadedConfig& loaded,
                                                           bool as_json) const;

 private:
  std::vector<FlagValue> given_;
  std::optional<std::string> file_;
  bool print_ = false;
};

}  // namespace warprow
