// SPDX-License-Identifier: Apache-2.0
#include "config/load_config.h"

#include "base/check.h"
#include "config/fields.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

namespace warprow {
namespace {

Result<YAML::Node> read_yaml(const std::string& path) {
  std::ifstream stream(path);
  if (!stream || std::filesystem::is_directory(path)) {
    const int reason = stream ? EISDIR : errno;
    return fail(ErrorCode::kNotFound,
                fmt::format("--config {}: cannot read the file: {}", path, std::strerror(reason)));
  }
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  try {
    return YAML::Load(text);
  } catch (const YAML::Exception& error) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}:{}: not YAML: {}", path, error.mark.line + 1, error.msg));
  }
}

Result<void> apply_file(LoadedConfig& loaded, const std::string& path) {
  const Result<YAML::Node> root = read_yaml(path);
  if (!root) {
    return tl::unexpected(root.error());
  }
  if (root->IsNull()) {
    return {};
  }
  if (!root->IsMap()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: must be a mapping of flag names to values", path));
  }
  for (const auto& entry : *root) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const std::string where = fmt::format("{}: {}", path, key);
    const Field* field = find_field(key);
    if (field == nullptr) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("{}: unknown key '{}'", path, key));
    }
    if (!entry.second.IsScalar()) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("{}: must be one value", where));
    }
    if (!loaded.origins.emplace(field->name, Origin::kFile).second) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("{}: is set twice", where));
    }
    if (Result<void> done = set_field(loaded.config, *field, entry.second.Scalar(), where); !done) {
      return done;
    }
  }
  return {};
}

Result<void> apply_environment(LoadedConfig& loaded, const EnvironmentLookup& lookup) {
  Result<void> outcome;
  for_each_field([&](const Field& field) {
    const std::string name = environment_name(field);
    const std::optional<std::string> text = outcome ? lookup(name) : std::nullopt;
    if (text) {
      outcome = set_field(loaded.config, field, *text, name);
      loaded.origins[field.name] = Origin::kEnv;
    }
  });
  return outcome;
}

Result<void> apply_flags(LoadedConfig& loaded, const std::vector<FlagValue>& flags) {
  for (const FlagValue& flag : flags) {
    const Field* field = find_field(flag.name);
    WR_CHECK(field != nullptr, "no setting is called {}", flag.name);
    if (Result<void> done =
            set_field(loaded.config, *field, flag.text, fmt::format("--{}", field->name));
        !done) {
      return done;
    }
    loaded.origins[field->name] = Origin::kFlag;
  }
  return {};
}

}  // namespace

const char* origin_name(Origin origin) {
  switch (origin) {
    case Origin::kDefault:
      return "default";
    case Origin::kFile:
      return "file";
    case Origin::kEnv:
      return "env";
    case Origin::kFlag:
      return "flag";
  }
  return "?";
}

Origin LoadedConfig::origin(std::string_view field) const {
  const auto found = origins.find(field);
  return found == origins.end() ? Origin::kDefault : found->second;
}

Result<LoadedConfig> load_config(const std::string& file,
                                 const EnvironmentLookup& environment,
                                 const std::vector<FlagValue>& flags) {
  LoadedConfig loaded;
  Result<void> done;
  if (!file.empty()) {
    done = apply_file(loaded, file);
  }
  if (done) {
    done = apply_environment(loaded, environment);
  }
  if (done) {
    done = apply_flags(loaded, flags);
  }
  if (!done) {
    return tl::unexpected(done.error());
  }
  return loaded;
}

}  // namespace warprow
