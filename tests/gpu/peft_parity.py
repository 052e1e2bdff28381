# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters that PEFT saves, against PEFT with the same random weights.

    python3 tests/gpu/peft_parity.py --warprow build/cuda-release/warprow [--tensor-parallel-size N]

Needs N GPUs, torch, transformers and peft. Each case has a small model and an adapter with other ranks, scales and targets.
In float32, on the CPU and the GPU, log-probabilities of prompts and answers differ from PEFT's by 1e-4 at most. In bf16 the
error is at most 1.5 times that of PEFT in bf16.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import peft
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent))
from transformers_parity import greedy, logprobs, save  # noqa: E402

PROMPT_LENS = (1, 17, 70)
MAX_TOKENS = 24  # of transformers_parity
LIMIT = 1e-4
WORSE = 1.5

SIZE = dict(hidden_size=256, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=384,
            vocab_size=1024, rms_norm_eps=1e-6, max_position_embeddings=2048, tie_word_embeddings=False)  # fmt: skip
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "llama": (transformers.LlamaConfig, {}, dict(r=16, lora_alpha=32, target_modules=ALL)),
    "llama rslora": (transformers.LlamaConfig, {}, dict(
        r=8, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "v_proj"])),
    "llama regex": (transformers.LlamaConfig, {}, dict(
        r=4, lora_alpha=16, target_modules=r".*layers\.[02]\.(self_attn|mlp)\.(q|o|up|down)_proj",
        rank_pattern={r"layers\.0\..*": 12, "o_proj": 12}, alpha_pattern={"down_proj": 40})),
    "qwen2": (transformers.Qwen2Config, {}, dict(r=5, lora_alpha=7, target_modules="all-linear")),
    "qwen3": (transformers.Qwen3Config, dict(head_dim=128), dict(r=16, lora_alpha=16, target_modules=ALL)),
    "phi3": (transformers.Phi3Config, dict(pad_token_id=0), dict(
        r=16, lora_alpha=8, target_modules=["qkv_proj", "gate_up_proj", "down_proj"])),
}  # fmt: skip


def random_pair(name, folder):
    """The base model, saved, and the adapter, saved; as a PEFT model in float32 whose weights bf16 holds exactly."""
    config_class, more, lora = CASES[name]
    torch.manual_seed(3)
    config = config_class(**{**SIZE, **more})
    model = transformers.AutoModelForCausalLM.from_config(config).cuda().float().eval()
    with torch.no_grad():
        for parameter_name, p in model.named_parameters():
            if p.dim() == 1:
                bias = parameter_name.endswith("bias")
                p.copy_(torch.randn_like(p) * 0.5 if bias else 1 + 0.1 * torch.randn_like(p))
            else:
                p.normal_(0, 0.5 if "embed" in parameter_name else 1 / math.sqrt(p.shape[1]))
            p.copy_(p.bfloat16().float())
    model.bfloat16()
    save(model, folder / "base")
    model = peft.get_peft_model(model.float(), peft.LoraConfig(task_type="CAUSAL_LM", **lora)).eval()
    with torch.no_grad():
        for parameter_name, p in model.named_parameters():
            if "lora_A" in parameter_name:
                p.normal_(0, 1 / math.sqrt(p.shape[1]))
            elif "lora_B" in parameter_name:
                p.normal_(0, 0.3 / math.sqrt(p.shape[1]))
            else:
                continue
            p.copy_(p.bfloat16().float())
    model.save_pretrained(folder / "adapter")
    return model


def answers_of(binary, folder, requests, device, dtype, ranks):
    lines = folder / "prompts.jsonl"
    lines.write_text("".join(json.dumps(r) + "\n" for r in requests))
    command = [binary, "generate", "-m", str(folder / "base"), "--lora", str(folder / "adapter"), "--dtype", dtype,
               "--device", device, "--output", "json", "--prompts-file", str(lines), "--max-model-len", "256",
               "--kv-cache-memory-bytes", "256MiB", "--max-num-seqs", "32",
               "--tensor-parallel-size", str(ranks)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        print(" ".join(command), done.stdout[-1000:], done.stderr[-2000:])
        return None
    return [json.loads(line)["choices"][0] for line in done.stdout.splitlines()]


def compare(binary, name, ranks):
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model = random_pair(name, folder)
        generator = torch.Generator().manual_seed(2)
        prompts = [torch.randint(3, 1024, (n,), generator=generator).tolist() for n in PROMPT_LENS]
        tokens = [greedy(model, p) for p in prompts]
        exact = [logprobs(model, p, t) for p, t in zip(prompts, tokens)]
        model.bfloat16()
        bf16 = [logprobs(model, p, t) for p, t in zip(prompts, tokens)]
        fields = {"temperature": 0, "logprobs": 5, "ignore_eos": True}
        requests = [{"prompt": p, "max_tokens": MAX_TOKENS, **fields} for p in prompts]
        for p, t in zip(prompts, tokens):
            requests += [{"prompt": p + t[:i], "max_tokens": 1, **fields} for i in range(MAX_TOKENS)]
        good = True
        for device, dtype in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bfloat16")):
            answers = answers_of(binary, folder, requests, device, dtype, ranks)
            if answers is None:
                good = False
                continue
            ours, theirs, flips = [], [], 0
            for p in range(len(prompts)):
                for i in range(MAX_TOKENS):
                    answer = answers[len(prompts) + p * MAX_TOKENS + i]
                    for entry in answer["logprobs"][0]["top"]:
                        want = float(exact[p][i, entry["token_id"]])
                        ours.append(abs(entry["logprob"] - want))
                        theirs.append(abs(float(bf16[p][i, entry["token_id"]]) - want))
                    flips += answer["token_ids"][0] != tokens[p][i]
                    if dtype == "float32":  # decoding, up to the first other token
                        flips += answers[p]["token_ids"][i] != tokens[p][i]
                        for entry in answers[p]["logprobs"][i]["top"]:
                            ours.append(abs(entry["logprob"] - float(exact[p][i, entry["token_id"]])))
            rms = [math.sqrt(sum(e * e for e in errors) / len(errors)) for errors in (ours, theirs)]
            passed = max(ours) <= LIMIT and flips == 0 if dtype == "float32" else rms[0] <= WORSE * rms[1]
            good = good and passed
            print(f"{name:13} {device:4} {dtype:8} off by {max(ours):.2e} at most, {rms[0]:.2e} on average; PEFT in "
                  f"bf16 {rms[1]:.2e}; other tokens {flips} {'' if passed else 'FAIL'}", flush=True)  # fmt: skip
        return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warprow", required=True, help="the built program")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--tensor-parallel-size", type=int, default=1, dest="ranks")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU")
    print(f"peft {peft.__version__}, transformers {transformers.__version__}, {torch.cuda.get_device_name()}")
    passed = [compare(options.warprow, name, options.ranks) for name in options.cases.split(",")]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
