// SPDX-License-Identifier: Apache-2.0
#include "server/chat/written_value.h"

#include "server/chat/python_call.h"
#include "server/chat/text_scan.h"

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

// Deeper alternatives count as unknown.
constexpr int kMaxSchemaDepth = 8;

// The kinds of value that a schema allows.
struct Kinds {
  bool text = false;
  bool null = false;
  bool other = false;
  bool unknown = false;

  void add(const OrderedJson& type) {
    unknown = unknown || !type.is_string();
    text = text || type == "string";
    null = null || type == "null";
    other = other || (type != "string" && type != "null");
  }
  [[nodiscard]] ParameterKind joined() const {
    if (unknown || (text && other) || (!text && !null && !other)) {
      return ParameterKind::kUnknown;
    }
    if (text) {
      return null ? ParameterKind::kTextOrNull : ParameterKind::kText;
    }
    return ParameterKind::kOther;
  }
};

void collect(const OrderedJson& schema, int depth, Kinds& kinds) {
  const auto list = [&schema](const char* name) {
    const auto found = schema.find(name);
    return found != schema.end() && found->is_array() ? *found : OrderedJson::array();
  };
  if (!schema.is_object() || depth > kMaxSchemaDepth) {
    kinds.unknown = true;
    return;
  }
  if (schema.contains("type") && !schema["type"].is_array()) {
    kinds.add(schema["type"]);
    return;
  }
  for (const OrderedJson& type : list("type")) {
    kinds.add(type);
  }
  for (const char* name : {"anyOf", "oneOf"}) {
    for (const OrderedJson& each : list(name)) {
      collect(each, depth + 1, kinds);
    }
  }
  for (const OrderedJson& value : list("enum")) {
    kinds.add(value.is_string() ? "string" : value.is_null() ? "null" : "number");
  }
}

}  // namespace

ParameterKinds::ParameterKinds(const OrderedJson& tools) {
  for (const OrderedJson& tool : tools) {
    const OrderedJson& function = tool["function"];
    if (!function.contains("parameters") || !function["parameters"].contains("properties")) {
      continue;
    }
    auto& kinds = kinds_[function["name"].get<std::string>()];
    const OrderedJson& properties = function["parameters"]["properties"];
    for (const auto& [name, schema] : properties.items()) {
      Kinds of_schema;
      collect(schema, 0, of_schema);
      kinds[name] = of_schema.joined();
    }
  }
}

ParameterKind ParameterKinds::find(const std::string& function,
                                   const std::string& parameter) const {
  const auto of_function = kinds_.find(function);
  if (of_function == kinds_.end()) {
    return ParameterKind::kUnknown;
  }
  const auto found = of_function->second.find(parameter);
  return found == of_function->second.end() ? ParameterKind::kUnknown : found->second;
}

std::string json_text_of(std::string_view text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string written_value(std::string_view text, ParameterKind kind, bool may_be_literal) {
  const std::string_view literal = trimmed(text);
  const bool is_null = literal == "null" || literal == "None";
  const bool reads = kind == ParameterKind::kOther ||
                     (kind == ParameterKind::kUnknown && may_be_literal) ||
                     (kind == ParameterKind::kTextOrNull && is_null);
  if (!reads) {
    return json_text_of(text);
  }
  if (nlohmann::json::accept(literal)) {
    return std::string(literal);
  }
  return python_literal(literal).value_or(json_text_of(text));
}

}  // namespace warprow
