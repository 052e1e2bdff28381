// SPDX-License-Identifier: Apache-2.0
#include "models/eagle_spec.h"

#include "models/metadata.h"
#include "models/weight_names.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr size_t kAuxLayers = 3;  // whose states fc takes
constexpr const char* kStatesNormKey = "norm_before_fc";
constexpr const char* kAuxKey = "eagle_aux_hidden_state_layer_ids";

tl::unexpected<Error> refuse_draft(const std::string& what) {
  return fail(ErrorCode::kUnsupported, fmt::format("config.json: {}", what));
}

// The layers that the residual stream enters when states are taken.
Result<std::vector<int32_t>> entered_layers(const nlohmann::json& json, int32_t num_layers) {
  const nlohmann::json* list = json.contains(kAuxKey) ? &json[kAuxKey] : nullptr;
  const auto nested = json.find("eagle_config");
  if (list == nullptr && nested != json.end() && nested->is_object() && nested->contains(kAuxKey)) {
    list = &(*nested)[kAuxKey];
  }
  if (list == nullptr || list->is_null()) {
    return std::vector<int32_t>{2, num_layers / 2, num_layers - 3};
  }
  std::vector<int32_t> layers;
  if (list->is_array()) {
    for (const nlohmann::json& layer : *list) {
      layers.push_back(layer.is_number_integer() ? layer.get<int32_t>() : -1);
    }
  }
  if (layers.size() != kAuxLayers || !std::ranges::is_sorted(layers, std::ranges::less_equal())) {
    return refuse_draft(fmt::format(
        "{}: {} is not a list of {} ascending layers", kAuxKey, list->dump(), kAuxLayers));
  }
  return layers;
}

Result<void> read_aux_layers(const nlohmann::json& json,
                             const DecoderSpec& target,
                             EagleSpec& spec) {
  auto entered = entered_layers(json, target.num_layers);
  if (!entered) {
    return tl::unexpected(entered.error());
  }
  for (const int32_t layer : *entered) {
    if (layer < 1 || layer > target.num_layers ||
        (!spec.aux_layers.empty() && layer - 1 <= spec.aux_layers.back())) {
      return refuse_draft(fmt::format(
          "{}: states in front of layer {} of a model of {}", kAuxKey, layer, target.num_layers));
    }
    spec.aux_layers.push_back(layer - 1);
  }
  return {};
}

bool is_true(const nlohmann::json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_boolean() && at->get<bool>();
}

// Some keys stand in the eagle_config of config.json, too.
bool is_true_of_either(const nlohmann::json& json, const char* key) {
  const auto nested = json.find("eagle_config");
  return is_true(json, key) ||
         (nested != json.end() && nested->is_object() && is_true(*nested, key));
}

// What config.json asks for and is not supported.
Result<void> check_options(const nlohmann::json& json, bool eagle3) {
  const auto nested = json.find("eagle_config");
  const bool has_nested = nested != json.end() && nested->is_object();
  if (!eagle3 && is_true_of_either(json, kStatesNormKey)) {
    return refuse_draft(
        fmt::format("{}: true is not supported of eagle, but of eagle3", kStatesNormKey));
  }
  for (const char* key :
       {"fc_norm", "norm_output", "layernorms", "add_para_norm", "parallel_drafting"}) {
    if (is_true_of_either(json, key)) {
      return refuse_draft(fmt::format("{}: true is not supported", key));
    }
  }
  if (has_nested && nested->contains("use_aux_hidden_state") &&
      !is_true(*nested, "use_aux_hidden_state")) {
    return refuse_draft("use_aux_hidden_state: false is not supported");
  }
  return {};
}

// In the format of the package speculators: the number of draft tokens of the first proposal method.
int32_t proposed_tokens(const nlohmann::json& json) {
  const nlohmann::json::json_pointer at(
      "/speculators_config/proposal_methods/0/speculative_tokens");
  const bool there = json.contains(at) && json[at].is_number_integer();
  return there ? json[at].get<int32_t>() : 0;
}

// Whether a tensor is to be read: it is there, or where no tensors are looked at, one would be.
bool has(const Checkpoint& checkpoint, const std::string& name, bool otherwise) {
  return checkpoint.has_tensors() ? checkpoint.has_weight(name) : otherwise;
}

void name_draft_tensors(const Checkpoint& checkpoint, EagleSpec& spec) {
  const std::string root = has(checkpoint, "model.fc.weight", false) ? "model." : "";
  const bool eagle3 = spec.kind == HeadKind::kEagle3;
  spec.decoder.names = hf_weight_names(root);
  DecoderWeightNames& names = spec.decoder.names;
  if (has(checkpoint, root + "midlayer.self_attn.q_proj.weight", eagle3)) {
    move_layer(names, root + "layers.{}.", root + "midlayer.");
  }
  spec.fc = root + "fc.weight";
  spec.fc_bias = has(checkpoint, bias_name(spec.fc), false);
  if (!eagle3) {
    return;
  }
  const std::string layer = names.q.substr(0, names.q.find("self_attn"));
  spec.hidden_norm = layer + "hidden_norm.weight";
  if (has(checkpoint, names.embed, false)) {
    spec.embed = names.embed;
  }
  for (const std::string& head : {std::string("lm_head.weight"), root + "lm_head.weight"}) {
    if (spec.head.empty() && has(checkpoint, head, true)) {
      spec.head = head;
    }
  }
  for (const std::string& offsets : {std::string("d2t"), root + "d2t"}) {
    if (checkpoint.find(offsets) != nullptr) {
      spec.id_offsets = offsets;
    }
  }
}

Result<void> check_sizes(const EagleSpec& spec, const DecoderSpec& target) {
  const int32_t vocab = target.vocab_size;
  if (spec.decoder.vocab_size != vocab) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "vocab_size: {}, the model that it drafts for has {}", spec.decoder.vocab_size, vocab));
  }
  if (spec.target_hidden_size != target.hidden_size) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("its states have {} elements, those of the model {}",
                            spec.target_hidden_size,
                            target.hidden_size));
  }
  if (spec.embed.empty() && spec.decoder.hidden_size != target.hidden_size) {
    return refuse_draft(
        fmt::format("hidden_size: {} without an embedding of its own; the model's has {}",
                    spec.decoder.hidden_size,
                    target.hidden_size));
  }
  if (spec.decoder.num_layers > 1 && spec.decoder.names.q.find("{}") == std::string::npos) {
    return refuse_draft(
        fmt::format("num_hidden_layers: {} with tensors named midlayer; 1 is supported",
                    spec.decoder.num_layers));
  }
  if (spec.draft_vocab_size > vocab) {
    return refuse_draft(fmt::format(
        "draft_vocab_size: {} is above the vocabulary's {}", spec.draft_vocab_size, vocab));
  }
  if (spec.head.empty() && (spec.draft_vocab_size != vocab || !spec.id_offsets.empty() ||
                            spec.decoder.hidden_size != target.hidden_size)) {
    return refuse_draft("a head without lm_head.weight has the model's vocabulary and width");
  }
  return {};
}

}  // namespace

Result<EagleSpec> read_eagle_spec(const Checkpoint& checkpoint,
                                  bool eagle3,
                                  const DecoderSpec& target) {
  const nlohmann::json* json = checkpoint.config_json();
  if (json == nullptr) {
    return fail(ErrorCode::kUnsupported, "a GGUF file is not supported as an EAGLE head");
  }
  if (auto checked = check_options(*json, eagle3); !checked) {
    return tl::unexpected(checked.error());
  }
  auto metadata = ModelMetadata::open(checkpoint);
  if (!metadata) {
    return tl::unexpected(metadata.error());
  }
  EagleSpec spec;
  spec.kind = eagle3 ? HeadKind::kEagle3 : HeadKind::kEagle;
  const bool speculators = json->contains("speculators_model_type");
  const std::string wanted = eagle3 ? "eagle3" : "eagle";
  if (speculators && (*json)["speculators_model_type"] != wanted) {
    return refuse_draft(fmt::format("speculators_model_type: {} is not read by the method {}",
                                    (*json)["speculators_model_type"].dump(),
                                    wanted));
  }
  if (speculators && !eagle3) {
    return refuse_draft("speculators_model_type: \"eagle\" is not supported; \"eagle3\" is");
  }
  // The keys of the head stand beside those of its layer, or around them in the format of speculators.
  auto norm_first = metadata->bool_or("norm_before_residual", speculators);
  auto draft_vocab = metadata->count_or("draft_vocab_size", "", 0);
  auto target_hidden = metadata->count_or("target_hidden_size", "", 0);
  if (speculators) {
    spec.speculative_tokens = proposed_tokens(*json);
    if (auto entered = metadata->enter_config("transformer_layer_config"); !entered) {
      return tl::unexpected(entered.error());
    }
  }
  auto layers = metadata->layers_spec();
  auto vocab = metadata->count_or("vocab_size", "", target.vocab_size);
  auto bias = metadata->bool_or("attention_bias", false);
  auto mlp_bias = metadata->bool_or("mlp_bias", false);
  for (const Error* error : {norm_first ? nullptr : &norm_first.error(),
                             draft_vocab ? nullptr : &draft_vocab.error(),
                             target_hidden ? nullptr : &target_hidden.error(),
                             layers ? nullptr : &layers.error(),
                             vocab ? nullptr : &vocab.error(),
                             bias ? nullptr : &bias.error(),
                             mlp_bias ? nullptr : &mlp_bias.error()}) {
    if (error != nullptr) {
      return tl::unexpected(*error);
    }
  }
  spec.decoder = *std::move(layers);
  spec.decoder.qkv_bias = *bias;
  spec.decoder.o_bias = *bias;
  spec.decoder.mlp_bias = *mlp_bias;
  spec.decoder.vocab_size = *vocab;
  spec.norm_before_residual = eagle3 && *norm_first;
  spec.target_hidden_size = *target_hidden > 0 ? *target_hidden : spec.decoder.hidden_size;
  spec.draft_vocab_size = eagle3 && *draft_vocab > 0 ? *draft_vocab : *vocab;
  name_draft_tensors(checkpoint, spec);
  if (is_true_of_either(*json, kStatesNormKey)) {
    spec.states_norm =
        spec.fc.substr(0, spec.fc.size() - std::strlen("fc.weight")) + "input_norm.weight";
  }
  if (eagle3) {
    if (auto read = read_aux_layers(*json, target, spec); !read) {
      return tl::unexpected(read.error());
    }
  }
  if (auto checked = check_sizes(spec, target); !checked) {
    return tl::unexpected(checked.error());
  }
  if (auto checked = check_decoder_spec(spec.decoder); !checked) {
    return tl::unexpected(checked.error());
  }
  return spec;
}

Result<std::vector<int32_t>> read_draft_ids(const Checkpoint& checkpoint, const EagleSpec& spec) {
  std::vector<int32_t> ids;
  if (spec.id_offsets.empty()) {
    return ids;
  }
  const TensorSource& tensor = *checkpoint.find(spec.id_offsets);
  if (tensor.type != TensorType::kI64 || tensor.rows != 1 || tensor.cols != spec.draft_vocab_size) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format(
            "tensor {} is no list of {} int64 offsets", spec.id_offsets, spec.draft_vocab_size));
  }
  for (int64_t i = 0; i < tensor.cols; ++i) {
    int64_t offset = 0;
    std::memcpy(&offset, tensor.data + i * int64_t{sizeof offset}, sizeof offset);
    if (offset < -i || offset >= spec.decoder.vocab_size - i) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("tensor {}: {} at {} leads out of a vocabulary of {}",
                              spec.id_offsets,
                              offset,
                              i,
                              spec.decoder.vocab_size));
    }
    ids.push_back(static_cast<int32_t>(i + offset));
  }
  return ids;
}

}  // namespace warprow
