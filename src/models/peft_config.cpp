// SPDX-License-Identifier: Apache-2.0
#include "models/peft_config.h"

#include "files/json_file.h"
#include "files/printable.h"
#include "models/module_pattern.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::json;

constexpr uintmax_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxRank = 1 << 16;
constexpr size_t kMaxPatterns = 10'000;

// Keys that change what an adapter computes, with what they are, where they are set.
struct Refused {
  const char* key;
  const char* what;
};
constexpr Refused kRefused[] = {
    {"use_dora", "DoRA"},
    {"lora_bias", "biases of adapters"},
    {"use_qalora", "QALoRA"},
    {"fan_in_fan_out", "transposed weights"},
    {"modules_to_save", "modules that are saved whole"},
    {"target_parameters", "parameters as targets (experts)"},
    {"trainable_token_indices", "trained tokens"},
    {"layer_replication", "replicated layers"},
    {"alora_invocation_tokens", "activated LoRA"},
    {"arrow_config", "routed adapters"},
};

bool is_set(const Json& value) {
  return !(value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
           (value.is_structured() && value.empty()));
}

std::string shown(const Json& value) {
  constexpr size_t kLongest = 80;
  if (value.is_string()) {
    return printable(value.get_ref<const std::string&>());
  }
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
}

// Reads one file.
class PeftConfigReader {
 public:
  PeftConfigReader(const Json& json, const std::string& path) : json_(json), path_(path) {}

  Result<PeftConfig> read() {
    if (!json_.is_object()) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: not a JSON object", path_));
    }
    check_kind();
    config_.r = static_cast<int32_t>(whole("r", at("r")));
    config_.alpha = number("lora_alpha", at("lora_alpha"));
    if (const Json& rslora = at("use_rslora"); is_set(rslora)) {
      if (!rslora.is_boolean()) {
        refuse(ErrorCode::kCorrupt, "use_rslora", rslora, "must be true or false");
      }
      config_.rslora = true;
    }
    if (const Json& base = at("base_model_name_or_path"); base.is_string()) {
      config_.base_model = base.get<std::string>();
    }
    for_patterns("rank_pattern", [this](const std::string& key, const Json& value) {
      config_.rank_pattern.emplace_back(key, static_cast<int32_t>(whole("rank_pattern", value)));
    });
    for_patterns("alpha_pattern", [this](const std::string& key, const Json& value) {
      config_.alpha_pattern.emplace_back(key, number("alpha_pattern", value));
    });
    if (!error_.message.empty()) {
      return tl::unexpected(error_);
    }
    return config_;
  }

 private:
  const Json& at(const char* key) const {
    static const Json kNone;
    const auto found = json_.find(key);
    return found == json_.end() ? kNone : *found;
  }

  void refuse(ErrorCode code, const char* key, const Json& value, const std::string& why) {
    if (error_.message.empty()) {
      error_ = {code, fmt::format("{}: {}: {} {}", path_, key, shown(value), why)};
    }
  }

  void check_kind() {
    if (const Json& type = at("peft_type"); type != "LORA") {
      refuse(ErrorCode::kUnsupported, "peft_type", type, "is not LORA");
    }
    for (const Refused& refused : kRefused) {
      if (const Json& value = at(refused.key); is_set(value)) {
        refuse(ErrorCode::kUnsupported,
               refused.key,
               value,
               fmt::format("is not supported: {}", refused.what));
      }
    }
    if (const Json& bias = at("bias"); !bias.is_null() && bias != "none") {
      refuse(ErrorCode::kUnsupported, "bias", bias, "is not supported: only none is");
    }
    if (const Json& init = at("init_lora_weights"); init.is_string()) {
      std::string kind = init.get<std::string>();
      std::ranges::transform(kind, kind.begin(), [](unsigned char c) { return std::tolower(c); });
      if (kind.starts_with("pissa") || kind == "olora" || kind == "corda") {
        refuse(ErrorCode::kUnsupported,
               "init_lora_weights",
               init,
               "is not supported: it changes the base model; save it as an adapter of that one");
      }
    }
  }

  int64_t whole(const char* key, const Json& value) {
    if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > kMaxRank) {
      refuse(ErrorCode::kCorrupt,
             key,
             value,
             fmt::format("must be a whole number from 1 to {}", kMaxRank));
      return 1;
    }
    return value.get<int64_t>();
  }

  double number(const char* key, const Json& value) {
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 1e6)) {
      refuse(ErrorCode::kCorrupt, key, value, "must be a number of at most 1000000");
      return 1;
    }
    return value.get<double>();
  }

  template <typename Take>
  void for_patterns(const char* key, const Take& take) {
    const Json& patterns = at(key);
    if (patterns.is_null()) {
      return;
    }
    if (!patterns.is_object() || patterns.size() > kMaxPatterns) {
      refuse(ErrorCode::kCorrupt,
             key,
             patterns,
             fmt::format("must be an object of at most {} keys", kMaxPatterns));
      return;
    }
    for (const auto& [pattern, value] : patterns.items()) {
      take(pattern, value);
    }
  }

  const Json& json_;
  const std::string& path_;
  PeftConfig config_;
  Error error_;
};

// The value of the pattern that matches, or the fallback. PEFT takes the first match in the file. If a later match has
// another value, the file is refused, since that is hardly intended.
template <typename T>
Result<T> find(const char* name,
               const std::vector<std::pair<std::string, T>>& patterns,
               const std::string& module,
               T fallback) {
  const std::pair<std::string, T>* found = nullptr;
  for (const std::pair<std::string, T>& entry : patterns) {
    const auto& [pattern, value] = entry;
    const Result<bool> matches = module_matches(pattern, module);
    if (!matches) {
      return fail(matches.error().code,
                  fmt::format("{}: {}: {}", name, printable(pattern), matches.error().message));
    }
    if (*matches && found != nullptr && found->second != value) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: {} and {} both match {}, with different values",
                              name,
                              printable(found->first),
                              printable(pattern),
                              printable(module)));
    }
    if (*matches && found == nullptr) {
      found = &entry;
    }
  }
  return found == nullptr ? fallback : found->second;
}

}  // namespace

Result<PeftConfig::Module> PeftConfig::of(const std::string& module) const {
  const Result<int32_t> rank = find("rank_pattern", rank_pattern, module, r);
  if (!rank) {
    return tl::unexpected(rank.error());
  }
  const Result<double> scaled = find("alpha_pattern", alpha_pattern, module, alpha);
  if (!scaled) {
    return tl::unexpected(scaled.error());
  }
  const double by = rslora ? std::sqrt(static_cast<double>(*rank)) : static_cast<double>(*rank);
  return Module{*rank, static_cast<float>(*scaled / by)};
}

Result<PeftConfig> read_peft_config(const std::string& dir) {
  const std::string path = dir + "/adapter_config.json";
  std::error_code missing;
  const uintmax_t bytes = std::filesystem::file_size(path, missing);
  if (missing) {
    return fail(ErrorCode::kNotFound, fmt::format("{}: {}", path, missing.message()));
  }
  if (bytes > kMaxConfigBytes) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: {} bytes; at most {} are read", path, bytes, kMaxConfigBytes));
  }
  const Result<Json> json = read_json_file(path);
  if (!json) {
    return tl::unexpected(json.error());
  }
  return PeftConfigReader(*json, path).read();
}

}  // namespace warprow
