#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What SmolLM2's answers lose in each weight format and with an 8-bit KV cache (docs/quantization.md, "What it costs").

    bench/quality/quality.py                                 all conditions; about a minute of CPU time each
    bench/quality/quality.py --only int4_g32,q4_k            some
    bench/quality/quality.py --output-json quality.json --write    ... kept after each, and the table into docs/quantization.md

Needs numpy and gguf, 2 GB of disk and 4 GB of memory. Checkpoints are made from the default model's weights: its exact
values (a Q4_1 file is all that is at hand) in float32 are the reference. Every condition reads the goldens' texts
(tests/golden/smollm2_hf_fp32.json: prompts and the 48 tokens after them) and the first tokens of LICENSE as prompts, in
float32 and as it runs by default.

Columns, in float32: engine is the largest difference, of the goldens' tokens, between warprow and a double-precision Llama with
the values that the checkpoint stands for. Where inputs or the cache are rounded, as the double does too, it is the mean, and
noise is that between the double and the same in single precision: an element between two e4m3 numbers may go either way.
|d| is the mean difference of logprobs from the unquantised weights: of transformers' top five of the goldens' 144 steps, and of
the text's tokens, with the largest. Perplexity is the text's. What the default dtype adds: |d| of the same top fives from the
same checkpoint in float32 (at most 0.15), the steps whose likeliest token is another with the largest float32 margin there
(under 0.2), and the text's perplexity. A bound that is missed says "over".
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import checkpoints
import formats
import numpy as np
from llama64 import Llama32, Llama64, same, token_rounded

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fetch  # noqa: E402

BOUND = 0.15  # of the fast path's |d|
EXACT = 1e-3  # of the engine
MARGIN = 0.2  # of the two likeliest tokens in float32, below which the fast path may take the other
TEXT_TOKENS = 1024
CALIBRATION_TEXTS = 24  # of checkpoints.CALIBRATION_LENGTH tokens, from README.md and docs/, for formats that are fitted to inputs
TOP = 20  # the most that prompt_logprobs gives


@dataclass
class Condition:
    name: str
    label: str
    checkpoint: str
    flags: tuple = ()
    round_inputs: object = same
    round_cache: object = same
    quantises: object = None  # what --quantization makes of a matrix
    of_head: bool = False  # and of the head, which is the embeddings

    @property
    def rounds(self):
        return self.round_inputs is not same or self.round_cache is not same


F8_TOKENS = token_rounded(formats.f8_round)
KV = "--kv-cache-dtype"
CONDITIONS = [
    Condition("f32", "float32", "f32"),
    Condition("bf16", "bf16", "bf16"),
    Condition("fp8_block", "FP8, blocks of 128 x 128", "fp8_block", (), token_rounded(formats.f8_round, 128)),
    Condition("fp8_channel", "FP8, a scale for a row", "fp8_channel", (), F8_TOKENS),
    Condition("fp8_kept", "same, `--fp8-activations off`", "fp8_channel", ("--fp8-activations", "off")),
    Condition("fp8_load", "bf16, `--quantization fp8`", "bf16", ("--quantization", "fp8"), F8_TOKENS, quantises=formats.f8_at_load),
    Condition("int8_load", "bf16, `--quantization int8`", "bf16", ("--quantization", "int8"), quantises=formats.i8_groups,
              of_head=True),
    Condition("int8_channel", "INT8, a scale for a row", "int8_channel"),
    Condition("int8_token", "INT8, a scale for a row, for inputs of 8 bits", "int8_token"),
    Condition("int8_g32", "INT8, groups of 32", "int8_g32"),
    Condition("int4_g32", "INT4, groups of 32, symmetric", "int4_g32"),
    Condition("int4_g32_zeros", "INT4, groups of 32, zero points", "int4_g32_zeros"),
    Condition("int4_fitted", "INT4, groups of 32, symmetric, fitted to inputs", "int4_fitted"),
    Condition("int4_zeros_fitted", "INT4, groups of 32, zero points, fitted to inputs", "int4_zeros_fitted"),
    Condition("q8_0", "Q8_0", "q8_0"),
    Condition("q4_0", "Q4_0", "q4_0"),
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


def token_ids(binary, model, file):
    command = [binary, "tokenize", "-m", str(model), "--prompt-file", str(ROOT / file), "--output", "json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["token_ids"]


def calibration_ids(binary, model):
    """Texts from the beginnings of documents, as many from each."""
    files = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
    texts = []
    for ids in (token_ids(binary, model, file) for file in files):
        texts += [ids[first:first + checkpoints.CALIBRATION_LENGTH] for first in (0, checkpoints.CALIBRATION_LENGTH)]
    return np.concatenate([text for text in texts if len(text) == checkpoints.CALIBRATION_LENGTH][:CALIBRATION_TEXTS])


def own(answer):
    return np.array([entry["logprob"] for entry in answer[1:]])


@dataclass
class Goldens:
    prompts: list

    @property
    def texts(self):
        return [prompt["hf_ids"] + prompt["hf_greedy"] for prompt in self.prompts]

    def steps(self, answers):
        """What stood at each place of a golden token, and the golden top five there."""
        for prompt, answer in zip(self.prompts, answers):
            for step, golden in enumerate(prompt["hf_top5"]):
                yield answer[len(prompt["hf_ids"]) + step]["top"], golden

    def golden_logprobs(self):
        return np.array([logprob for prompt in self.prompts for golden in prompt["hf_top5"] for _, logprob in golden])

    def logprobs(self, answers):
        """Of the golden top five. One that is not among the twenty likeliest counts as the last of them."""
        out = []
        for top, golden in self.steps(answers):
            known = {entry["token_id"]: entry["logprob"] for entry in top}
            out += [known.get(token, min(known.values())) for token, _ in golden]
        return np.array(out)


def likeliest(goldens, answers):
    return np.array([top[0]["token_id"] for top, _ in goldens.steps(answers)])


def margins(goldens, answers):
    return np.array([top[0]["logprob"] - top[1]["logprob"] for top, _ in goldens.steps(answers)])


def exact_differences(condition, twin, goldens, answers):
    if condition.quantises:
        def is_quantised(name):
            return checkpoints.is_linear(name) or (condition.of_head and name == checkpoints.TIED_HEAD)

        tensors = {name: condition.quantises(values.astype(np.float64)).values if is_quantised(name) else values
                   for name, values in twin.tensors.items()}
        twin = checkpoints.Weights(twin.config, tensors)
    def all_logprobs(kind):
        model = kind(twin.config, twin.tensors, condition.round_inputs, condition.round_cache)
        return np.concatenate([model.logprobs(ids)[np.arange(len(ids) - 1), ids[1:]] for ids in goldens.texts])

    exact = all_logprobs(Llama64)
    differences = {"engine": np.abs(exact - np.concatenate([own(answer) for answer in answers]))}
    if condition.rounds:
        differences["noise"] = np.abs(exact - all_logprobs(Llama32))
    return differences


def measure(condition, model, twin, binary, goldens, text):
    """The format's part is measured in float32; the fast path's as the difference that the default dtype makes. That rounds no
    inputs to FP8 on a CPU, so it is compared with float32 that rounds none."""
    *exact, exact_text = run(binary, model, ["--dtype", "float32", *condition.flags], [*goldens.texts, text])
    *fast, fast_text = run(binary, model, condition.flags, [*goldens.texts, text])
    slow = exact
    if condition.round_inputs is not same:
        slow = run(binary, model, ["--dtype", "float32", *condition.flags, "--fp8-activations", "off"], goldens.texts)
    others = margins(goldens, slow)[likeliest(goldens, slow) != likeliest(goldens, fast)]
    row = {"label": condition.label, "golden": mean_abs(goldens.logprobs(exact) - goldens.golden_logprobs()),
           "fast": mean_abs(goldens.logprobs(fast) - goldens.logprobs(slow)),
           "others": len(others), "margin": float(others.max(initial=0)),
           "text": own(exact_text).tolist(), "fast_text": own(fast_text).tolist()}
    if condition.round_cache:
        differences = exact_differences(condition, twin, goldens, exact)
        row["engine"] = float(differences["engine"].max())
        if condition.rounds:
            row["engine"], row["noise"] = (float(differences[key].mean()) for key in ("engine", "noise"))
    return row


def mean_abs(values):
    return float(np.abs(values).mean())


def engine_cell(row):
    if "engine" not in row:
        return "-"
    if "noise" in row:
        return f"{row['engine']:.3f} (noise {row['noise']:.3f}){'' if row['engine'] <= 2 * row['noise'] else ' over'}"
    return f"{row['engine']:.0e}{'' if row['engine'] <= EXACT else ' over'}"


def perplexity(logprobs):
    return float(np.exp(-np.mean(logprobs)))


def cells(row, reference):
    """As in HEADER."""
    away = np.abs(np.array(row["text"]) - reference["text"])
    over = " over" if row["fast"] > BOUND or row["margin"] >= MARGIN else ""
    return [row["label"], engine_cell(row), f"{row['golden']:.4f}", f"{away.mean():.4f}", f"{away.max():.2f}",
            f"{perplexity(row['text']):.2f}", f"{row['fast']:.4f}", f"{row['others']} ({row['margin']:.2f}){over}",
            f"{perplexity(row['fast_text']):.2f}"]


HEADER = ["weights", "engine", "\\|d\\| goldens", "\\|d\\| text", "largest", "perplexity", "fast path: \\|d\\| goldens",
          "other tokens (margin)", "perplexity"]


def table(rows):
    lines = [HEADER, ["---"] * len(HEADER), *(cells(row, rows[0]) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
    parser.add_argument("--output-json", type=Path, help="keep the results there; what it has is not measured again")
    parser.add_argument("--write", action="store_true", help="put the table into docs/quantization.md")
    args = parser.parse_args(argv)
    only = args.only.split(",")
    if unknown := set(only) - {condition.name for condition in CONDITIONS}:
        parser.error(f"--only: no condition {sorted(unknown)}")
    chosen = [condition for condition in CONDITIONS if condition.name in {"f32", *only}]
    goldens = Goldens(json.loads((ROOT / "tests/golden/smollm2_hf_fp32.json").read_text())["prompts"])
    source = fetch.fetch(fetch.ITEMS["smollm2"], fetch.cache_dir())
    text = token_ids(args.binary, source, "LICENSE")[:TEXT_TOKENS]
    calibration = calibration_ids(args.binary, source)
    weights = checkpoints.read_gguf(source)
    writers = checkpoints.writers(source, calibration)
    rows = json.loads(args.output_json.read_text()) if args.output_json and args.output_json.exists() else {}
    missing = [condition for condition in chosen if condition.name not in rows]
    for checkpoint in dict.fromkeys(condition.checkpoint for condition in missing):
        with tempfile.TemporaryDirectory() as folder:
            model, twin = writers[checkpoint](weights, Path(folder) / "model")
            for condition in (condition for condition in missing if condition.checkpoint == checkpoint):
                rows[condition.name] = measure(condition, model, twin, args.binary, goldens, text)
                print("  ".join(cells(rows[condition.name], rows["f32"])), file=sys.stderr, flush=True)
                if args.output_json:
                    args.output_json.write_text(json.dumps(rows, indent=1))
    lines = table([rows[condition.name] for condition in chosen])
    print(lines)
    if args.write:
        write_section(ROOT / "docs" / "quantization.md", lines)


if __name__ == "__main__":
    main(sys.argv[1:])
