// SPDX-License-Identifier: Apache-2.0
#include "models/registry.h"

#include "models/arch/arch.h"
#include "models/metadata.h"

#include <string_view>

#include <fmt/format.h>

namespace warprow {
namespace {

// An architecture's names in config.json and GGUF, and the function that maps it.
struct Entry {
  std::string_view hf_name;
  std::string_view gguf_name;  // empty: its GGUF files use another's name
  Result<void> (*make)(const ModelMetadata&, DecoderSpec&);
  const char* text_defaults =
      nullptr;  // a model with a text model inside: values that its text_config may leave out
};

constexpr const char* kGemma3Text = R"({
  "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
  "query_pre_attn_scalar": 256, "sliding_window": 4096})";

constexpr Entry kEntries[] = {
    {"Gemma2ForCausalLM", "gemma2", &make_gemma2},
    {"Gemma3ForCausalLM", "gemma3", &make_gemma3},
    {"Gemma3ForConditionalGeneration", "", &make_gemma3, kGemma3Text},
    {"Glm4ForCausalLM", "glm4", &make_glm4},
    {"GlmForCausalLM", "", &make_glm},
    {"GraniteForCausalLM", "granite", &make_granite},
    {"LlamaForCausalLM", "llama", &make_llama},
    {"MistralForCausalLM", "", &make_mistral},
    {"Olmo2ForCausalLM", "olmo2", &make_olmo2},
    {"Phi3ForCausalLM", "phi3", &make_phi3},
    {"Qwen2ForCausalLM", "qwen2", &make_qwen2},
    {"Qwen3ForCausalLM", "qwen3", &make_qwen3},
    {"SmolLM3ForCausalLM", "smollm3", &make_smollm3},
};

}  // namespace

std::string supported_architectures() {
  std::string names;
  for (const Entry& entry : kEntries) {
    names += (names.empty() ? "" : ", ") + std::string(entry.hf_name);
  }
  return names;
}

Result<DecoderSpec> read_decoder_spec(const Checkpoint& checkpoint) {
  auto metadata = ModelMetadata::open(checkpoint);
  if (!metadata) {
    return tl::unexpected(metadata.error());
  }
  for (const Entry& entry : kEntries) {
    if (metadata->architecture() != (metadata->is_gguf() ? entry.gguf_name : entry.hf_name)) {
      continue;
    }
    if (entry.text_defaults != nullptr) {
      if (auto entered = metadata->enter_text_config(entry.text_defaults); !entered) {
        return tl::unexpected(entered.error());
      }
    }
    auto spec = metadata->common_spec();
    if (!spec) {
      return spec;
    }
    if (auto made = entry.make(*metadata, *spec); !made) {
      return tl::unexpected(made.error());
    }
    if (auto checked = check_decoder_spec(*spec); !checked) {
      return tl::unexpected(checked.error());
    }
    return spec;
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("architecture {} is not supported (supported: {})",
                          metadata->architecture(),
                          supported_architectures()));
}

}  // namespace warprow
