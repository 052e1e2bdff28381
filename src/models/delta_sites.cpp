// SPDX-License-Identifier: Apache-2.0
#include "models/delta_sites.h"

#include "models/weight_names.h"

#include <string>

namespace warprow {
namespace {

// The module of a tensor's pattern: layers.3.self_attn.q_proj. fallback: what it is called where the checkpoint is GGUF.
std::string module_of(const std::string& pattern, const std::string& fallback, int32_t layer) {
  const size_t at = pattern.find("layers.{}.");
  const std::string name =
      at == std::string::npos ? "layers.{}." + fallback + ".weight" : pattern.substr(at);
  const std::string full = layer_name(name, layer);
  return full.substr(0, full.rfind('.'));
}

struct Outputs {
  const std::string& pattern;
  const char* fallback;
  int64_t rows;
};

// Parts side by side in the product. fused: the pattern of one module of all of them, or empty.
std::vector<LinearSitePart> side_by_side(const std::vector<Outputs>& outputs,
                                         const std::string& fused,
                                         const char* fused_fallback,
                                         int32_t layer) {
  int64_t all = 0;
  for (const Outputs& output : outputs) {
    all += output.rows;
  }
  std::vector<LinearSitePart> parts;
  int64_t column = 0;
  for (const Outputs& output : outputs) {
    LinearSitePart& part = parts.emplace_back();
    const bool is_fused = !fused.empty();
    part.module = is_fused ? module_of(fused, fused_fallback, layer)
                           : module_of(output.pattern, output.fallback, layer);
    part.module_rows = is_fused ? all : output.rows;
    part.first_row = is_fused ? column : 0;
    part.rows = output.rows;
    part.y_col = column;
    column += output.rows;
  }
  return parts;
}

}  // namespace

std::vector<LinearSitePart> qkv_site(const DecoderSpec& spec, int32_t layer) {
  const AttentionSpec& attention = spec.layers[static_cast<size_t>(layer)].attention;
  std::vector<Outputs> outputs{{spec.names.q, "self_attn.q_proj", attention.q_size()}};
  if (attention.has_own_kv()) {
    outputs.push_back({spec.names.k, "self_attn.k_proj", attention.k_size()});
    if (!attention.values_are_keys) {
      outputs.push_back({spec.names.v, "self_attn.v_proj", attention.v_size()});
    }
  }
  return side_by_side(outputs, spec.names.qkv, "self_attn.qkv_proj", layer);
}

std::vector<LinearSitePart> output_site(const DecoderSpec& spec, int32_t layer) {
  return side_by_side({{spec.names.o, "self_attn.o_proj", spec.hidden_size}}, "", "", layer);
}

std::vector<LinearSitePart> gate_up_site(const DecoderSpec& spec, int32_t layer) {
  const int64_t inner = spec.layers[static_cast<size_t>(layer)].ffn.intermediate_size;
  return side_by_side(
      {{spec.names.gate, "mlp.gate_proj", inner}, {spec.names.up, "mlp.up_proj", inner}},
      spec.names.gate_up,
      "mlp.gate_up_proj",
      layer);
}

std::vector<LinearSitePart> down_site(const DecoderSpec& spec, int32_t layer) {
  return side_by_side({{spec.names.down, "mlp.down_proj", spec.hidden_size}}, "", "", layer);
}

}  // namespace warprow
