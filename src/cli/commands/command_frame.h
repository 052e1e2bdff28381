// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/commands/command.h"
#include "cli/flags/engine_flags.h"
#include "cli/flags/flag_set.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// The common part of all commands: flags, MODEL as an argument or -m, the engine's settings, --output, --help,
// --print-config. A command adds its own flags, calls begin() and then uses config().
//
// Owns: the flags. Thread: one.
class CommandFrame {
 public:
  // usage: the text after "warprow NAME" in the usage line.
  CommandFrame(const char* name, const char* summary, const char* usage);

  FlagSet& flags() { return flags_; }
  // --output text|json.
  void add_output_flag();

  struct Traits {
    bool has_request_seed = false;      // --seed is the request's, not the engine's
    bool takes_more_arguments = false;  // accepts arguments after MODEL
    bool takes_model = true;            // false: -m names the model, and all arguments are others
    bool has_engine = true;             // false: neither MODEL nor the engine's settings
    bool runs_ranks = true;             // false: it needs no device
    bool is_offline = false;            // no client waits for single tokens (EngineConfig::offline)
    std::function<bool()> needs_model{};  // called after parsing; empty: yes
  };
  // Adds the engine's flags after the command's own, reads the arguments, loads the settings, starts logging, and
  // downloads the model if necessary. A value means that the command is finished: it was --help or --print-config, or
  // this process is a rank other than 0 of a launcher, and has run as one.
  Result<std::optional<ExitCode>> begin(const Arguments& arguments, const Traits& traits);

  [[nodiscard]] const EngineConfig& config() const { return loaded_.config; }
  [[nodiscard]] const LoadedConfig& loaded() const { return loaded_; }
  [[nodiscard]] bool as_json() const { return as_json_; }
  // The arguments after MODEL.
  [[nodiscard]] const std::vector<std::string>& more_arguments() const { return positionals_; }

 private:
  FlagSet flags_;
  std::optional<EngineFlags> engine_;
  std::vector<std::string> positionals_;
  bool as_json_ = false;
  LoadedConfig loaded_;
};

}  // namespace warprow
