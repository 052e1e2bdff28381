// SPDX-License-Identifier: Apache-2.0
#include "models/sentence_modules.h"

#include "files/json_file.h"
#include "files/safetensors.h"
#include "weights/dequantize.h"
#include "weights/tensor_type.h"

#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::json;

// The last part of a Python class's name.
std::string_view last_name(std::string_view dotted) { return dotted.substr(dotted.rfind('.') + 1); }

template <typename T>
T value_of(const Json& object, const char* key, T fallback) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) {
    return fallback;
  }
  if constexpr (std::is_same_v<T, bool>) {
    return at->is_boolean() ? at->get<bool>() : fallback;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return at->is_string() ? at->get<std::string>() : fallback;
  } else {
    return at->is_number_integer() ? at->get<T>() : fallback;
  }
}

Result<Json> read_object(const std::string& path) {
  Result<Json> json = read_json_file(path);
  if (json && !json->is_object()) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: not a JSON object", path));
  }
  return json;
}

struct NamedMethod {
  const char* flag;  // of older files
  const char* mode;  // pooling_mode of newer ones
  PoolingMethod method;
};

constexpr NamedMethod kMethods[] = {
    {"pooling_mode_lasttoken", "lasttoken", PoolingMethod::kLast},
    {"pooling_mode_cls_token", "cls", PoolingMethod::kFirst},
    {"pooling_mode_mean_tokens", "mean", PoolingMethod::kMean},
};
constexpr NamedMethod kOthers[] = {
    {"pooling_mode_max_tokens", "max", PoolingMethod::kLast},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", PoolingMethod::kLast},
    {"pooling_mode_weightedmean_tokens", "weightedmean", PoolingMethod::kLast},
};

// Exactly one method must be set: several mean that their vectors are joined.
Result<void> read_pooling(const std::string& path, Pooler& pooler) {
  const Result<Json> config = read_object(path);
  if (!config) {
    return tl::unexpected(config.error());
  }
  const std::string mode = value_of<std::string>(*config, "pooling_mode", "");
  const auto is_set = [&](const NamedMethod& named) {
    return mode.empty() ? value_of(*config, named.flag, false) : mode == named.mode;
  };
  int num_set = 0;
  for (const NamedMethod& named : kMethods) {
    if (is_set(named)) {
      ++num_set;
      pooler.facts.method = named.method;
    }
  }
  for (const NamedMethod& named : kOthers) {
    if (is_set(named)) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format(
              "{}: pooling {} is not supported (lasttoken, cls and mean are)", path, named.mode));
    }
  }
  if (num_set != 1) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format(
            "{}: {} kinds of pooling of lasttoken, cls and mean; 1 is supported", path, num_set));
  }
  if (!value_of(*config, "include_prompt", true)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: include_prompt false is not supported", path));
  }
  return {};
}

Result<std::vector<float>> read_tensor(const SafetensorsFile& file,
                                       std::string_view name,
                                       size_t count) {
  const SafetensorsTensor* tensor = file.find(name);
  // F32 for a type that we do not know: gcc cannot see that an empty optional is not read.
  const auto known = tensor == nullptr ? std::nullopt : tensor_type_of(tensor->dtype);
  const TensorType type = known.value_or(TensorType::kF32);
  size_t elements = 1;
  for (const int64_t size : tensor == nullptr ? std::vector<int64_t>() : tensor->shape) {
    elements *= static_cast<size_t>(size);
  }
  if (!known || !has_values(type) || elements != count) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}: no tensor {} of {} values", file.name(), name, count));
  }
  std::vector<float> values(count);
  dequantize_row(
      type, file.tensor_bytes(*tensor).data(), values.data(), static_cast<int64_t>(count));
  return values;
}

constexpr int32_t kMostDenseSize = 1 << 16;

Result<void> read_dense(const std::string& folder, Pooler& pooler) {
  const Result<Json> config = read_object(folder + "/config.json");
  if (!config) {
    return tl::unexpected(config.error());
  }
  PoolerLayer layer;
  layer.num_inputs = value_of<int32_t>(*config, "in_features", 0);
  layer.num_outputs = value_of<int32_t>(*config, "out_features", 0);
  if (layer.num_inputs != pooler.facts.width || layer.num_outputs < 1 ||
      layer.num_outputs > kMostDenseSize) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{}/config.json: a layer of {} inputs and {} outputs behind {} values",
                            folder,
                            layer.num_inputs,
                            layer.num_outputs,
                            pooler.facts.width));
  }
  const std::string activation =
      value_of<std::string>(*config, "activation_function", "torch.nn.modules.activation.Tanh");
  if (last_name(activation) == "Tanh") {
    layer.activation = PoolerLayer::Activation::kTanh;
  } else if (last_name(activation) != "Identity") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}/config.json: activation_function {} is not supported (Identity and "
                            "Tanh are)",
                            folder,
                            activation));
  }
  const Result<SafetensorsFile> file = SafetensorsFile::open(folder + "/model.safetensors");
  if (!file) {
    return tl::unexpected(file.error());
  }
  const auto outputs = static_cast<size_t>(layer.num_outputs);
  Result<std::vector<float>> weight =
      read_tensor(*file, "linear.weight", outputs * static_cast<size_t>(layer.num_inputs));
  Result<std::vector<float>> bias = value_of(*config, "bias", true)
                                        ? read_tensor(*file, "linear.bias", outputs)
                                        : Result<std::vector<float>>();
  if (!weight || !bias) {
    return tl::unexpected(!weight ? weight.error() : bias.error());
  }
  layer.weight = *std::move(weight);
  layer.bias = *std::move(bias);
  pooler.facts.width = layer.num_outputs;
  pooler.layers.push_back(std::move(layer));
  return {};
}

// The score of a reranker that answers with a token.
Result<void> read_logit_score(const std::string& path, Pooler& pooler) {
  const Result<Json> config = read_object(path);
  if (!config) {
    return tl::unexpected(config.error());
  }
  const auto yes = value_of<int64_t>(*config, "true_token_id", -1);
  const auto no = value_of<int64_t>(*config, "false_token_id", -1);
  if (yes < 0) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: no true_token_id", path));
  }
  pooler.judge = JudgeTokens{yes, no < 0 ? std::nullopt : std::optional(no)};
  return {};
}

// `path` is a folder's name inside the directory.
bool is_inside(const std::string& path) {
  return !path.starts_with('/') && path.find("..") == std::string::npos;
}

}  // namespace

Result<bool> read_sentence_modules(const std::string& dir, Pooler& pooler) {
  const std::string file = dir + "/modules.json";
  if (!std::filesystem::exists(file)) {
    return false;
  }
  const Result<Json> modules = read_json_file(file);
  if (!modules) {
    return tl::unexpected(modules.error());
  }
  if (!modules->is_array()) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: not a list of modules", file));
  }
  bool has_pooling = false;
  pooler.facts.normalize = false;
  for (const Json& module : *modules) {
    const bool is_module = module.is_object();
    const std::string type = is_module ? value_of<std::string>(module, "type", "") : "";
    const std::string path = is_module ? value_of<std::string>(module, "path", "") : "";
    const std::string_view kind = last_name(type);
    const std::string folder = fmt::format("{}/{}", dir, path);
    if (!is_inside(path)) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: path {} leaves the model", file, path));
    }
    Result<void> read;
    if (kind == "Pooling") {
      has_pooling = true;
      read = read_pooling(folder + "/config.json", pooler);
    } else if (kind == "Dense") {
      read = read_dense(folder, pooler);
    } else if (kind == "LogitScore") {
      has_pooling = true;
      read = read_logit_score(folder + "/config.json", pooler);
    } else if (kind == "Normalize") {
      pooler.facts.normalize = true;
    } else if (kind != "Transformer") {
      read = fail(ErrorCode::kUnsupported,
                  fmt::format("{}: a module of type '{}' is not supported (Transformer, Pooling, "
                              "Dense, Normalize and LogitScore are)",
                              file,
                              type));
    }
    if (!read) {
      return tl::unexpected(read.error());
    }
  }
  return has_pooling;
}

Result<std::optional<int32_t>> read_max_seq_length(const std::string& dir) {
  const std::string path = dir + "/sentence_bert_config.json";
  if (dir.empty() || !std::filesystem::exists(path)) {
    return std::optional<int32_t>();
  }
  const Result<Json> config = read_object(path);
  if (!config) {
    return tl::unexpected(config.error());
  }
  const auto length = value_of<int32_t>(*config, "max_seq_length", 0);
  return length > 1 ? std::optional(length) : std::nullopt;
}

}  // namespace warprow
