#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Continuous batching against one request at a time: equal answers, the speed-up, and the number of steps.

usage: bench/batch_vs_single.py [--binary build/cpu-release/warprow] [--model smollm2] [--prompts 200] [--rounds 3]

Both run the same prompts of mixed length (at most 32 new tokens each) through --prompts-file, alternately. Prints medians
of output tokens per second, their ratio and the ratio of steps. Exits 1 if an answer differs.
"""
import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time

WORDS = ("the a of and river stone light code engine token batch memory slow quick seven north winter paper answer "
         "why how explain write list city garden number story model").split()


def make_prompts(count):
    rng = random.Random(1)
    for _ in range(count):
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 60)))
        yield {"prompt": text, "max_tokens": rng.randint(1, 32), "temperature": 0}


def run(args, path, max_num_seqs):
    command = [args.binary, "generate", "-m", args.model, "--prompts-file", path, "--max-num-seqs", str(max_num_seqs),
               "--no-enable-prefix-caching", "--stats", "--output", "json"]
    start = time.monotonic()
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    seconds = time.monotonic() - start
    results = [json.loads(line) for line in output.splitlines()]
    tokens = [result["choices"][0]["token_ids"] for result in results]
    return tokens, sum(map(len, tokens)) / seconds, results[-1]["stats"]["steps"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="build/cpu-release/warprow")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(prompt) + "\n" for prompt in make_prompts(args.prompts))
        file.flush()
        rows = []
        for _ in range(args.rounds):
            batch, batch_speed, batch_steps = run(args, file.name, 32)
            single, single_speed, single_steps = run(args, file.name, 1)
            if batch != single:
                sys.exit("answers differ")
            rows.append((batch_speed, single_speed, batch_speed / single_speed, single_steps / batch_steps))
    batch_speed, single_speed, ratio, steps = (statistics.median(column) for column in zip(*rows))
    print(f"{args.prompts} prompts, medians of {args.rounds}: {batch_speed:.0f} tokens/s at 32 rows, "
          f"{single_speed:.0f} one by one, ratio {ratio:.2f}; {steps:.1f} times fewer steps; answers equal")


if __name__ == "__main__":
    main()
