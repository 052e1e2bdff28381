// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/engine_flags.h"

#include "base/log.h"
#include "config/env.h"
#include "config/fields.h"
#include "config/print_config.h"
#include "config/resolve.h"
#include "worker/model_plan.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

namespace warprow {
namespace {

std::string value_placeholder(const Field& field) {
  if (is_switch(field)) {
    return "";
  }
  if (*field.choices != '\0') {
    return field.choices;
  }
  if (std::holds_alternative<std::string EngineConfig::*>(field.member)) {
    return field.name == std::string_view("model") ? "MODEL" : "LIST";
  }
  return field.is_bytes ? "SIZE" : "N";
}

std::string help_of(const Field& field) {
  const std::string value = field_text(EngineConfig{}, field);
  if (value.empty()) {
    return field.help;
  }
  return fmt::format("{} [{}]", field.help, field.auto_value && value == "0" ? "auto" : value);
}

// Warns of a mistyped variable, which would otherwise have no effect. It is not an error: the variable may be for
// another version.
void warn_of_unknown_variables() {
  // Variables that are no settings: the file of --config, the instruction set of CPU kernels, and files of libraries.
  std::vector<std::string> known{
      "WARPROW_CONFIG", "WARPROW_CPU_ISA", "WARPROW_CUBLASLT", "WARPROW_NCCL"};
  for_each_field([&](const Field& field) { known.push_back(environment_name(field)); });
  for (const std::string& name : environment_names("WARPROW_")) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const std::string near = nearest_word(name, known);
      WR_LOG_WARN("the variable {} is no setting and does nothing{}",
                  name,
                  near.empty() ? "" : fmt::format("; did you mean {}?", near));
    }
  }
}

}  // namespace

EngineFlags::EngineFlags(FlagSet& flags, Seed seed) {
  for_each_field([&](const Field& field) {
    const std::string name = field.name;
    if (name == "seed" && seed == Seed::kOfTheRequest) {
      return;
    }
    Flag flag{.name = name,
              .value = value_placeholder(field),
              .group = field.group,
              .help = help_of(field),
              .common = field.common,
              .short_name = name == "model" ? "m" : "",
              .alias = field.alias};
    const FlagSet::ReadValue take = [this, name](const std::string& text) -> Result<void> {
      given_.push_back({name, text});
      return {};
    };
    if (is_switch(field)) {
      flags.add_switch(std::move(flag), take);
    } else {
      flags.add_value(std::move(flag), take);
    }
  });
  flags.add_text({.name = "config",
                  .value = "FILE",
                  .group = "Configuration",
                  .help = "YAML with flag names as keys (or WARPROW_CONFIG); flags beat "
                          "WARPROW_... variables, which beat the file"},
                 file_);
  flags.add_switch(
      {.name = "print-config",
       .value = "",
       .group = "Configuration",
       .help = "print every setting and where it came from (default, file, env or flag), and stop",
       .common = false},
      [this](bool on) { print_ = on; });
}

void EngineFlags::take_model(std::vector<std::string>& positionals) {
  const bool has_flag = std::any_of(
      given_.begin(), given_.end(), [](const FlagValue& flag) { return flag.name == "model"; });
  if (!has_flag && !positionals.empty()) {
    given_.push_back({"model", positionals.front()});
    positionals.erase(positionals.begin());
  }
}

Result<LoadedConfig> EngineFlags::load() const {
  const std::string file = file_ ? *file_ : environment("WARPROW_CONFIG").value_or("");
  Result<LoadedConfig> loaded = load_config(file, environment, given_);
  if (loaded) {
    init_logging(loaded->config.log_level, loaded->config.log_format);
    warn_of_unknown_variables();
  }
  return loaded;
}

Result<std::optional<std::string>> EngineFlags::printed(const LoadedConfig& loaded,
                                                        bool as_json) const {
  if (!print_) {
    return std::nullopt;
  }
  const Result<ResolvedConfig> resolved =
      resolve(loaded.config, host_facts(this_machine(loaded.config.device)));
  if (!resolved) {
    return tl::unexpected(resolved.error());
  }
  return as_json ? config_as_json(loaded, *resolved) : config_as_yaml(loaded, *resolved);
}

}  // namespace warprow
