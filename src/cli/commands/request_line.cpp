// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/request_line.h"

#include "cli/flags/sampling_fields.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using PlainJson = nlohmann::json;

tl::unexpected<Error> invalid(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

// A short rendering of a wrong value for a message.
std::string shown(const PlainJson& value) {
  std::string text = value.dump(-1, ' ', true, PlainJson::error_handler_t::replace);
  return text.size() > 40 ? text.substr(0, 37) + "..." : text;
}

std::optional<int64_t> as_int(const PlainJson& value) {
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return std::nullopt;
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  constexpr double kExact =
      9007199254740992.0;  // 2^53: larger doubles do not represent every integer exactly
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::abs(number) <= kExact && std::trunc(number) == number) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

// Each assign() returns what the value should have been, or nullptr.
const char* assign(const PlainJson& value, std::optional<double>& target) {
  if (!value.is_number()) {
    return "a number";
  }
  target = value.get<double>();
  return nullptr;
}
const char* assign(const PlainJson& value, std::optional<int64_t>& target) {
  target = as_int(value);
  return target ? nullptr : "a whole number";
}
const char* assign(const PlainJson& value, bool& target) {
  if (!value.is_boolean()) {
    return "true or false";
  }
  target = value.get<bool>();
  return nullptr;
}
const char* assign(const PlainJson& value, std::vector<std::string>& target) {
  constexpr const char* kWanted = "text or a list of texts";
  target.clear();
  if (value.is_string()) {
    target.push_back(value.get<std::string>());
    return nullptr;
  }
  if (!value.is_array()) {
    return kWanted;
  }
  for (const PlainJson& entry : value) {
    if (!entry.is_string()) {
      return kWanted;
    }
    target.push_back(entry.get<std::string>());
  }
  return nullptr;
}
template <typename Int>
const char* assign_ints(const PlainJson& value, std::vector<Int>& target) {
  constexpr const char* kWanted = "a list of token ids";
  target.clear();
  if (!value.is_array()) {
    return kWanted;
  }
  for (const PlainJson& entry : value) {
    const std::optional<int64_t> id = as_int(entry);
    if (!id || *id < std::numeric_limits<Int>::min() || *id > std::numeric_limits<Int>::max()) {
      return kWanted;
    }
    target.push_back(static_cast<Int>(*id));
  }
  return nullptr;
}
const char* assign(const PlainJson& value, std::vector<int64_t>& target) {
  return assign_ints(value, target);
}
const char* assign(const PlainJson& value, std::optional<std::vector<int64_t>>& target) {
  return assign_ints(value, target.emplace());
}
// Keys are texts in JSON, so parse the token ids.
const char* assign(const PlainJson& value, std::map<int64_t, double>& target) {
  constexpr const char* kWanted = "an object of token ids and numbers";
  target.clear();
  if (!value.is_object()) {
    return kWanted;
  }
  for (const auto& [key, bias] : value.items()) {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || !bias.is_number()) {
      return kWanted;
    }
    target[id] = bias.get<double>();
  }
  return nullptr;
}

Result<void> read_prompt(const PlainJson& value, GenerationRequest& request) {
  if (value.is_string()) {
    request.prompt = value.get<std::string>();
    return {};
  }
  std::vector<TokenId> ids;
  if (assign_ints(value, ids) != nullptr) {
    return invalid(
        fmt::format("prompt: must be text or a list of token ids, not {}", shown(value)));
  }
  request.prompt = std::move(ids);
  return {};
}

// A message's content is text, or the OpenAI list of {"type":"text","text":…} parts, which are
// joined by line ends.
std::optional<std::string> message_content(const PlainJson& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (!value.is_array()) {
    return std::nullopt;
  }
  std::string joined;
  for (const PlainJson& part : value) {
    const bool is_text = part.is_object() && part.value("type", PlainJson()) == "text" &&
                         part.value("text", PlainJson()).is_string();
    if (!is_text) {
      return std::nullopt;
    }
    joined += (joined.empty() ? "" : "\n") + part["text"].get<std::string>();
  }
  return joined;
}

Result<void> read_messages(const PlainJson& value, GenerationRequest& request) {
  if (!value.is_array() || value.empty()) {
    return invalid("messages: must be a list of one message or more");
  }
  std::vector<ChatMessage> messages;
  for (const PlainJson& entry : value) {
    const std::string where = fmt::format("messages[{}]", messages.size());
    if (!entry.is_object()) {
      return invalid(where + ": must be an object with role and content");
    }
    for (const auto& [key, unused] : entry.items()) {
      if (key != "role" && key != "content") {
        return invalid(fmt::format("{}: unknown field '{}'", where, key));
      }
    }
    const PlainJson role = entry.value("role", PlainJson());
    if (!role.is_string()) {
      return invalid(where + ".role: must be text, for instance user");
    }
    std::optional<std::string> content = message_content(entry.value("content", PlainJson()));
    if (!content) {
      return invalid(where + ".content: must be text or a list of text parts");
    }
    messages.push_back({role.get<std::string>(), std::move(*content)});
  }
  request.prompt = std::move(messages);
  return {};
}

Result<void> read_sampling(const SamplingField& field,
                           const PlainJson& value,
                           SamplingOptions& options) {
  const char* wanted =
      std::visit([&](auto member) { return assign(value, options.*member); }, field.member);
  if (wanted != nullptr) {
    return invalid(fmt::format("{}: must be {}, not {}", field.name, wanted, shown(value)));
  }
  return {};
}

// These two fields are read together, from the line's text.
bool is_structure(const std::string& key) {
  return key == "structured_outputs" || key == "response_format";
}

bool is_known(const std::string& key) {
  return key == "prompt" || key == "messages" || key == "priority" || key == "cache_salt" ||
         key == "hidden_states" || is_structure(key) || find_sampling_field(key) != nullptr;
}

Result<void> read_field(const std::string& key,
                        const PlainJson& value,
                        GenerationRequest& request) {
  if (key == "prompt") {
    return read_prompt(value, request);
  }
  if (key == "messages") {
    return read_messages(value, request);
  }
  if (key == "priority") {
    const std::optional<int64_t> priority = as_int(value);
    if (!priority || *priority < INT32_MIN || *priority > INT32_MAX) {
      return invalid(
          fmt::format("priority: must be a whole number of 32 bits, not {}", shown(value)));
    }
    request.priority = static_cast<int32_t>(*priority);
    return {};
  }
  if (key == "cache_salt") {
    if (!value.is_string()) {
      return invalid(fmt::format("cache_salt: must be text, not {}", shown(value)));
    }
    request.cache_salt = value.get<std::string>();
    return {};
  }
  if (key == "hidden_states") {
    if (value != "outputs" && value != "all") {
      return invalid(fmt::format("hidden_states: must be outputs or all, not {}", shown(value)));
    }
    request.hidden_states =
        value == "all" ? HiddenStatesOption::kAll : HiddenStatesOption::kOutputs;
    return {};
  }
  const SamplingField* field = find_sampling_field(key);
  if (field == nullptr) {
    return invalid(fmt::format("unknown field '{}'", key));
  }
  return read_sampling(*field, value, request.sampling);
}

}  // namespace

Result<GenerationRequest> parse_request_line(std::string_view line,
                                             const SamplingOptions& defaults) {
  const PlainJson root = PlainJson::parse(line, nullptr, false);
  if (root.is_discarded()) {
    return invalid("not a JSON object");
  }
  if (!root.is_object()) {
    return invalid(fmt::format("must be a JSON object, not {}", shown(root)));
  }
  GenerationRequest request;
  request.sampling = defaults;
  int num_prompts = 0;
  bool has_structure = false;
  for (const auto& [key, value] : root.items()) {
    if (value.is_null() && is_known(key)) {
      continue;
    }
    if (is_structure(key)) {
      has_structure = true;
      continue;
    }
    if (Result<void> done = read_field(key, value, request); !done) {
      return tl::unexpected(done.error());
    }
    num_prompts += key == "prompt" || key == "messages" ? 1 : 0;
  }
  if (has_structure) {
    Result<std::optional<StructuredOutput>> wanted = read_structured_output(line);
    if (!wanted) {
      return tl::unexpected(wanted.error());
    }
    request.sampling.structured_output = *std::move(wanted);
  }
  if (num_prompts != 1) {
    return invalid(num_prompts == 0 ? "needs prompt or messages"
                                    : "has both prompt and messages, needs one of them");
  }
  return request;
}

}  // namespace warprow
