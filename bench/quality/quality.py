#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What SmolLM2's answers lose in each weight format and with an 8-bit KV cache (docs/quantization.md, "What it costs").

    bench/quality/quality.py                                 all conditions, about 10 minutes on two cores
    bench/quality/quality.py --only int4_g32,q4_k            some
    bench/quality/quality.py --output-json quality.json --write    ... and the table into docs/quantization.md

Needs numpy and gguf, 2 GB of disk and 4 GB of memory. Checkpoints are made from the default model's weights: its exact
values (a Q4_1 file is all that is at hand) in float32 are the reference. Every condition reads the goldens' texts
(tests/golden/smollm2_hf_fp32.json: prompts and the 48 tokens after them) and the first tokens of LICENSE as prompts, in
float32 and as it runs by default.

Columns: |d| is the mean difference of logprobs, of the golden top five of transformers (as the test SmolLm2.FastPathStaysClose
takes it) and of LICENSE's tokens against the reference; engine is the largest difference, of the goldens' tokens, between
warprow in float32 and a double-precision Llama with the values that the checkpoint stands for, rounding inputs and cache
as the condition does: what is not the format's but ours.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import checkpoints
import formats
import numpy as np
from llama64 import Llama64, same, token_rounded

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fetch  # noqa: E402

BOUND = 0.15  # of |d| on the goldens
EXACT = 1e-3  # of the engine and of the reference
ROUNDED = 5e-2  # of the engine's mean where inputs or the cache are rounded: an element between two e4m3 numbers may go either way
MARGIN = 0.2  # of the golden's two likeliest tokens, below which the fast path may take the other
TEXT_TOKENS = 1024
TOP = 20  # the most that prompt_logprobs gives


@dataclass
class Condition:
    name: str
    label: str
    checkpoint: str
    flags: tuple = ()
    round_inputs: object = same
    round_cache: object = same
    quantises: bool = False  # --quantization fp8


F8_TOKENS = token_rounded(formats.f8_round)
KV = "--kv-cache-dtype"
CONDITIONS = [
    Condition("f32", "float32", "f32"),
    Condition("bf16", "bf16", "bf16"),
    Condition("fp8_block", "FP8, blocks of 128 x 128", "fp8_block", (), token_rounded(formats.f8_round, 128)),
    Condition("fp8_channel", "FP8, a scale for a row", "fp8_channel", (), F8_TOKENS),
    Condition("fp8_kept", "same, `--fp8-activations off`", "fp8_channel", ("--fp8-activations", "off")),
    Condition("fp8_load", "bf16, `--quantization fp8`", "bf16", ("--quantization", "fp8"), F8_TOKENS, quantises=True),
    Condition("int8_channel", "INT8, a scale for a row", "int8_channel"),
    Condition("int8_g32", "INT8, groups of 32", "int8_g32"),
    Condition("int4_g32", "INT4, groups of 32, symmetric", "int4_g32"),
    Condition("int4_g32_zeros", "INT4, groups of 32, zero points", "int4_g32_zeros"),
    Condition("q8_0", "Q8_0", "q8_0"),
    Condition("q6_k", "Q6_K", "q6_k"),
    Condition("q4_k", "Q4_K", "q4_k"),
    Condition("kv_e4m3", f"float32, `{KV} fp8`", "f32", (KV, "fp8"), same, formats.f8_round),
    Condition("kv_e5m2", f"float32, `{KV} fp8_e5m2`", "f32", (KV, "fp8_e5m2"), same, formats.f8_e5m2_round),
    Condition("kv_scales", f"float32, `{KV} fp8 --calculate-kv-scales`", "f32", (KV, "fp8", "--calculate-kv-scales"), same, None),
]


def run(binary, model, flags, texts):
    """The logprob of each token but the first, and its twenty likeliest, for each text."""
    lines = [{"prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": TOP} for ids in texts]
    command = [binary, "generate", "-m", model, "--device", "cpu", "--max-model-len", 2048, "--prompts-file", "-",
               "--output", "json", *flags]
    done = subprocess.run([str(part) for part in command], input="".join(json.dumps(line) + "\n" for line in lines),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode != 0 or len(results) != len(texts):
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}")
    return [[None, *result["prompt_logprobs"][1:]] for result in results]


def own(answer):
    return np.array([entry["logprob"] for entry in answer[1:]])


@dataclass
class Goldens:
    prompts: list

    @property
    def texts(self):
        return [prompt["hf_ids"] + prompt["hf_greedy"] for prompt in self.prompts]

    def difference(self, answers):
        """Mean |difference| of the golden top five. One that is not among the twenty likeliest counts as the last of them."""
        differences = []
        for prompt, answer in zip(self.prompts, answers):
            for step, golden in enumerate(prompt["hf_top5"]):
                top = {entry["token_id"]: entry["logprob"] for entry in answer[len(prompt["hf_ids"]) + step]["top"]}
                differences += [abs(top.get(token, min(top.values())) - logprob) for token, logprob in golden]
        return float(np.mean(differences))

    def other_tokens(self, answers):
        """The golden's margins where another token than the golden's is the likeliest."""
        return [prompt["hf_margin_top1_top2"][step] for prompt, answer in zip(self.prompts, answers)
                for step, token in enumerate(prompt["hf_greedy"])
                if answer[len(prompt["hf_ids"]) + step]["top"][0]["token_id"] != token]


def exact_differences(condition, twin, goldens, answers):
    if condition.quantises:
        tensors = {name: formats.f8_channel(values.astype(np.float64)).values if checkpoints.is_linear(name) else values
                   for name, values in twin.tensors.items()}
        twin = checkpoints.Weights(twin.config, tensors)
    model = Llama64(twin.config, twin.tensors, condition.round_inputs, condition.round_cache)
    return np.concatenate([np.abs(model.logprobs(ids)[np.arange(len(ids) - 1), ids[1:]] - own(answer))
                           for ids, answer in zip(goldens.texts, answers)])


def measure(condition, model, twin, binary, goldens, text):
    row = {"label": condition.label}
    for dtype in ("float32", "auto"):
        *answers, long = run(binary, model, ["--dtype", dtype, *condition.flags], [*goldens.texts, text])
        others = goldens.other_tokens(answers)
        row[dtype] = {"golden": goldens.difference(answers), "others": len(others), "margin": max(others, default=0.0),
                      "golden_ppl": float(np.exp(-np.mean(np.concatenate([own(answer) for answer in answers])))),
                      "text": own(long).tolist()}
        if dtype == "float32" and condition.round_cache:
            differences = exact_differences(condition, twin, goldens, answers)
            row["engine_max"], row["engine_mean"] = float(differences.max()), float(differences.mean())
            row["rounds"] = condition.round_inputs is not same or condition.round_cache is not same
    return row


def engine_cell(row):
    if "engine_max" not in row:
        return "-"
    if row["rounds"]:
        verdict = "" if row["engine_mean"] <= ROUNDED else " over"
        return f"mean {row['engine_mean']:.1e}{verdict}"
    return f"{row['engine_max']:.0e}{'' if row['engine_max'] <= EXACT else ' over'}"


def table(rows):
    reference = np.array(rows[0]["float32"]["text"])

    def cells(cell, bound):
        text = np.array(cell["text"])
        golden = f"{cell['golden']:.4f}{'' if cell['golden'] <= bound else ' over'}"
        return [golden, f"{cell['others']} ({cell['margin']:.2f})", f"{np.abs(text - reference).mean():.4f}",
                f"{cell['golden_ppl']:.3f}", f"{np.exp(-text.mean()):.3f}"]

    lines = ["| | engine | float32: \\|d\\| golden | other tokens of 144 (largest margin) | \\|d\\| text | perplexity golden | "
             "text | default: \\|d\\| golden | other tokens | \\|d\\| text | perplexity golden | text |", "|---" * 12 + "|"]
    for row in rows:
        bound = EXACT if row is rows[0] else BOUND
        lines.append("| " + " | ".join([row["label"], engine_cell(row), *cells(row["float32"], bound),
                                        *cells(row["auto"], BOUND)]) + " |")
    return "\n".join(lines)


def write_section(path, text):
    first, last = "<!-- bench/quality/quality.py -->\n", "<!-- /bench/quality/quality.py -->"
    before, rest = path.read_text().split(first)
    path.write_text(before + first + text + "\n" + last + rest.split(last)[1])


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.split("\n\n", 1)[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/cpu-release/warprow")
    parser.add_argument("--only", default=",".join(condition.name for condition in CONDITIONS),
                        help="conditions: " + ", ".join(condition.name for condition in CONDITIONS))
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--write", action="store_true", help="put the table into docs/quantization.md")
    args = parser.parse_args(argv)
    only = args.only.split(",")
    if unknown := set(only) - {condition.name for condition in CONDITIONS}:
        parser.error(f"--only: no condition {sorted(unknown)}")
    chosen = [condition for condition in CONDITIONS if condition.name in {"f32", *only}]
    goldens = Goldens(json.loads((ROOT / "tests/golden/smollm2_hf_fp32.json").read_text())["prompts"])
    source = fetch.fetch(fetch.ITEMS["smollm2"], fetch.cache_dir())
    tokens = subprocess.run([args.binary, "tokenize", "-m", str(source), "--prompt-file", str(ROOT / "LICENSE"), "--output",
                             "json"], check=True, stdout=subprocess.PIPE).stdout
    text = json.loads(tokens)["token_ids"][:TEXT_TOKENS]
    weights = checkpoints.read_gguf(source)
    writers = checkpoints.writers(source)
    rows = {}
    for checkpoint in dict.fromkeys(condition.checkpoint for condition in chosen):
        folder = Path(tempfile.mkdtemp())
        try:
            model, twin = writers[checkpoint](weights, folder / "model")
            for condition in (condition for condition in chosen if condition.checkpoint == checkpoint):
                rows[condition.name] = row = measure(condition, model, twin, args.binary, goldens, text)
                print(f"{condition.name}: float32 {row['float32']['golden']:.4f}, default {row['auto']['golden']:.4f}, "
                      f"engine {engine_cell(row)}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(folder)
    in_order = [rows[condition.name] for condition in chosen]
    if args.output_json:
        args.output_json.write_text(json.dumps(in_order, indent=1))
    print(table(in_order))
    if args.write:
        write_section(ROOT / "docs" / "quantization.md", table(in_order))


if __name__ == "__main__":
    main(sys.argv[1:])
