// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/engine_config.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// Where a value came from; a later one wins.
enum class Origin : uint8_t { kDefault, kFile, kEnv, kFlag };
const char* origin_name(Origin origin);  // "default", "file", "env", "flag"

// A flag as typed: {"max-model-len", "32k"}. A switch has the text "true" or "false".
struct FlagValue {
  std::string name;
  std::string text;
};

using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

// The settings of a run before resolve(), with the origin of each.
struct LoadedConfig {
  EngineConfig config;
  std::map<std::string, Origin, std::less<>>
      origins;  // by field name; what is absent has its default

  [[nodiscard]] Origin origin(std::string_view field) const;
};

// Merges the layers: defaults, the YAML file (empty path: none), WARPROW_… variables, flags; later layers
// override earlier ones. A file is a mapping from flag names (with - or _) to scalars; an unknown or
// repeated key is an error that names it. If a flag is given twice, the last one counts. Flags must name
// fields.
Result<LoadedConfig> load_config(const std::string& file,
                                 const EnvironmentLookup& environment,
                                 const std::vector<FlagValue>& flags);

}  // namespace warprow
