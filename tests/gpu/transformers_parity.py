# SPDX-License-Identifier: Apache-2.0
"""Whole models on the GPU against Hugging Face transformers with the same random weights.

    python3 tests/gpu/transformers_parity.py --warprow build/cuda-release/warprow [--size small]

Needs a GPU, torch, transformers and safetensors. For each family and size, with random bf16 weights, it takes greedy
tokens by transformers in float32. At every position on those tokens it compares the logprobs of warprow (from
decoding up to the first other token, and from prefills of every prefix) and of transformers in bf16 against
those of float32. It fails if warprow's error exceeds 1.5 times that of transformers in bf16, or if it takes another
token where float32's gap is 0.05 or more.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

MAX_TOKENS = 24
PROMPT_LENS = (1, 16, 17, 33, 75, 130)
GAP = 0.05
WORSE = 1.5

COMMON = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "use_cache": True}
SIZES = {
    "small": {
        "llama": dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                      intermediate_size=512, vocab_size=1024, head_dim=64, tie_word_embeddings=False),
        "qwen2": dict(hidden_size=384, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2,
                      intermediate_size=768, vocab_size=1024, tie_word_embeddings=False),
        "qwen3": dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                      intermediate_size=512, vocab_size=1024, head_dim=128, tie_word_embeddings=True),
    },
    "0.6b": {
        "llama": dict(hidden_size=1280, num_hidden_layers=24, num_attention_heads=20, num_key_value_heads=4,
                      intermediate_size=4608, vocab_size=32000, head_dim=64, tie_word_embeddings=False),
        "qwen2": dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
                      intermediate_size=4864, vocab_size=151936, tie_word_embeddings=True),
        "qwen3": dict(hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
                      intermediate_size=3072, vocab_size=151936, head_dim=128, tie_word_embeddings=True),
    },
}  # fmt: skip
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def random_model(family, size):
    """A model whose matrices keep the size of their input and whose logits have a standard deviation of about 1."""
    config_class, model_class = CLASSES[family]
    config = config_class(**SIZES[size][family], **COMMON, torch_dtype="bfloat16")
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = model_class(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                bias = name.endswith("bias")
                p.copy_(torch.randn_like(p) * 0.5 if bias else 1 + 0.1 * torch.randn_like(p))
            elif "embed" in name and not config.tie_word_embeddings:
                p.normal_(0, 0.5)
            else:
                p.normal_(0, 1 / math.sqrt(p.shape[1]))
    return model


def save(model, folder):
    """Writes the model's files. The tokenizer names each id, since all prompts are ids."""
    model.save_pretrained(folder)
    vocab = {f"t{i}": i for i in range(model.config.vocab_size)}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text("{}")


@torch.no_grad()
def greedy(model, prompt):
    ids = torch.tensor([prompt], device="cuda")
    cache, tokens = None, []
    for _ in range(MAX_TOKENS):
        out = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        tokens.append(int(out.logits[0, -1].argmax()))
        ids = torch.tensor([tokens[-1:]], device="cuda")
    return tokens


@torch.no_grad()
def logprobs(model, prompt, tokens):
    """float64 [MAX_TOKENS, vocab], teacher forced."""
    ids = torch.tensor([prompt + tokens[:-1]], device="cuda")
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :]
    return torch.log_softmax(logits.double(), dim=-1)


def run_warprow(binary, folder, requests, extra):
    lines = folder / "prompts.jsonl"
    lines.write_text("".join(json.dumps(r) + "\n" for r in requests))
    # torch holds memory of the same GPU, so warprow gets a part of it.
    memory = ["--gpu-memory-utilization", "0.3", "--kv-cache-memory-bytes", "2GiB", "--max-num-seqs", "64"]
    command = [binary, "generate", "-m", str(folder), "--device", "cuda", "--output", "json"]
    command += ["--prompts-file", str(lines), *memory, *extra]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [json.loads(line)["choices"][0] for line in done.stdout.splitlines()]


class Errors:
    def __init__(self):
        self.values = []

    def add(self, error):
        self.values.append(abs(error))

    def rms(self):
        return math.sqrt(sum(e * e for e in self.values) / len(self.values))

    def __str__(self):
        return f"rms {self.rms():.4f} max {max(self.values):.4f} of {len(self.values)}"


def compare(binary, family, size, extra):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = random_model(family, size)
        save(model, folder)
        vocab = model.config.vocab_size
        generator = torch.Generator().manual_seed(2)
        prompts = [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in PROMPT_LENS]
        model.float()
        tokens = [greedy(model, p) for p in prompts]
        exact = [logprobs(model, p, t) for p, t in zip(prompts, tokens)]
        model.bfloat16()
        bf16 = [logprobs(model, p, t) for p, t in zip(prompts, tokens)]
        del model
        torch.cuda.empty_cache()

        fields = {"temperature": 0, "logprobs": 5, "ignore_eos": True}
        requests = [{"prompt": p, "max_tokens": MAX_TOKENS, **fields} for p in prompts]
        for p, t in zip(prompts, tokens):
            requests += [{"prompt": p + t[:i], "max_tokens": 1, **fields} for i in range(MAX_TOKENS)]
        answers = run_warprow(binary, folder, requests, extra)

    ours, decoded, theirs = Errors(), Errors(), Errors()
    flips, bad = 0, []
    their_flips = sum(int(b[i].argmax()) != t[i] for b, t in zip(bf16, tokens) for i in range(MAX_TOKENS))

    def check(answer, at, p, i, errors):
        """Compares one position. Returns False if the token differs from float32's."""
        for entry in answer["logprobs"][at]["top"]:
            want = float(exact[p][i, entry["token_id"]])
            errors.add(entry["logprob"] - want)
            if errors is ours:
                theirs.add(float(bf16[p][i, entry["token_id"]]) - want)
        token = answer["token_ids"][at]
        if token == tokens[p][i]:
            return True
        gap = float(exact[p][i, tokens[p][i]] - exact[p][i, token])
        if gap >= GAP:
            bad.append(f"prompt {p} output {i}: token {token} for {tokens[p][i]}, gap {gap:.3f}")
        return False

    for p in range(len(prompts)):
        for i in range(MAX_TOKENS):
            if not check(answers[p], i, p, i, decoded):
                break
    rest = iter(answers[len(prompts) :])
    for p in range(len(prompts)):
        for i in range(MAX_TOKENS):
            flips += not check(next(rest), 0, p, i, ours)
    print(f"{family:6} {size:5}  warprow {ours}; decoding {decoded}; transformers bf16 {theirs}; "
          f"ratio {ours.rms() / theirs.rms():.2f} decoding {decoded.rms() / theirs.rms():.2f}; "
          f"other tokens {flips} (transformers bf16 {their_flips}) of {len(prompts) * MAX_TOKENS}", flush=True)  # fmt: skip
    for errors, what in ((ours, "prefill"), (decoded, "decode")):
        if errors.rms() > WORSE * theirs.rms():
            bad.append(f"{what}: error {errors.rms():.4f} is above {WORSE} x {theirs.rms():.4f}")
    for line in bad:
        print(f"    FAIL {line}")
    return not bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warprow", required=True, help="the built program")
    parser.add_argument("--size", choices=[*SIZES, "all"], default="all")
    parser.add_argument("--families", default="llama,qwen2,qwen3")
    parser.add_argument("--flags", default="", help="more flags for warprow, separated by blanks")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    sizes = SIZES if options.size == "all" else [options.size]
    passed = [compare(options.warprow, f, s, options.flags.split()) for s in sizes for f in options.families.split(",")]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
