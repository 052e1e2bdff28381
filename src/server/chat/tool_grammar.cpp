// SPDX-License-Identifier: Apache-2.0
#include "server/chat/tool_grammar.h"

#include "text/chat_template.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

bool is_one_of(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::ranges::find(keys, key) != keys.end();
}

// Prefixes the references of a schema with `root`, its place in the new document. Each schema was a root of its own; so
// the definitions of several schemas do not clash.
void move_references(OrderedJson& schema, const std::string& root) {
  if (schema.is_array()) {
    for (OrderedJson& each : schema) {
      move_references(each, root);
    }
    return;
  }
  if (!schema.is_object()) {
    return;
  }
  for (auto& [key, value] : schema.items()) {
    if (key == "$ref" && value.is_string()) {
      const auto reference = value.get<std::string>();
      if (reference == "#" || reference.starts_with("#/")) {
        value = root + reference.substr(1);
      }
    } else if (value.is_object() && is_one_of(key,
                                              {"properties",
                                               "patternProperties",
                                               "dependentSchemas",
                                               "$defs",
                                               "definitions"})) {
      for (auto& [name, named] : value.items()) {
        move_references(named, root);
      }
    } else if (!is_one_of(key, {"const", "enum", "default", "examples"})) {  // values, not schemas
      move_references(value, root);
    }
  }
}

}  // namespace

StructuredOutput tool_grammar(const ToolOptions& options) {
  constexpr int kMostCalls = 16;  // a small model might add calls without end
  const OrderedJson any = {{"type", "object"}};
  OrderedJson schema;
  OrderedJson items = OrderedJson::array();
  for (const OrderedJson& tool : options.tools) {
    const OrderedJson& function = tool["function"];
    OrderedJson parameters = function.contains("parameters") && function["parameters"].is_object()
                                 ? function["parameters"]
                                 : any;
    if (function["name"] == options.name && options.choice == ToolOptions::Choice::kNamed) {
      return {GrammarKind::kJsonSchema, parameters.dump(), "tools"};
    }
    move_references(parameters,
                    fmt::format("#/items/anyOf/{}/properties/parameters", items.size()));
    items.push_back({{"type", "object"},
                     {"properties",
                      {{"name", {{"enum", OrderedJson::array({function["name"]})}}},
                       {"parameters", std::move(parameters)}}},
                     {"required", {"name", "parameters"}},
                     {"additionalProperties", false}});
  }
  schema["type"] = "array";
  schema["minItems"] = 1;
  schema["maxItems"] = options.parallel ? kMostCalls : 1;
  schema["items"]["anyOf"] = std::move(items);
  return {GrammarKind::kJsonSchema,
          schema.dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
          "tools"};
}

}  // namespace warprow
