// SPDX-License-Identifier: Apache-2.0
#include "server/chat/tool_grammar.h"

#include "text/chat_template.h"

#include <utility>

namespace warprow {

StructuredOutput tool_grammar(const ToolWish& wish) {
  constexpr int kMostCalls = 16;  // so that a small model comes to an end
  const OrderedJson any = {{"type", "object"}};
  OrderedJson schema;
  OrderedJson definitions = OrderedJson::object();
  OrderedJson items = OrderedJson::array();
  for (const OrderedJson& tool : wish.tools) {
    const OrderedJson& function = tool["function"];
    OrderedJson parameters = function.contains("parameters") && function["parameters"].is_object()
                                 ? function["parameters"]
                                 : any;
    if (function["name"] == wish.name && wish.choice == ToolWish::Choice::kNamed) {
      return {GrammarKind::kJsonSchema, parameters.dump(), "tools"};
    }
    if (parameters.contains("$defs") && parameters["$defs"].is_object()) {
      definitions.update(parameters["$defs"]);  // references begin at the schema's root
      parameters.erase("$defs");
    }
    items.push_back({{"type", "object"},
                     {"properties",
                      {{"name", {{"enum", OrderedJson::array({function["name"]})}}},
                       {"parameters", std::move(parameters)}}},
                     {"required", {"name", "parameters"}},
                     {"additionalProperties", false}});
  }
  schema["type"] = "array";
  schema["minItems"] = 1;
  schema["maxItems"] = wish.parallel ? kMostCalls : 1;
  schema["items"]["anyOf"] = std::move(items);
  if (!definitions.empty()) {
    schema["$defs"] = std::move(definitions);
  }
  return {GrammarKind::kJsonSchema,
          schema.dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
          "tools"};
}

}  // namespace warprow
