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
};

constexpr Entry kEntries[] = {
    {"Gemma3ForCausalLM", "", &make_gemma3},
    {"LlamaForCausalLM", "llama", &make_llama},
    {"MistralForCausalLM", "", &make_mistral},
    {"Qwen2ForCausalLM", "qwen2", &make_qwen2},
    {"Qwen3ForCausalLM", "qwen3", &make_qwen3},
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
