// SPDX-License-Identifier: Apache-2.0
#include "capi/settings.h"

#include "config/env.h"
#include "config/fields.h"
#include "config/load_config.h"
#include "server/json_value.h"

#include <dlfcn.h>
#include <filesystem>
#include <system_error>
#include <unistd.h>

#include "warprow.h"
#include <fmt/format.h>

namespace warprow {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The text that a flag would have.
Result<std::string> text_of(const std::string& name, const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_boolean() || value.is_number() || value.is_object()) {
    return value.dump();
  }
  if (!value.is_array()) {
    return wrong_value(name, "text, a number, true, false, a list or an object", value);
  }
  std::string joined;
  for (const Json& entry : value) {
    if (!entry.is_string() && !entry.is_number()) {
      return wrong_value(name, "a list of texts or numbers", value);
    }
    joined += joined.empty() ? "" : ",";
    joined += entry.is_string() ? entry.get<std::string>() : entry.dump();
  }
  return joined;
}

Result<void> set_value(EngineConfig& config, const std::string& name, const Json& value) {
  const Field* field = find_field(name);
  if (field == nullptr) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: is no setting of the engine", name));
  }
  if (value.is_null()) {
    return {};
  }
  const Result<std::string> text = text_of(name, value);
  return text ? set_field(config, *field, *text, name) : tl::unexpected(text.error());
}

}  // namespace

Result<EngineConfig> read_settings(std::string_view json) {
  const Json root = Json::parse(json, nullptr, false);
  if (!root.is_object()) {
    return fail(ErrorCode::kInvalidArgument, "the settings are not a JSON object");
  }
  Result<LoadedConfig> loaded =
      load_config(environment("WARPROW_CONFIG").value_or(""), environment, {});
  if (!loaded) {
    return tl::unexpected(loaded.error());
  }
  EngineConfig config = std::move(loaded->config);
  for (const auto& [name, value] : root.items()) {
    if (Result<void> set = set_value(config, name, value); !set) {
      return tl::unexpected(set.error());
    }
  }
  if (config.model.empty()) {
    return fail(ErrorCode::kInvalidArgument, "model: missing, for instance smollm2");
  }
  return config;
}

std::string installed_binary() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&warprow_version), &here) == 0 ||
      here.dli_fname == nullptr) {
    return "";
  }
  std::error_code error;
  const fs::path folder = fs::absolute(here.dli_fname, error).parent_path();
  // A build, an installation, and one with a folder for the architecture.
  for (const char* place : {"warprow", "../bin/warprow", "../../bin/warprow"}) {
    const fs::path binary = (folder / place).lexically_normal();
    if (fs::is_regular_file(binary, error) && access(binary.c_str(), X_OK) == 0) {
      return binary.string();
    }
  }
  return "";
}

}  // namespace warprow
