// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/engine_config.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace warprow {

// One setting of EngineConfig, described once. Flags, environment variables, --config files,
// --print-config and --help all come from this table; a new setting is a member of EngineConfig and
// a row in fields.cpp.
//
// Thread: any; the table is constant.
struct Field {
  using Member = std::variant<std::string EngineConfig::*,
                              int32_t EngineConfig::*,
                              int64_t EngineConfig::*,
                              uint64_t EngineConfig::*,
                              double EngineConfig::*,
                              bool EngineConfig::*,
                              std::optional<bool> EngineConfig::*>;  // empty: auto

  const char* name;          // the flag without its dashes: "max-model-len"
  Member member;             // its type decides how the text is read
  const char* group;         // heading under which --help lists it
  const char* help;          // one sentence without a full stop
  const char* alias = "";    // "tp": the flag may also be written -tp
  bool common = false;       // shown by the short --help
  const char* choices = "";  // "auto|cpu|cuda": the words a string may be; empty: any text
  bool is_bytes = false;     // --help shows SIZE instead of N
  int64_t min = 0;           // limits of a number, both allowed
  int64_t max = std::numeric_limits<int64_t>::max();
  int64_t multiple_of = 1;
  // What `auto` is stored as, which leaves the value to resolve(). A 0 may also be written `0`; any
  // other number can be written `auto` alone.
  std::optional<int32_t> auto_value = std::nullopt;
};

// Visits the settings in the order in which --help and --print-config show them.
void for_each_field(const std::function<void(const Field&)>& visit);

// By flag name; `_` counts as `-`. nullptr if there is no such setting.
const Field* find_field(std::string_view name);

bool is_switch(const Field& field);

// "WARPROW_MAX_MODEL_LEN".
std::string environment_name(const Field& field);

// Reads text into config's member. `where` opens the message of an error: "--block-size",
// "WARPROW_BLOCK_SIZE", "my.yaml: block-size".
Result<void> set_field(EngineConfig& config,
                       const Field& field,
                       std::string_view text,
                       std::string_view where);

// The words of a switch: true, 1, on, yes, enabled; false, 0, off, no, disabled. In any case of letters.
Result<bool> parse_switch(std::string_view text);

// Calls visit with the value of the field. A switch that is left to resolve() counts as off.
template <typename Visit>
auto visit_value(const EngineConfig& config, const Field& field, Visit visit) {
  return std::visit(
      [&](auto member) {
        const auto& value = config.*member;
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::optional<bool>>) {
          return visit(value.value_or(false));
        } else {
          return visit(value);
        }
      },
      field.member);
}

// The value as set_field would read it: "16", "true", "auto".
std::string field_text(const EngineConfig& config, const Field& field);
// Whether the value is left to resolve() and can be written `auto` alone.
bool is_only_auto(const EngineConfig& config, const Field& field);

}  // namespace warprow
