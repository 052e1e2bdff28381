// SPDX-License-Identifier: Apache-2.0
#include "config/speculation.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kDefaultDrafts = 4;
constexpr int32_t kDefaultLookup = 5;  // vLLM's, for both ends of the range
constexpr int32_t kMaxLookup = 32;
constexpr const char* kMethods = "ngram, draft_model";
constexpr const char* kKeys =
    "method, num_speculative_tokens, model, draft_tensor_parallel_size, prompt_lookup_min, "
    "prompt_lookup_max, adaptive";

// What the settings say, before defaults and checks of one value against another.
struct Given {
  std::string method;
  int32_t num_drafts = 0;  // 0: not given, as the next two
  int32_t lookup_min = 0;
  int32_t lookup_max = 0;
  std::string model;
  bool adaptive = true;
};

tl::unexpected<Error> refuse(std::string_view what) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("--speculative-config: {}", what));
}

Result<void> read_count(const std::string& key, const Json& value, int32_t most, int32_t& to) {
  if (!value.is_number_integer() || value < 1 || value > most) {
    return refuse(
        fmt::format("{}: {} is not a whole number from 1 to {}", key, value.dump(), most));
  }
  to = value.get<int32_t>();
  return {};
}

Result<void> read_key(const std::string& key, const Json& value, Given& given) {
  if (key == "method") {
    if (!value.is_string()) {
      return refuse(fmt::format("method: {} is not a string", value.dump()));
    }
    given.method = value.get<std::string>();
    return {};
  }
  if (key == "model") {
    if (!value.is_string() || value.get<std::string>().empty()) {
      return refuse(fmt::format("model: {} is not the name of a model", value.dump()));
    }
    given.model = value.get<std::string>();
    return {};
  }
  if (key == "draft_tensor_parallel_size") {
    return value == 1 ? Result<void>()
                      : refuse(fmt::format("draft_tensor_parallel_size: {} is not supported; a "
                                           "draft model runs on 1 rank",
                                           value.dump()));
  }
  if (key == "num_speculative_tokens") {
    return read_count(key, value, kMaxDrafts, given.num_drafts);
  }
  if (key == "prompt_lookup_min") {
    return read_count(key, value, kMaxLookup, given.lookup_min);
  }
  if (key == "prompt_lookup_max") {
    return read_count(key, value, kMaxLookup, given.lookup_max);
  }
  if (key == "adaptive") {
    if (!value.is_boolean()) {
      return refuse(fmt::format("adaptive: {} is neither true nor false", value.dump()));
    }
    given.adaptive = value.get<bool>();
    return {};
  }
  return refuse(fmt::format("{}: {} is not supported; the keys are {}", key, value.dump(), kKeys));
}

Result<Given> read_json(const std::string& text) {
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return refuse(fmt::format("'{}' is not a JSON object", text));
  }
  Given given;
  for (const auto& [key, value] : root.items()) {
    if (value.is_null()) {
      continue;
    }
    if (Result<void> read = read_key(key, value, given); !read) {
      return tl::unexpected(read.error());
    }
  }
  if (given.method.empty()) {
    if (given.model.empty()) {
      return refuse(fmt::format("method is missing; the methods are {}", kMethods));
    }
    given.method = "draft_model";  // as vLLM takes a model without a method
  }
  return given;
}

// Adds what --spec-method and --num-speculative-tokens say.
Result<void> add_flags(const EngineConfig& settings, Given& given) {
  if (!settings.spec_method.empty()) {
    if (!given.method.empty() && given.method != settings.spec_method) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--spec-method: '{}' contradicts the method '{}' of "
                              "--speculative-config",
                              settings.spec_method,
                              given.method));
    }
    given.method = settings.spec_method;
  }
  if (settings.num_speculative_tokens > 0) {
    if (given.method.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--num-speculative-tokens: {} needs --spec-method or "
                              "--speculative-config",
                              settings.num_speculative_tokens));
    }
    if (given.num_drafts > 0 && given.num_drafts != settings.num_speculative_tokens) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--num-speculative-tokens: {} contradicts the {} of "
                              "--speculative-config",
                              settings.num_speculative_tokens,
                              given.num_drafts));
    }
    given.num_drafts = settings.num_speculative_tokens;
  }
  return {};
}

Result<Speculation> read_draft_model(const Given& given, Speculation result) {
  if (given.model.empty()) {
    return refuse("model is missing; the method draft_model needs the name of a smaller model");
  }
  if (given.lookup_min + given.lookup_max > 0) {
    return refuse(
        "prompt_lookup_min and prompt_lookup_max have no use with the method draft_model");
  }
  if (result.num_drafts > kMaxModelDrafts) {
    return refuse(fmt::format("num_speculative_tokens: {} is above {}, the most of a draft model",
                              result.num_drafts,
                              kMaxModelDrafts));
  }
  result.method = Speculation::Method::kDraftModel;
  result.model = given.model;
  return result;
}

}  // namespace

Result<Speculation> read_speculation(const EngineConfig& settings) {
  Given given;
  if (!settings.speculative_config.empty()) {
    Result<Given> read = read_json(settings.speculative_config);
    if (!read) {
      return tl::unexpected(read.error());
    }
    given = *std::move(read);
  }
  if (Result<void> added = add_flags(settings, given); !added) {
    return tl::unexpected(added.error());
  }
  if (given.method.empty()) {
    return Speculation();
  }
  if (given.method != "ngram" && given.method != "draft_model") {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: method '{}' is not supported; the methods are {}",
                            settings.spec_method.empty() ? "--speculative-config" : "--spec-method",
                            given.method,
                            kMethods));
  }
  Speculation result;
  result.num_drafts = given.num_drafts > 0 ? given.num_drafts : kDefaultDrafts;
  result.adaptive = given.adaptive;
  if (given.method == "draft_model") {
    return read_draft_model(given, std::move(result));
  }
  if (!given.model.empty()) {
    return refuse(fmt::format("model: '{}' has no use with the method ngram", given.model));
  }
  result.method = Speculation::Method::kNgram;
  const int32_t lookup = given.lookup_max + given.lookup_min > 0 ? 0 : kDefaultLookup;
  // One end that is given alone is the other one too.
  result.prompt_lookup_min =
      given.lookup_min > 0 ? given.lookup_min : std::max(lookup, given.lookup_max);
  result.prompt_lookup_max =
      given.lookup_max > 0 ? given.lookup_max : std::max(lookup, given.lookup_min);
  if (result.prompt_lookup_min > result.prompt_lookup_max) {
    return refuse(fmt::format("prompt_lookup_min: {} is above prompt_lookup_max {}",
                              result.prompt_lookup_min,
                              result.prompt_lookup_max));
  }
  return result;
}

}  // namespace warprow
