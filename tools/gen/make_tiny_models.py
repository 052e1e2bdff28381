#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tiny random models with Hugging Face transformers, and their answers, as golden data for tests/golden.

usage: make_tiny_models.py OUT.tar   (needs torch and transformers; writes one folder per model into the archive)

Each folder holds config.json, model.safetensors (bf16, computed in float32; gpt_oss_mxfp4's experts in MXFP4) and
golden.json:
  prompts[].ids, .greedy (tokens by argmax), .steps[] = [[token, logit], ...] of the 20 largest logits per greedy step.
tools/gen/make_tiny_gguf.py adds model.gguf to each.
"""
import io
import itertools
import json
import pathlib
import sys
import tarfile
import tempfile
import zlib

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM,
    Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3Config, Qwen3ForCausalLM,
    Qwen3MoeConfig, Qwen3MoeForCausalLM)

COMMON = dict(vocab_size=128, max_position_embeddings=256, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
              attn_implementation="eager")


def models():
    small = dict(COMMON, hidden_size=32, intermediate_size=56, num_hidden_layers=2)
    yield "llama_gqa_tied", LlamaForCausalLM(LlamaConfig(
        **dict(small, hidden_size=48), num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True))
    yield "llama_mha", LlamaForCausalLM(LlamaConfig(
        **small, num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=False))
    yield "llama3_rope", LlamaForCausalLM(LlamaConfig(
        **small, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=64)))
    yield "mistral_window", MistralForCausalLM(MistralConfig(
        **small, num_attention_heads=4, num_key_value_heads=2, sliding_window=20, tie_word_embeddings=False))
    yield "qwen2", Qwen2ForCausalLM(Qwen2Config(
        **small, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True))
    yield "qwen3", Qwen3ForCausalLM(Qwen3Config(
        **small, num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=False))
    yield "qwen3_two_groups", Qwen3ForCausalLM(Qwen3Config(
        **dict(small, num_hidden_layers=4), num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        tie_word_embeddings=True, use_sliding_window=True, sliding_window=20, max_window_layers=2,
        layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"]))
    yield "qwen3_moe", Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **small, num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
        num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True, mlp_only_layers=[0]))
    yield "mixtral", MixtralForCausalLM(MixtralConfig(
        **dict(small, intermediate_size=64), num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        num_local_experts=4, num_experts_per_tok=2))
    yield "qwen2_moe", Qwen2MoeForCausalLM(Qwen2MoeConfig(
        **small, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=56,
        decoder_sparse_step=2))


def families():
    """Each with random numbers of its own."""
    common = dict(COMMON, hidden_size=32, intermediate_size=56, pad_token_id=0)
    small = dict(common, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    four = dict(small, num_hidden_layers=4)
    yield "gemma2", transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **four, head_dim=8, sliding_window=20, query_pre_attn_scalar=8, attn_logit_softcapping=2.0,
        final_logit_softcapping=6.0))
    yield "gemma3", transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        **dict(four, num_hidden_layers=6, intermediate_size=40), head_dim=8, sliding_window=20, query_pre_attn_scalar=8,
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=4.0, rope_theta=1000.0),
            sliding_attention=dict(rope_type="default", rope_theta=50.0))))
    yield "olmo2", transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**small))
    yield "granite", transformers.GraniteForCausalLM(transformers.GraniteConfig(
        **small, embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.4, logits_scaling=1.5))
    yield "smollm3", transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(**four, rope_parameters=dict(
        rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=64)))
    for name, original in ("phi3_short", 128), ("phi3_long", 16):
        yield name, transformers.Phi3ForCausalLM(transformers.Phi3Config(
            **small, original_max_position_embeddings=original, partial_rotary_factor=0.5, rope_parameters=dict(
                rope_type="longrope", rope_theta=100.0, short_factor=[1.0, 1.5], long_factor=[1.25, 7.5])))
    yield "phi3_window", transformers.Phi3ForCausalLM(transformers.Phi3Config(**small, sliding_window=20))
    yield "glm", transformers.GlmForCausalLM(transformers.GlmConfig(**small, head_dim=16, attention_bias=True))
    yield "glm4", transformers.Glm4ForCausalLM(transformers.Glm4Config(**small, head_dim=16))
    glm_moe = dict(common, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=24,
                   num_experts_per_tok=3, moe_intermediate_size=32)
    yield "glm4_moe", transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(
        **dict(glm_moe, hidden_size=48), attention_bias=True, use_qk_norm=True, n_routed_experts=12, n_group=4,
        topk_group=2, n_shared_experts=2, routed_scaling_factor=1.75))
    yield "glm4_moe_plain", transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(
        **dict(glm_moe, hidden_size=80), n_routed_experts=7, norm_topk_prob=False, first_k_dense_replace=2,
        tie_word_embeddings=True))
    gemma4 = dict(four, head_dim=8, global_head_dim=16, sliding_window=20)
    yield "gemma4_inputs", transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(
        **dict(gemma4, hidden_size=48, num_hidden_layers=7, num_key_value_heads=1), vocab_size_per_layer_input=128,
        hidden_size_per_layer_input=8, num_kv_shared_layers=3, use_double_wide_mlp=True, final_logit_softcapping=6.0,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
                     "sliding_attention", "sliding_attention", "full_attention"]))
    yield "gemma4_moe", transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(
        **dict(gemma4, intermediate_size=64), hidden_size_per_layer_input=0, attention_k_eq_v=True,
        num_global_key_value_heads=1, enable_moe_block=True, num_experts=9, top_k_experts=3, moe_intermediate_size=32,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]))
    yield "qwen3_yarn", Qwen3ForCausalLM(Qwen3Config(**small, head_dim=16, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=64, beta_fast=8.0,
        truncate=False)))

    for name, sizes in ("gpt_oss", small), ("gpt_oss_mxfp4", four):
        yield name, transformers.GptOssForCausalLM(transformers.GptOssConfig(
            **dict(sizes, hidden_size=96, intermediate_size=64), head_dim=16, sliding_window=20, num_local_experts=4,
            num_experts_per_tok=2, rope_parameters=dict(
                rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=64, beta_fast=32.0,
                beta_slow=1.0, truncate=False)))


    # Hybrids: two value heads a key head, sizes of which one is no multiple of the other's.
    hybrid = dict(four, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
                  linear_value_head_dim=32, linear_conv_kernel_dim=4)
    rope = dict(rope_type="default", rope_theta=1000.0, partial_rotary_factor=0.25)
    experts = dict(moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=6, num_experts_per_tok=2)
    yield "qwen3_next", transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(
        **dict(hybrid, head_dim=24, linear_key_head_dim=8, linear_value_head_dim=24), **experts, rope_parameters=dict(
            rope, partial_rotary_factor=0.5), tie_word_embeddings=True, mlp_only_layers=[1]))
    yield "qwen3_5_text", transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(
        **hybrid, rope_parameters=rope, tie_word_embeddings=True))
    for name, kind, extra in ("qwen3_5", "Qwen3_5", {}), ("qwen3_5_moe", "Qwen3_5Moe", experts):
        text = {k: v for k, v in dict(hybrid, **extra).items() if extra == {} or k != "intermediate_size"}
        config = getattr(transformers, kind + "Config")(
            text_config=dict(text, rope_parameters=dict(rope, mrope_section=[2, 1, 1], mrope_interleaved=True)),
            vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32,
                               num_position_embeddings=16), tie_word_embeddings=False)
        yield name, getattr(transformers, kind + "ForConditionalGeneration")(config)


# A long rope depends on the length of the sequence: all are on one side of the original length.
PROMPT_LENGTHS = {"phi3_long": (17, 31, 45)}


def randomise(model, generator):
    gpt_oss = model.config.model_type == "gpt_oss"  # its sinks and the limit of its gates should matter
    gemma = model.config.model_type.startswith("gemma")  # its embeddings are scaled
    zero_centred = ("gemma2", "gemma3", "qwen3_next", "qwen3_5")  # norms are differences to 1
    differences = model.config.model_type.startswith(zero_centred)
    buffers = ((n, b) for n, b in model.named_buffers() if n.endswith(("e_score_correction_bias", "layer_scalar")))
    for name, parameter in itertools.chain(model.named_parameters(), buffers):
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("A_log"):
            value = -1.0 + noise  # states that last
        elif "norm" in name or "scal" in name:
            value = (0.0 if differences and "linear_attn" not in name else 1.0) + 0.2 * noise
        else:
            larger = gpt_oss and (name.endswith("sinks") or name.endswith("gate_up_proj"))
            value = (0.05 if gemma and "embed" in name else 0.6 if larger else 0.25) * noise
        parameter.data = value.to(torch.bfloat16).to(torch.float32)


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def to_mxfp4(model):
    """Rounds the experts' matrices to MXFP4. Returns them as the published checkpoints have them: numbers, the even
    input in the low bits, and a scale for 32 inputs."""
    tensors = {}
    for name, parameter in model.named_parameters():
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            continue
        rows = parameter.data.transpose(1, 2)  # [experts, outputs, inputs]
        groups = rows.reshape(*rows.shape[:2], -1, 32)
        exponents = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True))) - 2
        numbers = groups / 2.0 ** exponents
        nearest = (numbers.abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
        parameter.data = (E2M1[nearest] * numbers.sign() * 2.0 ** exponents).reshape(rows.shape).transpose(1, 2)
        codes = (nearest + 8 * (numbers < 0)).to(torch.uint8)
        tensors[name + "_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        tensors[name + "_scales"] = (exponents + 127).to(torch.uint8).squeeze(-1)
    return tensors


def write_mxfp4(folder, tensors):
    """Replaces the matrices, and spells config.json as on the hub."""
    path = pathlib.Path(folder) / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(path).items() if name + "_blocks" not in tensors}
    save_file({**kept, **{name: tensor.contiguous() for name, tensor in tensors.items()}}, path, metadata={"format": "pt"})
    path = pathlib.Path(folder) / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "initial_context_length": 64,
               "experts_per_token": config["num_experts_per_tok"], "swiglu_limit": 7.0,
               "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
                   "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


@torch.no_grad()
def answers(model, ids, steps):
    greedy, rows = [], []
    for _ in range(steps):
        logits = model(torch.tensor([ids + greedy]), use_cache=False).logits[0, -1].float()
        top = torch.topk(logits, 20)
        rows.append([[int(i), round(float(v), 6)] for i, v in zip(top.indices, top.values)])
        greedy.append(int(top.indices[0]))
    return {"ids": ids, "greedy": greedy, "steps": rows[:6]}


def main():
    torch.set_num_threads(1)
    shared = torch.Generator().manual_seed(20261120)
    streams = itertools.chain(
        ((name, model, shared) for name, model in models()),
        ((name, model, torch.Generator().manual_seed(zlib.crc32(name.encode()))) for name, model in families()))
    with tarfile.open(sys.argv[1], "w") as archive:
        for name, model, generator in streams:
            model.eval()
            randomise(model, generator)
            model.tie_weights()
            mxfp4 = to_mxfp4(model) if name.endswith("_mxfp4") else {}
            lengths = PROMPT_LENGTHS.get(name, (1, 7, 45))
            prompts = [torch.randint(3, 128, (n,), generator=generator).tolist() for n in lengths]
            golden = {"made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
                      "prompts": [answers(model, ids, 24) for ids in prompts]}
            with tempfile.TemporaryDirectory() as folder:
                model.to(torch.bfloat16).save_pretrained(folder)
                if mxfp4:
                    write_mxfp4(folder, mxfp4)
                (pathlib.Path(folder) / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
                for path in sorted(pathlib.Path(folder).iterdir()):
                    if path.name == "generation_config.json":
                        continue
                    data = path.read_bytes()
                    info = tarfile.TarInfo(f"{name}/{path.name}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
            print(name, sum(p.numel() for p in model.parameters()), golden["prompts"][1]["greedy"][:8])


if __name__ == "__main__":
    main()
