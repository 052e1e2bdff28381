// SPDX-License-Identifier: Apache-2.0
#include "models/weight_names.h"

namespace warprow {

DecoderWeightNames hf_weight_names(const std::string& prefix) {
  DecoderWeightNames names;
  names.embed = prefix + "embed_tokens.weight";
  names.final_norm = prefix + "norm.weight";
  names.head = "lm_head.weight";
  const std::string layer = prefix + "layers.{}.";
  names.input_norm = layer + "input_layernorm.weight";
  names.q = layer + "self_attn.q_proj.weight";
  names.k = layer + "self_attn.k_proj.weight";
  names.v = layer + "self_attn.v_proj.weight";
  names.o = layer + "self_attn.o_proj.weight";
  names.q_norm = layer + "self_attn.q_norm.weight";
  names.k_norm = layer + "self_attn.k_norm.weight";
  names.ffn_norm = layer + "post_attention_layernorm.weight";
  names.gate = layer + "mlp.gate_proj.weight";
  names.up = layer + "mlp.up_proj.weight";
  names.down = layer + "mlp.down_proj.weight";
  names.router = layer + "mlp.gate.weight";
  names.expert_gate = layer + "mlp.experts.{}.gate_proj.weight";
  names.expert_up = layer + "mlp.experts.{}.up_proj.weight";
  names.expert_down = layer + "mlp.experts.{}.down_proj.weight";
  names.shared_gate = layer + "mlp.shared_expert.gate_proj.weight";
  names.shared_up = layer + "mlp.shared_expert.up_proj.weight";
  names.shared_down = layer + "mlp.shared_expert.down_proj.weight";
  names.shared_scale = layer + "mlp.shared_expert_gate.weight";
  const std::string delta = layer + "linear_attn.";
  names.delta_qkv = delta + "in_proj_qkv.weight";
  names.delta_z = delta + "in_proj_z.weight";
  names.delta_b = delta + "in_proj_b.weight";
  names.delta_a = delta + "in_proj_a.weight";
  names.delta_qkvz = delta + "in_proj_qkvz.weight";
  names.delta_ba = delta + "in_proj_ba.weight";
  names.delta_conv = delta + "conv1d.weight";
  names.delta_rate = delta + "A_log";
  names.delta_dt_bias = delta + "dt_bias";
  names.delta_norm = delta + "norm.weight";
  names.delta_out = delta + "out_proj.weight";
  names.experts_gate_up = layer + "mlp.experts.gate_up_proj";  // as transformers 5 keeps them
  names.experts_down = layer + "mlp.experts.down_proj";
  return names;
}

DecoderWeightNames gguf_weight_names() {
  DecoderWeightNames names;
  names.embed = "token_embd.weight";
  names.final_norm = "output_norm.weight";
  names.head = "output.weight";
  const std::string layer = "blk.{}.";
  names.input_norm = layer + "attn_norm.weight";
  names.q = layer + "attn_q.weight";
  names.k = layer + "attn_k.weight";
  names.v = layer + "attn_v.weight";
  names.o = layer + "attn_output.weight";
  names.q_norm = layer + "attn_q_norm.weight";
  names.k_norm = layer + "attn_k_norm.weight";
  names.ffn_norm = layer + "ffn_norm.weight";
  names.gate = layer + "ffn_gate.weight";
  names.up = layer + "ffn_up.weight";
  names.down = layer + "ffn_down.weight";
  names.router = layer + "ffn_gate_inp.weight";
  names.shared_gate = layer + "ffn_gate_shexp.weight";
  names.shared_up = layer + "ffn_up_shexp.weight";
  names.shared_down = layer + "ffn_down_shexp.weight";
  names.shared_scale = layer + "ffn_gate_inp_shexp.weight";
  names.delta_qkv = layer + "attn_qkv.weight";
  names.delta_z = layer + "attn_gate.weight";
  names.delta_b = layer + "ssm_beta.weight";
  names.delta_a = layer + "ssm_alpha.weight";
  names.delta_qkvz = layer + "ssm_in.weight";
  names.delta_ba = layer + "ssm_ba.weight";
  names.delta_conv = layer + "ssm_conv1d.weight";
  names.delta_rate = layer + "ssm_a";
  names.delta_dt_bias = layer + "ssm_dt.bias";
  names.delta_norm = layer + "ssm_norm.weight";
  names.delta_out = layer + "ssm_out.weight";
  names.experts_gate = layer + "ffn_gate_exps.weight";
  names.experts_up = layer + "ffn_up_exps.weight";
  names.experts_down = layer + "ffn_down_exps.weight";
  names.rope_factors = "rope_freqs.weight";
  return names;
}

std::string layer_name(const std::string& pattern, int32_t layer) {
  const size_t at = pattern.find("{}");
  if (at == std::string::npos) {
    return pattern;
  }
  return pattern.substr(0, at) + std::to_string(layer) + pattern.substr(at + 2);
}

std::string expert_name(const std::string& pattern, int32_t layer, int32_t expert) {
  const size_t first = pattern.find("{}");
  const bool one = first == std::string::npos || pattern.find("{}", first + 2) == std::string::npos;
  return layer_name(one ? pattern : layer_name(pattern, layer), expert);
}

void move_layer(DecoderWeightNames& names, const std::string& from, const std::string& to) {
  using Names = DecoderWeightNames;
  constexpr std::string Names::* kMoved[] = {&Names::input_norm,
                                             &Names::q,
                                             &Names::k,
                                             &Names::v,
                                             &Names::o,
                                             &Names::q_norm,
                                             &Names::k_norm,
                                             &Names::ffn_norm,
                                             &Names::gate,
                                             &Names::up,
                                             &Names::down,
                                             &Names::router,
                                             &Names::choice_bias,
                                             &Names::expert_gate,
                                             &Names::expert_up,
                                             &Names::expert_down,
                                             &Names::experts_gate_up,
                                             &Names::experts_down,
                                             &Names::shared_gate,
                                             &Names::shared_up,
                                             &Names::shared_down,
                                             &Names::shared_scale};
  for (std::string Names::* const member : kMoved) {
    std::string& name = names.*member;
    if (name.starts_with(from)) {
      name.replace(0, from.size(), to);
    }
  }
}

std::string bias_name(const std::string& weight_name) {
  const size_t dot = weight_name.rfind('.');
  return weight_name.substr(0, dot) + ".bias";
}

}  // namespace warprow
