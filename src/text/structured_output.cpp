// SPDX-License-Identifier: Apache-2.0
#include "text/structured_output.h"

#include "text/ordered_json.h"

#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;
using Wanted = Result<std::optional<StructuredOutput>>;

tl::unexpected<Error> invalid(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}
tl::unexpected<Error> unsupported(std::string_view field) {
  return fail(ErrorCode::kUnsupported, fmt::format("{}: not supported yet", field));
}

// The member, or nullptr if it is absent or null.
const Json* find_setting(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string schema_text(const Json& schema) {
  return schema.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_schema(const Json& value) { return value.is_object() || value.is_boolean(); }

Wanted read_schema(const Json& value) {
  if (value.is_string()) {
    return StructuredOutput{GrammarKind::kJsonSchema, value.get<std::string>()};
  }
  if (!is_schema(value)) {
    return invalid("structured_outputs.json: must be a JSON schema or its text");
  }
  return StructuredOutput{GrammarKind::kJsonSchema, schema_text(value)};
}

Wanted read_json_object(const Json& value) {
  if (!value.is_boolean()) {
    return invalid("structured_outputs.json_object: must be true or false");
  }
  return value.get<bool>() ? Wanted(StructuredOutput{GrammarKind::kJsonObject, ""}) : std::nullopt;
}

Wanted read_regex(const Json& value) {
  if (!value.is_string()) {
    return invalid("structured_outputs.regex: must be text");
  }
  return StructuredOutput{GrammarKind::kRegex, value.get<std::string>()};
}

Wanted read_grammar(const Json& value) {
  if (!value.is_string()) {
    return invalid("structured_outputs.grammar: must be text");
  }
  return StructuredOutput{GrammarKind::kLark, value.get<std::string>()};
}

Wanted read_structural_tag(const Json& value) {
  if (!value.is_string() && !value.is_object()) {
    return invalid("structured_outputs.structural_tag: must be a structural tag or its text");
  }
  return StructuredOutput{GrammarKind::kStructuralTag,
                          value.is_string() ? value.get<std::string>() : schema_text(value)};
}

Wanted read_choice(const Json& value) {
  constexpr const char* kMessage = "structured_outputs.choice: must be a list of one text or more";
  if (!value.is_array() || value.empty()) {
    return invalid(kMessage);
  }
  std::vector<std::string> choices;
  for (const Json& choice : value) {
    if (!choice.is_string()) {
      return invalid(kMessage);
    }
    choices.push_back(choice.get<std::string>());
  }
  return StructuredOutput{GrammarKind::kChoice, choice_text(choices)};
}

struct Member {
  const char* name;
  Wanted (*read)(const Json& value);
};

constexpr Member kMembers[] = {
    {"json", &read_schema},
    {"json_object", &read_json_object},
    {"regex", &read_regex},
    {"grammar", &read_grammar},
    {"choice", &read_choice},
    {"structural_tag", &read_structural_tag},
};

// vLLM's options that we do not support. Their default is false.
constexpr const char* kRefused[] = {"whitespace_pattern",
                                    "disable_any_whitespace",
                                    "disable_fallback",
                                    "disable_additional_properties"};

Wanted read_member(const std::string& key, const Json& value) {
  for (const Member& member : kMembers) {
    if (key == member.name) {
      return member.read(value);
    }
  }
  for (const char* name : kRefused) {
    if (key == name) {
      return value == false ? Wanted(std::nullopt) : unsupported("structured_outputs." + key);
    }
  }
  return invalid(fmt::format("structured_outputs: unknown field '{}'", key));
}

Wanted read_structured_outputs(const Json& value) {
  constexpr const char* kOneOf = "json, json_object, regex, grammar, choice, structural_tag";
  if (!value.is_object()) {
    return invalid(fmt::format("structured_outputs: must be an object with one of {}", kOneOf));
  }
  std::optional<StructuredOutput> wanted;
  for (const auto& [key, member] : value.items()) {
    if (member.is_null()) {
      continue;
    }
    Wanted read = read_member(key, member);
    if (!read) {
      return read;
    }
    if (wanted && *read) {
      return invalid(
          fmt::format("structured_outputs: has {} beside another; give one of {}", key, kOneOf));
    }
    if (*read) {
      wanted = *std::move(read);
    }
  }
  if (!wanted) {
    return invalid(fmt::format("structured_outputs: needs one of {}", kOneOf));
  }
  return wanted;
}

constexpr std::string_view kResponseFormat = "response_format";

Wanted read_response_format(const Json& value) {
  const Json* type = value.is_object() ? find_setting(value, "type") : nullptr;
  if (type == nullptr || !type->is_string()) {
    return invalid(
        "response_format: must be an object with type text, json_object, json_schema or "
        "structural_tag");
  }
  const auto name = type->get<std::string>();
  if (name == "text") {
    return std::nullopt;
  }
  if (name == "json_object") {
    return StructuredOutput{GrammarKind::kJsonObject, "", kResponseFormat};
  }
  if (name == "structural_tag") {
    return StructuredOutput{GrammarKind::kStructuralTag, schema_text(value), kResponseFormat};
  }
  if (name != "json_schema") {
    return invalid(
        "response_format.type: must be text, json_object, json_schema or structural_tag");
  }
  const Json* described = find_setting(value, "json_schema");
  const Json* schema =
      described != nullptr && described->is_object() ? find_setting(*described, "schema") : nullptr;
  if (schema == nullptr || !is_schema(*schema)) {
    return invalid("response_format.json_schema: must be an object with a JSON schema in schema");
  }
  return StructuredOutput{GrammarKind::kJsonSchema, schema_text(*schema), kResponseFormat};
}

}  // namespace

Result<std::optional<StructuredOutput>> read_structured_output(std::string_view request) {
  const Result<Json> root = parse_ordered_object(request, "the request");
  if (!root) {
    return tl::unexpected(root.error());
  }
  const Json* outputs = find_setting(*root, "structured_outputs");
  const Json* format = find_setting(*root, "response_format");
  Wanted wanted = outputs != nullptr ? read_structured_outputs(*outputs) : Wanted(std::nullopt);
  if (!wanted || format == nullptr) {
    return wanted;
  }
  Wanted formatted = read_response_format(*format);
  if (formatted && *formatted && *wanted) {
    return invalid(
        "response_format: asks for a format beside structured_outputs; give one of them");
  }
  return formatted && !*formatted ? wanted : formatted;
}

}  // namespace warprow
