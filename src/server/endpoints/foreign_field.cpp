// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/foreign_field.h"

#include <algorithm>

#include <fmt/format.h>

namespace warprow {

const ForeignField* find_foreign(std::span<const ForeignField> fields, std::string_view name) {
  const auto found = std::find_if(
      fields.begin(), fields.end(), [name](const auto& field) { return name == field.name; });
  return found == fields.end() ? nullptr : &*found;
}

Result<void> check_harmless(const ForeignField& field,
                            const char* api,
                            const nlohmann::ordered_json& value) {
  if (value == nlohmann::ordered_json::parse(field.harmless)) {
    return {};
  }
  return fail(ErrorCode::kUnsupported,
              field.instead == nullptr
                  ? fmt::format("{}: not supported in {}", field.name, api)
                  : fmt::format("{}: is {} in {}", field.name, field.instead, api));
}

}  // namespace warprow
