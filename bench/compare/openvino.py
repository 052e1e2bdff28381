#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""warprow against OpenVINO GenAI on this machine's CPU, alternately, on SmolLM2 Q4_1.

    bench/compare/openvino.py [--binary build/cpu-release/warprow] [--rounds 3] [--output-json FILE]
    bench/compare/openvino.py --from a.json b.json --write     no measuring: writes those results into docs/performance.md

OpenVINO 2026.4.1 is installed from PyPI wheels (hashes pinned) into a virtual environment in the cache and reads the same
GGUF file. Prompts are random and new each time, since it caches prefixes.
"""

import argparse
import json
import sys
from pathlib import Path

import measure
import peers
from measure import Row

ROWS = [
    Row("all", "load", "process start (OpenVINO: its import) to first token, ms", more_is_better=False),
    Row("all", "decode", "decode, batch 1, tokens/s"),
    Row("all", "prefill", "prefill of 512, tokens/s"),
    Row("all", "batch 16", "decode, batch 16, context 256, tokens/s"),
    Row("all", "memory", "peak resident memory, 512 tokens in, 128 out, MB", more_is_better=False),
]

# Runs under the peer's interpreter and prints {row's key: value}.
PEER = """
import json, random, resource, sys, time
start = time.perf_counter()
import numpy, openvino, openvino_genai
pipe = openvino_genai.LLMPipeline(sys.argv[1], "CPU")
rng = random.Random()

def run(prompt_len, output_len, batch=1):
    ids = numpy.array([[rng.randrange(100, 40000) for _ in range(prompt_len)] for _ in range(batch)], dtype=numpy.int64)
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    config = openvino_genai.GenerationConfig(max_new_tokens=output_len, ignore_eos=True, do_sample=False)
    begin = time.perf_counter()
    pipe.generate(inputs, config)
    return time.perf_counter() - begin

run(5, 1)
load = time.perf_counter() - start
run(512, 128)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
run(512, 1)
prefill = sorted(run(512, 1) for _ in range(3))[1]
first = sorted(run(8, 1) for _ in range(3))[1]
whole = sorted(run(8, 129) for _ in range(3))[1]
prompts = sorted(run(240, 1, 16) for _ in range(3))[1]
batch = sorted(run(240, 33, 16) for _ in range(3))[1]
print(json.dumps({"load": load * 1e3, "decode": 128 / (whole - first), "prefill": 512 / prefill, "memory": memory,
                  "batch 16": 16 * 32 / (batch - prompts)}))
"""


def cases(ours):
    model = peers.fetch.fetch(peers.fetch.ITEMS["smollm2"], peers.fetch.cache_dir())
    python = peers.openvino_python()
    prompt = measure.text_of_about(512)
    return [
        ("load", "warprow", lambda: measure.first_output_ms(ours.generate(model, "The capital of France is", 2))),
        ("decode", "warprow", lambda: ours.decode(model, 8, 128, 1)),
        ("prefill", "warprow", lambda: ours.prefill(model, 512)),
        ("batch 16", "warprow", lambda: ours.decode(model, 240, 32, 16)),
        ("memory", "warprow", lambda: measure.peak_memory_mb(ours.generate(model, prompt, 128))),
        ("all", "peer", lambda: json.loads(measure.output_of([python, "-c", PEER, model]).splitlines()[-1])),
    ]


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="build/cpu-release/warprow")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--from", dest="sources", nargs="+", type=Path, help="tabulate these results, measure nothing")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    args = parser.parse_args(argv)
    if args.sources:
        reports = [json.loads(path.read_text()) for path in args.sources]
    else:
        reports = [measure.report(measure.take_turns(cases(measure.Warprow(args.binary)), args.rounds))]
    if args.output_json:
        args.output_json.write_text(json.dumps(reports[-1], indent=1))
    text = measure.table(ROWS, measure.merged(reports), "OpenVINO")
    print(text)
    if args.write:
        measure.write_section(measure.ROOT / "docs" / "performance.md", "bench/compare/openvino.py", text)


if __name__ == "__main__":
    main(sys.argv[1:])
