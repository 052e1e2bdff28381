// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/flags/flag_set.h"
#include "config/load_config.h"

#include <optional>
#include <string>
#include <vector>

namespace warprow {

// Adds the flags of EngineConfig, --config and --print-config to a command's FlagSet, and reads their values.
class EngineFlags {
 public:
  // Adds the flags. kOfTheRequest: the command has its own --seed with another meaning, so only the environment and the
  // config file can set the engine's seed.
  enum class Seed { kEngine, kOfTheRequest };
  EngineFlags(FlagSet& flags, Seed seed);

  // Without -m, takes the model from the first positional argument and removes that argument.
  void take_model(std::vector<std::string>& positionals);

  // Merges file, environment and flags and starts logging. An error names the flag, variable or key.
  Result<LoadedConfig> load() const;

  // The text of --print-config; nullopt without that flag.
  [[nodiscard]] Result<std::optional<std::string>> printed(const LoadedConfig& loaded,
                                                           bool as_json) const;

 private:
  std::vector<FlagValue> given_;
  std::optional<std::string> file_;
  bool print_ = false;
};

}  // namespace warprow
