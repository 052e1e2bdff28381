#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes model.gguf beside each tiny model's safetensors, with GGUF's own Python package.

usage: make_tiny_gguf.py tests/golden/tiny [MODEL...]   (needs gguf and numpy)

Names, metadata and the order of Q and K rows follow llama.cpp's converters: in the llama family a head's rope
halves are interleaved into pairs. Weights keep their bf16 bits, vectors become f32.
"""
import json
import pathlib
import struct
import sys

import gguf
import numpy as np

ARCHITECTURES = {"LlamaForCausalLM": "llama", "MixtralForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2",
                 "Qwen2MoeForCausalLM": "qwen2moe", "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3moe"}
ARCHITECTURES |= {"Gemma2ForCausalLM": "gemma2", "Gemma3ForCausalLM": "gemma3", "Olmo2ForCausalLM": "olmo2",
                  "GraniteForCausalLM": "granite", "SmolLM3ForCausalLM": "smollm3", "Phi3ForCausalLM": "phi3",
                  "Glm4ForCausalLM": "glm4", "Glm4MoeForCausalLM": "glm4moe", "GptOssForCausalLM": "gpt-oss"}
HYBRIDS = {"Qwen3NextForCausalLM": "qwen3next", "Qwen3_5ForCausalLM": "qwen35", "Qwen3_5ForConditionalGeneration": "qwen35",
           "Qwen3_5MoeForConditionalGeneration": "qwen35moe"}
ARCHITECTURES |= HYBRIDS
PERMUTED = ("llama", "granite", "smollm3")  # Q and K
LAYER = {
    "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.weight": "attn_k.weight", "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.weight": "attn_v.weight", "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight", "block_sparse_moe.gate.weight": "ffn_gate_inp.weight"}
LAYER |= {"mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
          "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
          "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
          "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight"}
LAYER |= {"self_attn.qkv_proj.weight": "attn_qkv.weight", "mlp.gate_up_proj.weight": "ffn_up.weight",
          "pre_feedforward_layernorm.weight": "ffn_norm.weight", "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
          "post_self_attn_layernorm.weight": "post_attention_norm.weight", "post_mlp_layernorm.weight": "post_ffw_norm.weight"}
LAYER |= {"self_attn.sinks": "attn_sinks.weight", "self_attn.o_proj.bias": "attn_output.bias",
          "mlp.router.weight": "ffn_gate_inp.weight", "mlp.router.bias": "ffn_gate_inp.bias"}
LAYER |= {"linear_attn.in_proj_qkv.weight": "attn_qkv.weight", "linear_attn.in_proj_z.weight": "attn_gate.weight",
          "linear_attn.in_proj_b.weight": "ssm_beta.weight", "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
          "linear_attn.in_proj_ba.weight": "ssm_ba.weight", "linear_attn.conv1d.weight": "ssm_conv1d.weight",
          "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.norm.weight": "ssm_norm.weight",
          "linear_attn.out_proj.weight": "ssm_out.weight"}
# A layer's experts are merged into one tensor of each kind.
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
           "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
       "lm_head.weight": "output.weight"}


def read_safetensors(path):
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            assert entry["dtype"] in ("BF16", "U8"), name
            kind = np.uint16 if entry["dtype"] == "BF16" else np.uint8
            bits = np.frombuffer(data[8 + size + begin:8 + size + end], kind).reshape(entry["shape"])
            yield name, bits


def to_pairs(bits, heads):
    rows = bits.reshape(heads, 2, bits.shape[0] // heads // 2, *bits.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(bits.shape))


def gguf_name(name, arch):
    if name.startswith("blk."):
        return name
    if name in TOP:
        return TOP[name]
    _, _, layer, rest = name.split(".", 3)
    if arch in ("gemma2", "gemma3", "olmo2", "glm4moe", "gpt-oss", *HYBRIDS.values()) and rest == "post_attention_layernorm.weight":
        return f"blk.{layer}.post_attention_norm.weight"
    return f"blk.{layer}.{LAYER[rest]}"


def merged_experts(tensors):
    """Yields all tensors; those of the experts of a layer as one, of three dimensions."""
    experts = {}
    for name, bits in tensors:
        if ".experts." in name:
            layer, expert, kind = name.split(".")[2], int(name.split(".")[5]), name.split(".")[6]
            experts.setdefault(f"blk.{layer}.{EXPERTS[kind]}.weight", {})[expert] = bits
        else:
            yield name, bits
    for name, parts in experts.items():
        yield name, np.stack([parts[e] for e in range(len(parts))])


def tiled(values, axis, config, size):
    """Value heads in the order of the key heads, again and again; in safetensors those of a key head follow each other."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    shape = values.shape
    values = values.reshape(*shape[:axis], keys, heads // keys, size, *shape[axis + 1:])
    return np.ascontiguousarray(values.swapaxes(axis, axis + 1).reshape(shape))


def hybrid_tensors(tensors, arch, config):
    """The tensors of a hybrid's text model as its converter writes them: bf16 bits, or float32 values."""
    keys, dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    each = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    size, count = config["linear_value_head_dim"], 2 * keys * dim
    for name, bits in tensors.items():
        name = name.replace("model.language_model.", "model.")
        if not name.startswith(("model.", "lm_head")) or name.startswith("model.visual."):
            continue
        kind = name.rsplit("linear_attn.", 1)[-1]
        if kind == "in_proj_qkvz.weight":
            parts = np.split(bits.reshape(keys, -1, bits.shape[1]), [dim, 2 * dim, 2 * dim + each], 1)
            q, k, v, z = (part.reshape(-1, bits.shape[1]) for part in parts)
            yield name.replace("qkvz", "qkv"), np.concatenate([q, k, v])
            yield name.replace("qkvz", "z"), z
            continue
        if kind == "conv1d.weight":
            bits = bits.reshape(bits.shape[0], -1)
        if arch != "qwen3next":
            if kind in ("in_proj_qkv.weight", "conv1d.weight"):
                bits = np.concatenate([bits[:count], tiled(bits[count:], 0, config, size)])
            elif kind == "in_proj_z.weight":
                bits = tiled(bits, 0, config, size)
            elif kind in ("in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias"):
                bits = tiled(bits, 0, config, 1)
            elif kind == "out_proj.weight":
                bits = tiled(bits, 1, config, size)
        if kind in ("A_log", "conv1d.weight") or name.endswith("norm.weight"):
            bits = floats(bits)
        if kind == "A_log":
            bits = -np.exp(bits)
        elif name.endswith("norm.weight") and kind != "norm.weight":
            bits = bits + np.float32(1)
        yield name, bits


def floats(bits):
    return bits if bits.dtype == np.float32 else (bits.astype(np.uint32) << 16).view(np.float32)


def add_merged_experts(writer, name, bits):
    """A tensor of all experts of a layer, as transformers 5 keeps it: [experts, rows, columns]."""
    layer, kind = name.split(".")[2], name.rsplit(".", 1)[1]
    parts = zip(("ffn_gate_exps", "ffn_up_exps"), np.split(bits, 2, 1)) if kind == "gate_up_proj" else [("ffn_down_exps", bits)]
    for target, part in parts:
        part = np.ascontiguousarray(part)
        writer.add_tensor(f"blk.{layer}.{target}.weight", part.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def add_gpt_oss_experts(writer, name, tensors):
    """Adds what the file has of one tensor of all experts: of gate_up_proj two tensors, of its rows that alternate."""
    layer, kind = name.split(".")[2], name.rsplit(".", 1)[1]
    kinds = ("ffn_gate_exps", "ffn_up_exps") if kind.startswith("gate_up") else ("ffn_down_exps",)
    for i, target in enumerate(kinds):
        def part(rows):
            return np.ascontiguousarray(rows[:, i::len(kinds)])
        target = f"blk.{layer}.{target}"
        if kind.endswith("_bias"):
            writer.add_tensor(target + ".bias", (part(tensors[name]).astype(np.uint32) << 16).view(np.float32))
        elif kind.endswith("_blocks"):
            scales = part(tensors[name.replace("_blocks", "_scales")])
            bytes_of = part(tensors[name])  # [experts, rows, groups, 16]: two neighbours a byte
            numbers = np.stack([bytes_of & 15, bytes_of >> 4], -1).reshape(*bytes_of.shape[:3], 32)
            halves = numbers[..., :16] | numbers[..., 16:] << 4
            blocks = np.concatenate([scales[..., None], halves], -1).reshape(*scales.shape[:2], -1)
            writer.add_tensor(target + ".weight", blocks, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        elif not kind.endswith("_scales"):
            rows = part(tensors[name].swapaxes(1, 2))
            writer.add_tensor(target + ".weight", rows.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def rope_factors(config, rope):
    """Divisors of the rope frequencies, computed like llama.cpp's converter."""
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    freqs = 1.0 / (rope["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float32) / dim))
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    factors = []
    for freq in freqs:
        wavelen = 2 * np.pi / freq
        if wavelen < high:
            factors.append(1.0)
        elif wavelen > low:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wavelen - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def add_family(writer, arch, config, rope):
    """What the converters of single families write beyond the common keys."""
    scaling = rope.get("rope_type")
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if arch == "gemma3":
        writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    if arch == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if arch == "glm4moe":
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if arch in HYBRIDS.values():
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
        writer.add_full_attention_interval(4)
        if arch != "qwen3next":
            writer.add_rope_dimension_sections([11, 11, 10, 0])
    if arch in ("phi3", "glm4", "glm4moe", *HYBRIDS.values()):
        dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(int(dim * rope.get("partial_rotary_factor", 1.0)))
    if scaling in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
        writer.add_rope_scaling_factor(rope["factor"])
    if scaling in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if scaling == "longrope":
        stretch = config["max_position_embeddings"] / rope["original_max_position_embeddings"]
        writer.add_rope_scaling_attn_factors(
            float(np.sqrt(1 + np.log(stretch) / np.log(rope["original_max_position_embeddings"]))))
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))


def convert(folder):
    config = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES.get(config["architectures"][0])
    config = config.get("text_config", config)
    slides = "sliding_attention" in (config.get("layer_types") or [])
    if arch is None or (slides and arch not in ("gemma2", "gemma3", "gpt-oss")) or folder.name == "qwen3_yarn":
        return
    rope = config.get("rope_parameters") or config
    if config.get("rope_scaling"):
        rope = {"rope_theta": config["rope_theta"], **config["rope_scaling"]}
    rope = rope.get("full_attention", rope)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(folder / "model.gguf", arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config.get("intermediate_size") or config["moe_intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    add_family(writer, arch, config, rope)
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config, rope))
    if "num_experts_per_tok" in config:
        if arch != "glm4moe":
            writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    tensors = dict(read_safetensors(folder / "model.safetensors"))
    if arch == "gpt-oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        for name in [name for name in tensors if ".experts." in name]:
            add_gpt_oss_experts(writer, name, tensors)
        tensors = {name: bits for name, bits in tensors.items() if ".experts." not in name}
    if arch in HYBRIDS.values():
        tensors = dict(hybrid_tensors(tensors, arch, config))
        for name in [name for name in tensors if name.rsplit(".", 1)[1] in ("gate_up_proj", "down_proj")]:
            add_merged_experts(writer, name, tensors.pop(name))
    for name, bits in merged_experts(tensors.items()):
        if config.get("tie_word_embeddings") and name == "lm_head.weight":
            continue
        if arch in PERMUTED and ("q_proj" in name or "k_proj" in name):
            bits = to_pairs(bits, heads if "q_proj" in name else kv_heads)
        if "shared_expert_gate" in name:
            bits = bits.reshape(-1)
        if bits.ndim == 1 or bits.dtype == np.float32 or "ffn_gate_inp" in gguf_name(name, arch):
            values = floats(bits)
            offset = np.float32(1.0 if arch.startswith("gemma") else 0.0)
            writer.add_tensor(gguf_name(name, arch), values + offset)
        else:
            writer.add_tensor(gguf_name(name, arch), bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(folder.name, (folder / "model.gguf").stat().st_size)


only = sys.argv[2:]
for model in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    if not only or model.name in only:
        convert(model)
