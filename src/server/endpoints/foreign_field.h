// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

namespace warprow {

// A field of chats that another API does not have, or writes in another way. Null changes nothing.
struct ForeignField {
  const char* name;
  const char* harmless;           // JSON: the value that changes nothing
  const char* instead = nullptr;  // the API's own field
};

// nullptr: not one of them.
const ForeignField* find_foreign(std::span<const ForeignField> fields, std::string_view name);

// kUnsupported names the field, unless the value is harmless. api: as messages call it.
Result<void> check_harmless(const ForeignField& field,
                            const char* api,
                            const nlohmann::ordered_json& value);

}  // namespace warprow
