// SPDX-License-Identifier: Apache-2.0
#include "models/metadata.h"

#include "models/weight_names.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

// A value of config.json: Hugging Face treats null as absent.
const nlohmann::json* find_json(const nlohmann::json& json, const char* key) {
  if (*key == '\0') {
    return nullptr;
  }
  const auto at = json.find(key);
  return at == json.end() || at->is_null() ? nullptr : &*at;
}

tl::unexpected<Error> bad_field(const char* key, const std::string& value, const char* wanted) {
  return fail(ErrorCode::kCorrupt,
              fmt::format("model config: {} is {}, expected {}", key, value, wanted));
}

Result<int32_t> as_count(const char* key, int64_t value) {
  if (value < 1 || value > std::numeric_limits<int32_t>::max() / 4) {
    return bad_field(key, std::to_string(value), "a positive number below 2^29");
  }
  return static_cast<int32_t>(value);
}

}  // namespace

Result<ModelMetadata> ModelMetadata::open(const Checkpoint& checkpoint) {
  ModelMetadata metadata;
  metadata.checkpoint_ = &checkpoint;
  metadata.gguf_ = checkpoint.gguf();
  metadata.json_ = checkpoint.config_json();
  if (metadata.gguf_ != nullptr) {
    auto name = metadata.gguf_->require<std::string_view>("general.architecture");
    if (!name) {
      return tl::unexpected(name.error());
    }
    metadata.architecture_ = std::string(*name);
    return metadata;
  }
  const nlohmann::json* list = find_json(*metadata.json_, "architectures");
  if (list == nullptr || !list->is_array() || list->empty() || !list->front().is_string()) {
    return fail(ErrorCode::kCorrupt, "config.json: architectures does not name a model class");
  }
  metadata.architecture_ = list->front().get<std::string>();
  if (checkpoint.find("embed_tokens.weight") != nullptr) {  // saved without a head
    metadata.weight_prefix_ = "";
  }
  return metadata;
}

ModelMetadata::ModelMetadata() = default;
ModelMetadata::ModelMetadata(ModelMetadata&&) noexcept = default;
ModelMetadata& ModelMetadata::operator=(ModelMetadata&&) noexcept = default;
ModelMetadata::~ModelMetadata() = default;

Result<void> ModelMetadata::enter_config(const char* key, const char* defaults) {
  const nlohmann::json* own = is_gguf() ? nullptr : find_json(*json_, key);
  if (own == nullptr || !own->is_object()) {
    return fail(ErrorCode::kCorrupt, fmt::format("config.json: {} is missing", key));
  }
  auto inner = std::make_unique<nlohmann::json>(nlohmann::json::parse(defaults));
  inner->update(*own);
  text_ = std::move(inner);
  json_ = text_.get();
  return {};
}

Result<void> ModelMetadata::enter_text_config(const char* defaults) {
  if (auto entered = enter_config("text_config", defaults); !entered) {
    return entered;
  }
  for (const char* prefix : {"language_model.model.", "model.language_model."}) {
    if (checkpoint_->find(std::string(prefix) + "embed_tokens.weight") != nullptr) {
      weight_prefix_ = prefix;
    }
  }
  return {};
}

std::string ModelMetadata::gguf_name(const char* key) const { return architecture_ + "." + key; }

Result<int32_t> ModelMetadata::require_count(const char* json_key, const char* gguf_key) const {
  if (is_gguf()) {
    const std::string name = gguf_name(gguf_key);
    auto value = gguf_->require<int64_t>(name);
    if (!value) {
      return tl::unexpected(value.error());
    }
    return as_count(name.c_str(), *value);
  }
  const nlohmann::json* value = find_json(*json_, json_key);
  if (value == nullptr) {
    return fail(ErrorCode::kCorrupt, fmt::format("config.json: {} is missing", json_key));
  }
  if (!value->is_number_integer()) {
    return bad_field(json_key, value->dump(), "a number");
  }
  return as_count(json_key, value->get<int64_t>());
}

Result<int32_t> ModelMetadata::count_or(const char* json_key,
                                        const char* gguf_key,
                                        int32_t fallback) const {
  const bool there = is_gguf() ? *gguf_key != '\0' && gguf_->has(gguf_name(gguf_key))
                               : find_json(*json_, json_key) != nullptr;
  return there ? require_count(json_key, gguf_key) : Result<int32_t>(fallback);
}

Result<int32_t> ModelMetadata::number_or(const char* json_key,
                                         const char* gguf_key,
                                         int32_t fallback) const {
  const std::string key = is_gguf() ? gguf_name(gguf_key) : json_key;
  int64_t value = fallback;
  if (is_gguf()) {
    auto there =
        *gguf_key == '\0' ? Result<int64_t>(fallback) : gguf_->get_or<int64_t>(key, fallback);
    if (!there) {
      return tl::unexpected(there.error());
    }
    value = *there;
  } else if (const nlohmann::json* there = find_json(*json_, json_key); there != nullptr) {
    if (!there->is_number_integer()) {
      return bad_field(json_key, there->dump(), "a number");
    }
    value = there->get<int64_t>();
  }
  if (value < 0 || value > std::numeric_limits<int32_t>::max() / 4) {
    return bad_field(key.c_str(), std::to_string(value), "a number from 0 on, below 2^29");
  }
  return static_cast<int32_t>(value);
}

Result<float> ModelMetadata::float_or(const char* json_key,
                                      const char* gguf_key,
                                      float fallback) const {
  if (is_gguf()) {
    return *gguf_key == '\0' ? Result<float>(fallback)
                             : gguf_->get_or<float>(gguf_name(gguf_key), fallback);
  }
  const nlohmann::json* value = find_json(*json_, json_key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_number()) {
    return bad_field(json_key, value->dump(), "a number");
  }
  return value->get<float>();
}

Result<bool> ModelMetadata::bool_or(const char* json_key, bool fallback) const {
  const nlohmann::json* value = is_gguf() ? nullptr : find_json(*json_, json_key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    return bad_field(json_key, value->dump(), "true or false");
  }
  return value->get<bool>();
}

Result<bool> ModelMetadata::flag_or(const char* json_key,
                                    const char* gguf_key,
                                    bool fallback) const {
  return is_gguf() && *gguf_key != '\0' ? gguf_->get_or<bool>(gguf_name(gguf_key), fallback)
                                        : bool_or(json_key, fallback);
}

Result<std::string> ModelMetadata::string_or(const char* json_key,
                                             const char* gguf_key,
                                             std::string fallback) const {
  if (is_gguf()) {
    auto value =
        *gguf_key == '\0' ? std::nullopt : gguf_->get<std::string_view>(gguf_name(gguf_key));
    return value ? std::string(*value) : std::move(fallback);
  }
  const nlohmann::json* value = find_json(*json_, json_key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_string()) {
    return bad_field(json_key, value->dump(), "a string");
  }
  return value->get<std::string>();
}

bool ModelMetadata::has_json(const char* key) const {
  return !is_gguf() && find_json(*json_, key) != nullptr;
}

bool ModelMetadata::names_json(const char* key) const { return !is_gguf() && json_->contains(key); }

Result<std::vector<std::string>> ModelMetadata::layer_types() const {
  std::vector<std::string> types;
  const nlohmann::json* list = is_gguf() ? nullptr : find_json(*json_, "layer_types");
  if (list == nullptr) {
    return types;
  }
  for (const nlohmann::json& type : *list) {
    if (!type.is_string()) {
      return bad_field("layer_types", list->dump(), "a list of strings");
    }
    types.push_back(type.get<std::string>());
  }
  return types;
}

Result<std::vector<int32_t>> ModelMetadata::indices(const char* json_key) const {
  std::vector<int32_t> indices;
  const nlohmann::json* list = is_gguf() ? nullptr : find_json(*json_, json_key);
  if (list == nullptr) {
    return indices;
  }
  for (const nlohmann::json& index : *list) {
    if (!list->is_array() || !index.is_number_unsigned() ||
        index.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
      return bad_field(json_key, list->dump(), "a list of numbers from 0 on");
    }
    indices.push_back(index.get<int32_t>());
  }
  return indices;
}

Result<int32_t> ModelMetadata::layer_count_or(int32_t layer,
                                              const char* key,
                                              int32_t fallback) const {
  const nlohmann::json* all = is_gguf() ? nullptr : find_json(*json_, "per_layer_config");
  if (all == nullptr) {
    return fallback;
  }
  if (!all->is_object()) {
    return bad_field("per_layer_config", all->dump(), "an object");
  }
  const nlohmann::json* own = find_json(*all, std::to_string(layer).c_str());
  const nlohmann::json* value =
      own == nullptr || !own->is_object() ? nullptr : find_json(*own, key);
  if (value == nullptr) {
    return fallback;
  }
  return value->is_number_integer() ? as_count(key, value->get<int64_t>())
                                    : bad_field(key, value->dump(), "a number");
}

Result<void> ModelMetadata::check_layer_keys(std::initializer_list<std::string_view> known) const {
  const nlohmann::json* all = is_gguf() ? nullptr : find_json(*json_, "per_layer_config");
  if (all == nullptr) {
    return {};
  }
  for (const auto& [layer, fields] : all->items()) {
    const bool is_index =
        !layer.empty() && std::ranges::all_of(layer, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_index || !fields.is_object()) {
      return bad_field("per_layer_config", all->dump(), "an object for each number of a layer");
    }
    for (const auto& [key, value] : fields.items()) {
      if (std::ranges::find(known, std::string_view(key)) == known.end()) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("per_layer_config: {} is not supported", key));
      }
    }
  }
  return {};
}

Result<RopeContext> ModelMetadata::rope_context(int32_t head_dim) const {
  auto max_position = require_count("max_position_embeddings", "context_length");
  auto original = count_or("original_max_position_embeddings", "", 0);
  if (!max_position || !original) {
    return tl::unexpected(!max_position ? max_position.error() : original.error());
  }
  return RopeContext{head_dim, *max_position, *original};
}

// Hugging Face: rope_theta and rope_scaling at the top, or both inside rope_parameters (transformers 5).
Result<RopeSpec> ModelMetadata::json_rope(RopeSpec rope, int32_t head_dim) const {
  auto theta = float_or("rope_theta", "", rope.theta);
  auto context = rope_context(head_dim);
  if (!theta || !context) {
    return tl::unexpected(!theta ? theta.error() : context.error());
  }
  rope.theta = *theta;
  const nlohmann::json* scaling = find_json(*json_, "rope_scaling");
  if (scaling == nullptr || scaling->empty()) {
    scaling = find_json(*json_, "rope_parameters");
  }
  return scaling == nullptr ? Result<RopeSpec>(rope) : read_json_rope(*scaling, rope, *context);
}

Result<std::optional<RopeSpec>> ModelMetadata::rope_of(const char* layer_type,
                                                       RopeSpec rope,
                                                       int32_t head_dim) const {
  const nlohmann::json* all = is_gguf() ? nullptr : find_json(*json_, "rope_parameters");
  const nlohmann::json* mine =
      all == nullptr || !all->is_object() ? nullptr : find_json(*all, layer_type);
  if (mine == nullptr) {
    return std::nullopt;
  }
  auto read = rope_context(head_dim).and_then(
      [&](const RopeContext& context) { return read_json_rope(*mine, rope, context); });
  return read ? Result<std::optional<RopeSpec>>(*read) : tl::unexpected(read.error());
}

Result<Activation> ModelMetadata::read_activation() const {
  const Result<std::string> older = string_or("hidden_act", "", "silu");
  const Result<std::string> name = older ? string_or("hidden_activation", "", *older) : older;
  if (!name) {
    return tl::unexpected(name.error());
  }
  if (*name != "silu" && *name != "gelu_pytorch_tanh") {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("hidden_act {} is not supported (silu and gelu_pytorch_tanh are)", *name));
  }
  return *name == "silu" ? Activation::kSilu : Activation::kGeluTanh;
}

namespace {

// A tensor of divisors of a rope's frequencies; empty if there is none.
Result<std::vector<float>> rope_divisors(const Checkpoint& checkpoint,
                                         const char* name,
                                         int32_t rot_dim) {
  const TensorSource* tensor = checkpoint.find(name);
  if (tensor == nullptr) {
    return std::vector<float>();
  }
  if (tensor->type != TensorType::kF32 || tensor->rows != 1 || tensor->cols != rot_dim / 2) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("tensor {} is no list of {} float32 factors", name, rot_dim / 2));
  }
  std::vector<float> values(static_cast<size_t>(tensor->cols));
  std::memcpy(values.data(), tensor->data, tensor->bytes);
  return values;
}

}  // namespace

Result<RopeSpec> ModelMetadata::gguf_rope(RopeSpec rope) const {
  const Result<std::string> type = string_or("", "rope.scaling.type", "none");
  auto factor = float_or("", "rope.scaling.factor", 1.0F);
  auto attention = float_or("", "rope.scaling.attn_factor", 1.0F);
  auto max_position = require_count("", "context_length");
  if (!factor || !attention || !max_position) {
    return tl::unexpected(!factor      ? factor.error()
                          : !attention ? attention.error()
                                       : max_position.error());
  }
  auto original = count_or("", "rope.scaling.original_context_length", *max_position);
  auto longs = rope_divisors(*checkpoint_, "rope_factors_long.weight", rope.rot_dim);
  auto shorts = rope_divisors(*checkpoint_, "rope_factors_short.weight", rope.rot_dim);
  if (!original || !longs || !shorts) {
    return tl::unexpected(!original ? original.error() : !longs ? longs.error() : shorts.error());
  }
  if (!(*factor > 0.0F)) {
    return bad_field("rope.scaling.factor", std::to_string(*factor), "a number above 0");
  }
  rope.factor = *factor;
  rope.original_max_position = *original;
  rope.max_len = *max_position;
  if (!longs->empty() && !shorts->empty()) {
    rope.scaling = RopeScaling::kLongRope;
    rope.long_factors = *std::move(longs);
    rope.short_factors = *std::move(shorts);
    rope.attention_factor = *attention;
  } else if (*type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (*type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.attention_factor = *attention * yarn_attention_factor(*factor);
  } else if (*type != "none") {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("rope scaling type {} is not supported (none, linear and yarn are)", *type));
  }
  return rope;
}

Result<RopeSpec> ModelMetadata::rope_spec(int32_t head_dim) const {
  RopeSpec rope;
  auto theta = float_or("", "rope.freq_base", 10000.0F);
  auto rot_dim = count_or("", "rope.dimension_count", head_dim);
  auto partial = float_or("partial_rotary_factor", "", 1.0F);
  for (const Error* error : {theta ? nullptr : &theta.error(),
                             rot_dim ? nullptr : &rot_dim.error(),
                             partial ? nullptr : &partial.error()}) {
    if (error != nullptr) {
      return tl::unexpected(*error);
    }
  }
  rope.theta = *theta;
  if (!is_gguf()) {
    rot_dim = rotated_dims(head_dim, *partial);
    if (!rot_dim) {
      return tl::unexpected(rot_dim.error());
    }
  }
  rope.rot_dim = *rot_dim;
  if (rope.rot_dim % 2 != 0 || rope.rot_dim > head_dim) {
    return bad_field(
        "rope dimensions", std::to_string(rope.rot_dim), "an even number up to the head size");
  }
  return is_gguf() ? gguf_rope(rope) : json_rope(rope, head_dim);
}

namespace {

// The counts that every family has.
struct Counts {
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t num_heads = 0;
  int32_t intermediate_size = 0;
  int32_t max_position = 0;
};

// A count's field and its key in both containers.
struct CountField {
  int32_t Counts::* field;
  const char* json_key;
  const char* gguf_key;
};

constexpr CountField kRequired[] = {
    {&Counts::num_layers, "num_hidden_layers", "block_count"},
    {&Counts::hidden_size, "hidden_size", "embedding_length"},
    {&Counts::num_heads, "num_attention_heads", "attention.head_count"},
    {&Counts::intermediate_size, "intermediate_size", "feed_forward_length"},
    {&Counts::max_position, "max_position_embeddings", "context_length"},
};

}  // namespace

Result<DecoderSpec> ModelMetadata::layers_spec() const {
  Counts counts;
  for (const CountField& field : kRequired) {
    // A model all of whose layers have experts need not name a size without them.
    const bool of_experts = field.field == &Counts::intermediate_size && !is_gguf() &&
                            !has_json(field.json_key) && has_json("moe_intermediate_size");
    auto value =
        require_count(of_experts ? "moe_intermediate_size" : field.json_key, field.gguf_key);
    if (!value) {
      return tl::unexpected(value.error());
    }
    counts.*field.field = *value;
  }
  DecoderSpec spec;
  spec.architecture = architecture_;
  spec.num_layers = counts.num_layers;
  spec.hidden_size = counts.hidden_size;
  spec.max_position = counts.max_position;
  auto kv_heads = count_or("num_key_value_heads", "attention.head_count_kv", counts.num_heads);
  auto head_dim =
      count_or("head_dim", "attention.key_length", counts.hidden_size / counts.num_heads);
  auto eps = float_or("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6F);
  if (!kv_heads || !head_dim || !eps) {
    return tl::unexpected(!kv_heads   ? kv_heads.error()
                          : !head_dim ? head_dim.error()
                                      : eps.error());
  }
  spec.rms_eps = *eps;
  if (counts.num_heads % *kv_heads != 0) {
    return bad_field(
        "attention heads", std::to_string(counts.num_heads), "a multiple of the key-value heads");
  }
  if (*head_dim % 8 != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("head size {} is not a multiple of 8", *head_dim));
  }
  LayerSpec layer;
  layer.attention = plain_attention(counts.num_heads, *kv_heads, *head_dim);
  layer.ffn.intermediate_size = counts.intermediate_size;
  auto activation = read_activation();
  auto rope = rope_spec(*head_dim);
  if (!activation || !rope) {
    return tl::unexpected(!activation ? activation.error() : rope.error());
  }
  layer.ffn.activation = *activation;
  set_uniform_layers(spec, layer);
  spec.ropes = {*rope};
  spec.names = is_gguf() ? gguf_weight_names() : hf_weight_names(weight_prefix_);
  return spec;
}

Result<DecoderSpec> ModelMetadata::common_spec() const {
  auto layers = layers_spec();
  if (!layers) {
    return layers;
  }
  DecoderSpec spec = *std::move(layers);
  // The embedding gives the vocabulary's size; config.json may have a smaller or larger one (padding).
  auto vocab = checkpoint_->has_tensors()
                   ? checkpoint_->require(spec.names.embed).and_then([](const TensorSource* embed) {
                       return as_count("vocabulary", embed->rows);
                     })
                   : require_count("vocab_size", "vocab_size");
  if (!vocab) {
    return tl::unexpected(vocab.error());
  }
  spec.vocab_size = *vocab;
  // A checkpoint without a head tensor is tied. One that declares itself tied may still have a copy, which is not
  // read.
  auto tied = bool_or("tie_word_embeddings", false);
  if (!tied) {
    return tl::unexpected(tied.error());
  }
  spec.tied_head =
      *tied || (checkpoint_->has_tensors() && !checkpoint_->has_weight(spec.names.head));
  return spec;
}

}  // namespace warprow
