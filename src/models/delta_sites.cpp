// SPDX-License-Identifier: Apache-2.0
#include "models/delta_sites.h"

#include "models/tensor_split.h"
#include "models/weight_names.h"

#include <string>
#include <utility>

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
  int64_t rows;     // of all ranks together
  IndexRange mine;  // of this rank
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
  int64_t row = 0;
  int64_t column = 0;
  for (const Outputs& output : outputs) {
    LinearSitePart& part = parts.emplace_back();
    const bool is_fused = !fused.empty();
    part.module = is_fused ? module_of(fused, fused_fallback, layer)
                           : module_of(output.pattern, output.fallback, layer);
    part.module_rows = is_fused ? all : output.rows;
    part.first_row = (is_fused ? row : 0) + output.mine.begin;
    part.rows = output.mine.count;
    part.y_col = column;
    row += output.rows;
    column += output.mine.count;
  }
  return parts;
}

// Items of `size` each.
IndexRange scaled(const IndexRange& range, int64_t size) {
  return {range.begin * size, range.count * size};
}

// A rank's part of n items that are cut into equal parts.
IndexRange equal_part(int64_t n, const GroupPlace& place) {
  return {place.rank * (n / place.size), n / place.size};
}

// A layer all of whose outputs each rank has, of its part of the inputs.
LinearSite cut_by_inputs(const Outputs& output,
                         int64_t inputs,
                         const IndexRange& mine,
                         int32_t layer) {
  return {mine.count, inputs, mine.begin, side_by_side({output}, "", "", layer)};
}

}  // namespace

DeltaSites delta_sites(const LayerSpec& layer) {
  DeltaSites sites;
  sites.qkv = !layer.has_state() && layer.attention.gate_size() == 0;
  sites.output = !layer.has_state();
  sites.feed_forward = !layer.ffn.has_experts();
  return sites;
}

LinearSite qkv_site(const DecoderSpec& spec, int32_t layer, const GroupPlace& place) {
  const AttentionSpec& attention = spec.layers[static_cast<size_t>(layer)].attention;
  const IndexRange kv = kv_heads(attention, place);
  std::vector<Outputs> outputs{{spec.names.q,
                                "self_attn.q_proj",
                                attention.q_size(),
                                scaled(query_heads(attention, place), attention.head_dim)}};
  if (attention.has_own_kv()) {
    outputs.push_back(
        {spec.names.k, "self_attn.k_proj", attention.k_size(), scaled(kv, attention.head_dim)});
    if (!attention.values_are_keys) {
      outputs.push_back(
          {spec.names.v, "self_attn.v_proj", attention.v_size(), scaled(kv, attention.head_dim_v)});
    }
  }
  const int64_t inputs = spec.hidden_size;
  return {inputs, inputs, 0, side_by_side(outputs, spec.names.qkv, "self_attn.qkv_proj", layer)};
}

LinearSite output_site(const DecoderSpec& spec, int32_t layer, const GroupPlace& place) {
  const AttentionSpec& attention = spec.layers[static_cast<size_t>(layer)].attention;
  const int64_t hidden = spec.hidden_size;
  return cut_by_inputs({spec.names.o, "self_attn.o_proj", hidden, {0, hidden}},
                       int64_t{attention.num_heads} * attention.head_dim_v,
                       scaled(query_heads(attention, place), attention.head_dim_v),
                       layer);
}

LinearSite gate_up_site(const DecoderSpec& spec, int32_t layer, const GroupPlace& place) {
  const int64_t inner = spec.layers[static_cast<size_t>(layer)].ffn.intermediate_size;
  const IndexRange mine = equal_part(inner, place);
  const int64_t inputs = spec.hidden_size;
  return {inputs,
          inputs,
          0,
          side_by_side({{spec.names.gate, "mlp.gate_proj", inner, mine},
                        {spec.names.up, "mlp.up_proj", inner, mine}},
                       spec.names.gate_up,
                       "mlp.gate_up_proj",
                       layer)};
}

LinearSite down_site(const DecoderSpec& spec, int32_t layer, const GroupPlace& place) {
  const int64_t inner = spec.layers[static_cast<size_t>(layer)].ffn.intermediate_size;
  const int64_t hidden = spec.hidden_size;
  return cut_by_inputs({spec.names.down, "mlp.down_proj", hidden, {0, hidden}},
                       inner,
                       equal_part(inner, place),
                       layer);
}

std::vector<std::string> site_modules(const DecoderSpec& spec, int32_t layer) {
  const DeltaSites sites = delta_sites(spec.layers[static_cast<size_t>(layer)]);
  std::vector<LinearSite> list;
  if (sites.qkv) {
    list.push_back(qkv_site(spec, layer, {}));
  }
  if (sites.output) {
    list.push_back(output_site(spec, layer, {}));
  }
  if (sites.feed_forward) {
    list.push_back(gate_up_site(spec, layer, {}));
    list.push_back(down_site(spec, layer, {}));
  }
  std::vector<std::string> modules;
  for (const LinearSite& site : list) {
    for (const LinearSitePart& part : site.parts) {
      modules.push_back(part.module);
    }
  }
  return modules;
}

}  // namespace warprow
