// SPDX-License-Identifier: Apache-2.0
#include "config/print_config.h"

#include "config/fields.h"

#include <string_view>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

Json field_json(const EngineConfig& config, const Field& field) {
  if (is_only_auto(config, field)) {
    return field_text(config, field);
  }
  return visit_value(config, field, [](const auto& value) { return Json(value); });
}

// JSON strings are YAML strings; only plain words go without quotes.
std::string yaml_text(const Json& value) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  if (!value.is_string()) {
    return value.dump();
  }
  const auto& text = value.get_ref<const std::string&>();
  const bool plain =
      !text.empty() && text.find_first_not_of(kPlain) == std::string::npos && text.front() != '-';
  return plain ? text : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool was_decided(const LoadedConfig& loaded, const ResolvedConfig& resolved, const Field& field) {
  return field_text(loaded.config, field) != field_text(resolved, field);
}

}  // namespace

std::string config_as_yaml(const LoadedConfig& loaded, const ResolvedConfig& resolved) {
  std::string out;
  for_each_field([&](const Field& field) {
    const std::string entry =
        fmt::format("{}: {}", field.name, yaml_text(field_json(loaded.config, field)));
    out += fmt::format("{:<40} # {}", entry, origin_name(loaded.origin(field.name)));
    if (was_decided(loaded, resolved, field)) {
      out += fmt::format(", becomes {}", field_text(resolved, field));
    }
    out += '\n';
  });
  return out;
}

std::string config_as_json(const LoadedConfig& loaded, const ResolvedConfig& resolved) {
  Json out = Json::object();
  for_each_field([&](const Field& field) {
    Json entry = {{"value", field_json(loaded.config, field)},
                  {"source", origin_name(loaded.origin(field.name))}};
    if (was_decided(loaded, resolved, field)) {
      entry["resolved"] = field_json(resolved, field);
    }
    out[field.name] = std::move(entry);
  });
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

std::string settings_json(const LoadedConfig& loaded) {
  Json out = Json::object();
  for_each_field([&](const Field& field) { out[field.name] = field_json(loaded.config, field); });
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string settings_line(const LoadedConfig& loaded) {
  std::string out;
  for_each_field([&](const Field& field) {
    if (loaded.origin(field.name) != Origin::kDefault) {
      out += fmt::format("{}--{} {} ({})",
                         out.empty() ? "" : ", ",
                         field.name,
                         field_text(loaded.config, field),
                         origin_name(loaded.origin(field.name)));
    }
  });
  return out;
}

}  // namespace warprow
