// SPDX-License-Identifier: Apache-2.0
#include "config/speculation.h"

#include <algorithm>
#include <limits>
#include <optional>
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
// A match and its drafts: one token each at least.
constexpr int32_t kMinSuffixDepth = 2;
constexpr int32_t kMaxCachedRequests = 1'000'000;
constexpr double kMaxSpecFactor = 64;
constexpr const char* kMethods = "ngram, suffix, draft_model, eagle, eagle3, mtp";
constexpr const char* kKeys =
    "method, num_speculative_tokens, model, draft_tensor_parallel_size, prompt_lookup_min, "
    "prompt_lookup_max, suffix_decoding_max_tree_depth, suffix_decoding_max_cached_requests, "
    "suffix_decoding_max_spec_factor, suffix_decoding_min_token_prob, rejection_sample_method, "
    "synthetic_acceptance_rate, adaptive";

// What the settings say, before defaults and checks of one value against another.
struct Given {
  std::string method;
  int32_t num_drafts = 0;  // 0: not given, as the next two
  int32_t lookup_min = 0;
  int32_t lookup_max = 0;
  SuffixSettings suffix;
  std::string suffix_key;  // the last one given
  std::string model;
  std::string rejection = "match";
  double acceptance = 0;
  std::optional<bool> adaptive;
  int32_t ranks = 0;  // draft_tensor_parallel_size; 0: not given
};

tl::unexpected<Error> refuse_method(std::string_view what) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("--speculative-config: {}", what));
}

Result<void> read_count(
    const std::string& key, const Json& value, int32_t least, int32_t most, int32_t& to) {
  if (!value.is_number_integer() || value < least || value > most) {
    return refuse_method(
        fmt::format("{}: {} is not a whole number from {} to {}", key, value.dump(), least, most));
  }
  to = value.get<int32_t>();
  return {};
}

Result<void> read_number(const std::string& key, const Json& value, double most, double& to) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (number < 0 || number > most) {
    return refuse_method(
        fmt::format("{}: {} is not a number from 0 to {}", key, value.dump(), most));
  }
  to = number;
  return {};
}

// Keys that begin with suffix_decoding_; nullopt: it is none of them.
std::optional<Result<void>> read_suffix_key(const std::string& key,
                                            const Json& value,
                                            SuffixSettings& suffix) {
  if (key == "suffix_decoding_max_tree_depth") {
    return read_count(key, value, kMinSuffixDepth, kMaxSuffixDepth, suffix.max_tree_depth);
  }
  if (key == "suffix_decoding_max_cached_requests") {
    return read_count(key, value, 0, kMaxCachedRequests, suffix.max_cached_requests);
  }
  if (key == "suffix_decoding_max_spec_factor") {
    return read_number(key, value, kMaxSpecFactor, suffix.max_spec_factor);
  }
  if (key == "suffix_decoding_min_token_prob") {
    return read_number(key, value, 1, suffix.min_token_prob);
  }
  return std::nullopt;
}

// vLLM's older names of mtp, one for each family of models, stand for it.
std::string method_named(const std::string& name) {
  constexpr std::string_view kOlder[] = {"glm4_moe_mtp", "qwen3_next_mtp", "qwen3_5_mtp"};
  return std::ranges::count(kOlder, name) > 0 ? "mtp" : name;
}

Result<void> read_key(const std::string& key, const Json& value, Given& given) {
  if (key == "method") {
    if (!value.is_string()) {
      return refuse_method(fmt::format("method: {} is not a string", value.dump()));
    }
    given.method = method_named(value.get<std::string>());
    return {};
  }
  if (key == "model") {
    if (!value.is_string() || value.get<std::string>().empty()) {
      return refuse_method(fmt::format("model: {} is not the name of a model", value.dump()));
    }
    given.model = value.get<std::string>();
    return {};
  }
  if (key == "draft_tensor_parallel_size") {
    return read_count(key, value, 1, std::numeric_limits<int32_t>::max(), given.ranks);
  }
  if (key == "num_speculative_tokens") {
    return read_count(key, value, 1, kMaxDrafts, given.num_drafts);
  }
  if (key == "prompt_lookup_min") {
    return read_count(key, value, 1, kMaxLookup, given.lookup_min);
  }
  if (key == "prompt_lookup_max") {
    return read_count(key, value, 1, kMaxLookup, given.lookup_max);
  }
  if (key == "rejection_sample_method") {
    if (value != "match" && value != "ratio" && value != "synthetic") {
      return refuse_method(fmt::format(
          "{}: {} is not supported; match, ratio and synthetic are", key, value.dump()));
    }
    given.rejection = value.get<std::string>();
    return {};
  }
  if (key == "synthetic_acceptance_rate") {
    return read_number(key, value, 1, given.acceptance);
  }
  if (key == "adaptive") {
    if (!value.is_boolean()) {
      return refuse_method(fmt::format("adaptive: {} is neither true nor false", value.dump()));
    }
    given.adaptive = value.get<bool>();
    return {};
  }
  if (std::optional<Result<void>> read = read_suffix_key(key, value, given.suffix)) {
    given.suffix_key = key;
    return *read;
  }
  return refuse_method(
      fmt::format("{}: {} is not supported; the keys are {}", key, value.dump(), kKeys));
}

Result<Given> read_json(const std::string& text) {
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return refuse_method(fmt::format("'{}' is not a JSON object", text));
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
      return refuse_method(fmt::format("method is missing; the methods are {}", kMethods));
    }
    given.method = "draft_model";  // as vLLM takes a model without a method
  }
  return given;
}

// Adds what --spec-method and --num-speculative-tokens say.
Result<void> add_flags(const EngineConfig& settings, Given& given) {
  if (!settings.spec_method.empty()) {
    const std::string method = method_named(settings.spec_method);
    if (!given.method.empty() && given.method != method) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--spec-method: '{}' contradicts the method '{}' of "
                              "--speculative-config",
                              settings.spec_method,
                              given.method));
    }
    given.method = method;
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

// The method by its name; kNone: there is none of that name.
Speculation::Method method_of(const std::string& name) {
  using Method = Speculation::Method;
  constexpr std::pair<std::string_view, Method> kNames[] = {{"ngram", Method::kNgram},
                                                            {"suffix", Method::kSuffix},
                                                            {"draft_model", Method::kDraftModel},
                                                            {"eagle", Method::kEagle},
                                                            {"eagle3", Method::kEagle3},
                                                            {"mtp", Method::kMtp}};
  for (const auto& [known, method] : kNames) {
    if (name == known) {
      return method;
    }
  }
  return Method::kNone;
}

Result<Speculation> read_model(const Given& given, Speculation result) {
  if (given.model.empty() && result.has_files()) {
    return refuse_method(fmt::format("model is missing; the method {} needs the name of a {}",
                                     given.method,
                                     result.has_head() ? "head for the model" : "smaller model"));
  }
  if (result.num_drafts > kMaxModelDrafts) {
    return refuse_method(
        fmt::format("num_speculative_tokens: {} is above {}, the most of a draft model",
                    result.num_drafts,
                    kMaxModelDrafts));
  }
  result.model = given.model;
  return result;
}

Result<void> check_ranks(const Given& given, int32_t model_ranks) {
  if (given.ranks <= 1 || given.ranks == model_ranks) {
    return {};
  }
  return refuse_method(fmt::format(
      "draft_tensor_parallel_size: {} is neither 1 nor the --tensor-parallel-size of {}",
      given.ranks,
      model_ranks));
}

// Keys of another method than the given one.
Result<void> check_keys(const Given& given) {
  const auto no_use = [&](const std::string& what) {
    return refuse_method(fmt::format("{} no use with the method {}", what, given.method));
  };
  Speculation method;
  method.method = method_of(given.method);
  if (!method.has_files() && !given.model.empty()) {
    return no_use(fmt::format("model: '{}' has", given.model));
  }
  if (given.method != "ngram" && given.lookup_min + given.lookup_max > 0) {
    return no_use("prompt_lookup_min and prompt_lookup_max have");
  }
  if (given.method != "suffix" && !given.suffix_key.empty()) {
    return no_use(given.suffix_key + " has");
  }
  if ((given.rejection == "synthetic") != (given.acceptance > 0)) {
    return refuse_method(fmt::format(
        "synthetic_acceptance_rate: {} with the rejection_sample_method {}; synthetic needs a rate "
        "above 0, the others none",
        given.acceptance,
        given.rejection));
  }
  return {};
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
  if (method_of(given.method) == Speculation::Method::kNone) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: method '{}' is not supported; the methods are {}",
                            settings.spec_method.empty() ? "--speculative-config" : "--spec-method",
                            given.method,
                            kMethods));
  }
  if (Result<void> checked = check_keys(given); !checked) {
    return tl::unexpected(checked.error());
  }
  if (Result<void> checked = check_ranks(given, settings.tensor_parallel_size); !checked) {
    return tl::unexpected(checked.error());
  }
  Speculation result;
  result.method = method_of(given.method);
  result.divided = given.ranks != 1;
  result.default_drafts = given.num_drafts == 0;
  result.num_drafts = given.num_drafts > 0 ? given.num_drafts : kDefaultDrafts;
  // Other methods have no draft probabilities: each draft has probability 1, where ratio and match are the same.
  result.ratio = given.rejection == "ratio" && result.has_model();
  result.adaptive = given.adaptive.value_or(!result.ratio);
  result.synthetic_acceptance = given.acceptance;
  if (result.has_model()) {
    return read_model(given, std::move(result));
  }
  if (given.method == "suffix") {
    result.suffix = given.suffix;
    if (given.num_drafts == 0) {  // as vLLM: as many as the tree has room for
      result.num_drafts = std::min(given.suffix.max_tree_depth, kMaxDrafts);
    }
    return result;
  }
  const int32_t lookup = given.lookup_max + given.lookup_min > 0 ? 0 : kDefaultLookup;
  // One end that is given alone is the other one too.
  result.prompt_lookup_min =
      given.lookup_min > 0 ? given.lookup_min : std::max(lookup, given.lookup_max);
  result.prompt_lookup_max =
      given.lookup_max > 0 ? given.lookup_max : std::max(lookup, given.lookup_min);
  if (result.prompt_lookup_min > result.prompt_lookup_max) {
    return refuse_method(fmt::format("prompt_lookup_min: {} is above prompt_lookup_max {}",
                                     result.prompt_lookup_min,
                                     result.prompt_lookup_max));
  }
  return result;
}

}  // namespace warprow
