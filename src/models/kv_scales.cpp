// SPDX-License-Identifier: Apache-2.0
#include "models/kv_scales.h"

#include "base/dtype.h"
#include "files/printable.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;

tl::unexpected<Error> refuse(const std::string& what) {
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("config.json: quantization_config: {}; an 8-bit KV cache takes scales of 8-bit "
                  "floats for a tensor or a head (--kv-cache-dtype auto takes none)",
                  what));
}

bool is_word(const json& object, const char* key, std::initializer_list<const char*> words) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) {
    return true;
  }
  for (const char* word : words) {
    if (at->is_string() && at->get_ref<const std::string&>() == word) {
      return true;
    }
  }
  return false;
}

bool is_flag(const json& object, const char* key, bool value) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() || (at->is_boolean() && at->get<bool>() == value);
}

// compressed-tensors has a kv_cache_scheme, ModelOpt one of the two.
Result<void> check_scheme(const json& config) {
  const auto quantisation = config.find("quantization_config");
  if (quantisation == config.end() || !quantisation->is_object()) {
    return {};
  }
  const auto scheme = quantisation->find("kv_cache_scheme");
  if (scheme != quantisation->end() && !scheme->is_null()) {
    const bool known = scheme->is_object() && scheme->contains("num_bits") &&
                       (*scheme)["num_bits"] == 8 && is_word(*scheme, "type", {"float"}) &&
                       is_word(*scheme, "strategy", {"tensor", "attn_head"}) &&
                       is_flag(*scheme, "symmetric", true) && is_flag(*scheme, "dynamic", false);
    if (!known) {
      return refuse(fmt::format("kv_cache_scheme is {}", printable(scheme->dump())));
    }
  }
  if (!is_word(*quantisation, "kv_cache_quant_algo", {"FP8"})) {
    return refuse(fmt::format("kv_cache_quant_algo is {}",
                              printable((*quantisation)["kv_cache_quant_algo"].dump())));
  }
  return {};
}

Result<float> element_of(const TensorSource& tensor, size_t index) {
  uint16_t half = 0;
  float value = 0.0F;
  switch (tensor.type) {
    case TensorType::kF32:
      std::memcpy(&value, tensor.data + index * sizeof(value), sizeof(value));
      return value;
    case TensorType::kF16:
    case TensorType::kBF16:
      std::memcpy(&half, tensor.data + index * sizeof(half), sizeof(half));
      return tensor.type == TensorType::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
    default:
      return fail(ErrorCode::kUnsupported,
                  fmt::format("tensor {}: scales of the KV cache are float32, float16 or bfloat16",
                              tensor.name));
  }
}

Result<std::vector<float>> scales_of(const TensorSource& tensor, int32_t num_heads) {
  const int64_t count = tensor.rows * tensor.cols;
  if (count != 1 && count != num_heads) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("tensor {} has the shape [{}]; a scale of the KV cache has one element, "
                    "or one for each of {} KV heads",
                    tensor.name,
                    fmt::join(tensor.shape, ", "),
                    num_heads));
  }
  std::vector<float> scales;
  for (int32_t head = 0; head < num_heads; ++head) {
    const Result<float> scale = element_of(tensor, count == 1 ? 0 : static_cast<size_t>(head));
    if (!scale) {
      return tl::unexpected(scale.error());
    }
    if (!std::isnormal(*scale) || *scale < 0.0F) {
      return fail(
          ErrorCode::kCorrupt,
          fmt::format("tensor {}: the scale {} of KV head {} is not a positive finite number",
                      tensor.name,
                      *scale,
                      head));
    }
    scales.push_back(*scale);
  }
  return scales;
}

// The attention module of a layer, from the name of one of its projections' weights.
std::string module_of(const DecoderWeightNames& names, int32_t layer) {
  const std::string& weight = names.k.empty() ? names.qkv : names.k;
  std::string module = fmt::format(fmt::runtime(weight), layer);
  for (int i = 0; i < 2; ++i) {
    module.resize(std::min(module.size(), module.rfind('.')));
  }
  return module;
}

const TensorSource* find_first(const Checkpoint& checkpoint,
                               const std::string& module,
                               std::initializer_list<std::string> names) {
  for (const std::string& name : names) {
    if (const TensorSource* tensor = checkpoint.find(module + name)) {
      return tensor;
    }
  }
  return nullptr;
}

const TensorSource* find_scale(const Checkpoint& checkpoint,
                               const std::string& module,
                               const std::string& kind) {
  return find_first(checkpoint,
                    module,
                    {"." + kind + "_scale",
                     ".attn." + kind + "_scale",
                     "." + kind + "_proj." + kind + "_scale",
                     ".qkv_proj." + kind + "_scale",
                     "." + kind + "_proj.output_scale",
                     ".kv_scale",
                     ".attn.kv_scale"});
}

}  // namespace

Result<std::vector<LayerKvScales>> read_kv_scales(const Checkpoint& checkpoint,
                                                  const DecoderSpec& spec) {
  if (const json* config = checkpoint.config_json()) {
    if (Result<void> checked = check_scheme(*config); !checked) {
      return tl::unexpected(checked.error());
    }
  }
  std::vector<LayerKvScales> all(spec.layers.size());
  for (size_t l = 0; l < all.size(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (layer.has_state() || !layer.attention.has_own_kv()) {
      continue;
    }
    const std::string module = module_of(spec.names, static_cast<int32_t>(l));
    const TensorSource* of_keys = find_scale(checkpoint, module, "k");
    const TensorSource* of_values = find_scale(checkpoint, module, "v");
    of_keys = of_keys == nullptr ? of_values : of_keys;
    of_values = of_values == nullptr ? of_keys : of_values;
    const int32_t num_heads = layer.attention.num_kv_heads;
    if (of_keys == nullptr) {
      all[l].keys.assign(static_cast<size_t>(num_heads), 1.0F);
      all[l].values = all[l].keys;
      continue;
    }
    Result<std::vector<float>> keys = scales_of(*of_keys, num_heads);
    Result<std::vector<float>> values = scales_of(*of_values, num_heads);
    if (!keys || !values) {
      return tl::unexpected(keys ? values.error() : keys.error());
    }
    all[l] = {*std::move(keys), *std::move(values), true};
  }
  return all;
}

}  // namespace warprow
