// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow::test {

inline nlohmann::json llama_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"num_hidden_layers", 4},
          {"hidden_size", 64},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 96},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 5000.0}};
}

// The DecoderSpec of a Hugging Face directory with this config.json and a 32 x 64 embedding.
inline Result<DecoderSpec> spec_of(const nlohmann::json& config, bool with_head = false) {
  const TempDir dir;
  dir.write("config.json", config.dump());
  SafetensorsWriter writer;
  const std::vector<float> values(32 * 64, 0.5F);
  writer.add_f32("model.embed_tokens.weight", {32, 64}, values);
  if (with_head) {
    writer.add_f32("lm_head.weight", {32, 64}, values);
  }
  dir.write("model.safetensors", writer.bytes());
  auto files = resolve_model(dir.path().string());
  if (!files) {
    return tl::unexpected(files.error());
  }
  auto checkpoint = Checkpoint::open(*files);
  if (!checkpoint) {
    return tl::unexpected(checkpoint.error());
  }
  return read_decoder_spec(*checkpoint);
}

inline std::string error_of(const nlohmann::json& config) {
  const auto spec = spec_of(config);
  return spec ? "no error" : spec.error().message;
}

}  // namespace warprow::test
