// SPDX-License-Identifier: Apache-2.0
#include "models/mtp_spec.h"

#include "models/weight_names.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

// How config.json says how many such layers there are; absent: one, if the tensors are there.
constexpr const char* kCounts[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers"};

bool is_qwen(const DecoderSpec& target) {
  return target.architecture.starts_with("Qwen3Next") || target.architecture.starts_with("Qwen3_5");
}

Result<void> check_family(const DecoderSpec& target) {
  if (is_qwen(target) || target.architecture == "Glm4MoeForCausalLM") {
    return {};
  }
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("no layer that predicts further tokens is known of {}; it is of GLM-4-MoE "
                  "(model.layers.N.eh_proj.weight), Qwen3-Next and Qwen3.5 (mtp.fc.weight)",
                  target.architecture));
}

Result<void> check_config(const nlohmann::json& config) {
  const auto nested = config.find("text_config");
  const bool has_text = nested != config.end() && nested->is_object();
  for (const nlohmann::json* json : {&config, has_text ? &*nested : &config}) {
    for (const char* key : kCounts) {
      const auto count = json->find(key);
      if (count != json->end() && *count != 1) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("config.json: {}: {} is not supported, 1 is", key, count->dump()));
      }
    }
    const auto own = json->find("mtp_use_dedicated_embeddings");
    if (own != json->end() && *own == true) {
      return fail(ErrorCode::kUnsupported,
                  "config.json: mtp_use_dedicated_embeddings: true is not supported");
    }
  }
  return {};
}

// Names of the layer's tensors, from those of the model's.
void name_mtp_tensors(const DecoderSpec& target, EagleSpec& spec) {
  DecoderWeightNames& names = spec.decoder.names;
  const std::string from = target.names.q.substr(0, target.names.q.find("self_attn"));
  if (is_qwen(target)) {
    spec.fc = "mtp.fc.weight";
    spec.embed_norm = "mtp.pre_fc_norm_embedding.weight";
    spec.hidden_norm = "mtp.pre_fc_norm_hidden.weight";
    names.final_norm = "mtp.norm.weight";
    move_layer(names, from, "mtp.layers.0.");
    return;
  }
  const std::string layer = layer_name(from, target.num_layers);
  spec.fc = layer + "eh_proj.weight";
  spec.embed_norm = layer + "enorm.weight";
  spec.hidden_norm = layer + "hnorm.weight";
  names.final_norm = layer + "shared_head.norm.weight";
  move_layer(names, from, layer);
}

Result<void> check_tensors(const Checkpoint& checkpoint, const EagleSpec& spec) {
  std::string missing;
  for (const std::string& name : {spec.fc,
                                  spec.embed_norm,
                                  spec.hidden_norm,
                                  spec.decoder.names.final_norm,
                                  spec.decoder.names.q}) {
    if (checkpoint.has_tensors() && !checkpoint.has_weight(name)) {
      missing += (missing.empty() ? "" : ", ") + name;
    }
  }
  if (missing.empty()) {
    return {};
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("the checkpoint has no layer that predicts further tokens: no tensor {}",
                          missing));
}

// The model's last layer of attention, with experts if it has a router.
Result<LayerSpec> mtp_layer_of(const Checkpoint& checkpoint,
                               const DecoderSpec& target,
                               const std::string& router) {
  LayerSpec layer = target.layers.back();
  const FfnSpec* experts = nullptr;
  const FfnSpec* dense = nullptr;
  for (const LayerSpec& each : target.layers) {
    (each.ffn.has_experts() ? experts : dense) = &each.ffn;
    if (!each.has_state()) {
      layer = each;
    }
  }
  const bool routed = checkpoint.has_tensors() ? checkpoint.has_weight(router) : experts != nullptr;
  const FfnSpec* const ffn = routed ? experts : dense;
  if (ffn == nullptr) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("the layer that predicts further tokens has {} tensor {}, unlike all "
                            "layers of the model",
                            routed ? "a" : "no",
                            router));
  }
  layer.ffn = *ffn;
  layer.delta = {};
  return layer;
}

}  // namespace

Result<EagleSpec> read_mtp_spec(const Checkpoint& checkpoint, const DecoderSpec& target) {
  if (auto family = check_family(target); !family) {
    return tl::unexpected(family.error());
  }
  const nlohmann::json* json = checkpoint.config_json();
  if (json == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "layers of a GGUF file that predict further tokens are not read, those of "
                "safetensors are");
  }
  if (auto count = check_config(*json); !count) {
    return tl::unexpected(count.error());
  }
  EagleSpec spec;
  spec.kind = HeadKind::kMtp;
  spec.decoder = target;
  name_mtp_tensors(target, spec);
  if (auto tensors = check_tensors(checkpoint, spec); !tensors) {
    return tl::unexpected(tensors.error());
  }
  auto layer = mtp_layer_of(checkpoint, target, spec.decoder.names.router);
  if (!layer) {
    return tl::unexpected(layer.error());
  }
  spec.decoder.ropes = {target.ropes[static_cast<size_t>(layer->attention.rope)]};
  layer->attention.rope = 0;
  spec.decoder.num_layers = 1;
  spec.decoder.layers = {*layer};
  spec.target_hidden_size = target.hidden_size;
  spec.draft_vocab_size = target.vocab_size;
  spec.speculative_tokens = 1;
  spec.normed_states = is_qwen(target);
  spec.hides_first = !is_qwen(target);
  if (auto checked = check_decoder_spec(spec.decoder); !checked) {
    return tl::unexpected(checked.error());
  }
  return spec;
}

}  // namespace warprow
