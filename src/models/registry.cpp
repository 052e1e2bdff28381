// SPDX-License-Identifier: Apache-2.0
#include "models/registry.h"

#include "models/arch/arch.h"
#include "models/arch/encoders.h"
#include "models/metadata.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// An architecture's names in config.json and GGUF, and the function that maps it.
struct Entry {
  std::string_view hf_name;
  std::string_view gguf_name;  // empty: its GGUF files use another's name
  Result<void> (*make)(const ModelMetadata&, DecoderSpec&);
  // Of a model with a text model inside: values that its text_config may leave out. Else null.
  const char* text_defaults = nullptr;
};

constexpr const char* kGemma3Text = R"({
  "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
  "query_pre_attn_scalar": 256, "sliding_window": 4096})";

constexpr const char* kGemma4Text = R"({
  "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-6})";

constexpr const char* kQwen35Text = R"({
  "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
  "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768,
  "rms_norm_eps": 1e-6, "partial_rotary_factor": 0.25})";

constexpr const char* kQwen35MoeText = R"({
  "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
  "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
  "partial_rotary_factor": 0.25, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
  "num_experts_per_tok": 8, "num_experts": 256})";

constexpr Entry kEntries[] = {
    {"Gemma2ForCausalLM", "gemma2", &make_gemma2},
    {"Gemma3ForCausalLM", "gemma3", &make_gemma3},
    {"Gemma3ForConditionalGeneration", "", &make_gemma3, kGemma3Text},
    {"Gemma4ForCausalLM", "", &make_gemma4},
    {"Gemma4ForConditionalGeneration", "", &make_gemma4, kGemma4Text},
    {"Glm4ForCausalLM", "glm4", &make_glm4},
    {"Glm4MoeForCausalLM", "glm4moe", &make_glm4_moe},
    {"GlmForCausalLM", "", &make_glm},
    {"GptOssForCausalLM", "gpt-oss", &make_gpt_oss},
    {"GraniteForCausalLM", "granite", &make_granite},
    {"LlamaForCausalLM", "llama", &make_llama},
    {"MistralForCausalLM", "", &make_mistral},
    {"MixtralForCausalLM", "", &make_mixtral},
    {"Olmo2ForCausalLM", "olmo2", &make_olmo2},
    {"Phi3ForCausalLM", "phi3", &make_phi3},
    {"Qwen2ForCausalLM", "qwen2", &make_qwen2},
    {"Qwen2MoeForCausalLM", "qwen2moe", &make_qwen2_moe},
    {"Qwen3ForCausalLM", "qwen3", &make_qwen3},
    {"Qwen3MoeForCausalLM", "qwen3moe", &make_qwen3_moe},
    {"Qwen3NextForCausalLM", "qwen3next", &make_qwen3_next},
    {"Qwen3_5ForCausalLM", "qwen35", &make_qwen3_5},
    {"Qwen3_5ForConditionalGeneration", "", &make_qwen3_5, kQwen35Text},
    {"Qwen3_5MoeForCausalLM", "qwen35moe", &make_qwen3_5_moe},
    {"Qwen3_5MoeForConditionalGeneration", "", &make_qwen3_5_moe, kQwen35MoeText},
    {"SmolLM3ForCausalLM", "smollm3", &make_smollm3},
};

// A family of encoders, by what its classes' names begin with.
struct EncoderEntry {
  std::string_view family;
  Result<DecoderSpec> (*read)(const ModelMetadata&);
};
constexpr EncoderEntry kEncoders[] = {
    {"Bert", &read_bert},
    {"ModernBert", &read_modernbert},
    {"NomicBert", &read_nomic_bert},
    {"Roberta", &read_roberta},
    {"XLMRoberta", &read_roberta},
};
// What their classes' names end with: no head, a head for classes, or a head that is not read.
constexpr std::string_view kEncoderClasses[] = {
    "Model", "ForSequenceClassification", "ForMaskedLM"};

const EncoderEntry* find_encoder(std::string_view name) {
  for (const EncoderEntry& entry : kEncoders) {
    for (const std::string_view ending : kEncoderClasses) {
      if (name.size() == entry.family.size() + ending.size() && name.starts_with(entry.family) &&
          name.ends_with(ending)) {
        return &entry;
      }
    }
  }
  return nullptr;
}

// The number of characters to insert, delete or replace between two names, whatever their case.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // of a's first characters to each start of b
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const bool equal = std::tolower(static_cast<unsigned char>(a[i])) ==
                         std::tolower(static_cast<unsigned char>(b[j]));
      const size_t replaced = diagonal + (equal ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// Of the supported architectures the one whose name is most like this.
std::string_view nearest_architecture(std::string_view name, bool is_gguf) {
  const auto unlike = [&](const Entry& entry) {
    const std::string_view known = is_gguf ? entry.gguf_name : entry.hf_name;
    return known.empty() ? std::numeric_limits<size_t>::max() : distance(name, known);
  };
  return std::ranges::min_element(kEntries, {}, unlike)->hf_name;
}

// The class that generates. The others have no head, or one of their own (models/pooler.h).
std::string generating_class(const std::string& name) {
  for (const std::string_view ending : {"ForSequenceClassification", "Model"}) {
    if (name.ends_with(ending)) {
      return name.substr(0, name.size() - ending.size()) + "ForCausalLM";
    }
  }
  return name;
}

}  // namespace

std::string supported_architectures() {
  std::string names;
  for (const Entry& entry : kEntries) {
    names += (names.empty() ? "" : ", ") + std::string(entry.hf_name);
  }
  for (const EncoderEntry& entry : kEncoders) {
    names += fmt::format(", {}Model", entry.family);
  }
  return names;
}

namespace {

Result<DecoderSpec> checked_spec(Result<DecoderSpec> spec) {
  if (spec) {
    if (auto checked = check_decoder_spec(*spec); !checked) {
      return tl::unexpected(checked.error());
    }
  }
  return spec;
}

}  // namespace

Result<DecoderSpec> read_decoder_spec(const Checkpoint& checkpoint) {
  auto metadata = ModelMetadata::open(checkpoint);
  if (!metadata) {
    return tl::unexpected(metadata.error());
  }
  if (!metadata->is_gguf()) {
    if (const EncoderEntry* encoder = find_encoder(metadata->architecture())) {
      return checked_spec(encoder->read(*metadata));
    }
  }
  const std::string wanted =
      metadata->is_gguf() ? metadata->architecture() : generating_class(metadata->architecture());
  for (const Entry& entry : kEntries) {
    if (wanted != (metadata->is_gguf() ? entry.gguf_name : entry.hf_name)) {
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
    if (checkpoint.has_mxfp4_experts() && !spec->mxfp4_experts) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("config.json: quantization_config with quant_method mxfp4 is not "
                              "supported for {}",
                              metadata->architecture()));
    }
    if (auto checked = check_decoder_spec(*spec); !checked) {
      return tl::unexpected(checked.error());
    }
    return spec;
  }
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("architecture {} is not supported; the nearest that is: {} (supported: {})",
                  metadata->architecture(),
                  nearest_architecture(metadata->architecture(), metadata->is_gguf()),
                  supported_architectures()));
}

}  // namespace warprow
