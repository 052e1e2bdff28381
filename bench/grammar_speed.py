#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of structured output: the same batch with and without a grammar, alternately.

usage: bench/grammar_speed.py [--binary build/cpu-release/warprow] [--model smollm2] [--rows 16] [--tokens 128] [--rounds 5]

Every row draws exactly --tokens tokens at temperature 1. Under the grammar each answer is a JSON array too long to end;
without one EOS is ignored. Prints medians of output tokens per second between the first and the last token of the batch,
their ratio, and the microseconds of one mask.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile

SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                       "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3}},
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}


def run(args, path):
    command = [args.binary, "generate", "-m", args.model, "--prompts-file", path, "--max-num-seqs", str(args.rows),
               "--no-enable-prefix-caching", "--stats", "--output", "json"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    results = [json.loads(line) for line in output.splitlines()]
    counts = [result["usage"]["completion_tokens"] for result in results if "usage" in result][:args.rows]
    if counts != [args.tokens] * args.rows:
        sys.exit(f"not {args.tokens} tokens each: {counts}")
    longest = max(result["timings"]["predicted_ms"] for result in results if "timings" in result)
    return args.rows * (args.tokens - 1) / longest * 1000, results[-1]["stats"]


def write_lines(args, structured):
    file = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
    for i in range(args.rows):
        line = {"messages": [{"role": "user", "content": "List people as JSON."}], "max_tokens": args.tokens, "temperature": 1,
                "seed": i, "ignore_eos": True}
        if structured:
            line["structured_outputs"] = {"json": SCHEMA}
        file.write(json.dumps(line) + "\n")
    file.flush()
    return file


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="build/cpu-release/warprow")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with write_lines(args, True) as under_grammar, write_lines(args, False) as free:
        rows = []
        for _ in range(args.rounds):
            speed, stats = run(args, under_grammar.name)
            free_speed, _ = run(args, free.name)
            rows.append((speed, free_speed, speed / free_speed, stats["grammar_mask_us"] / stats["grammar_masks"],
                         stats["withheld_rows"]))
    speed, free_speed, ratio, mask_us, withheld = (statistics.median(column) for column in zip(*rows))
    print(f"{args.rows} rows of {args.tokens} tokens, medians of {args.rounds}: {speed:.0f} tokens/s under a grammar, "
          f"{free_speed:.0f} without, ratio {ratio:.3f}; {mask_us:.0f} us a mask, {withheld:.0f} turns lost")


if __name__ == "__main__":
    main()
