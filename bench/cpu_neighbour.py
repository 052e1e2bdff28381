#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode speed while another process spins on one of our cores. It may drop in proportion but must not collapse.

usage: bench/cpu_neighbour.py [--binary build/cpu-release/warprow] [--model smollm2] [--batch-size 1] [--rounds 3]

Alternates between running alone and beside a process that spins on the first core, with one thread per core. With c cores
the neighbour takes half a core, so (c - 0.5) / c is the share of the arithmetic that is left. Prints medians of tokens
per second and their ratio; exits 1 if fewer than --least (0.25) of the tokens per second are left. Peers whose threads wait
for each other at every barrier keep a few percent.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

SPIN = "import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"


def tokens_per_second(args):
    command = [args.binary, "bench", "step", args.model, "--batch-size", str(args.batch_size), "--num-steps", "96",
               "--output", "json"]
    step = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return args.batch_size * 1e6 / step["wall_us"]["mean"]


def beside_a_neighbour(args, core):
    neighbour = subprocess.Popen([sys.executable, "-c", SPIN.format(core=core)])
    try:
        return tokens_per_second(args)
    finally:
        neighbour.kill()
        neighbour.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="build/cpu-release/warprow")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.25)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    alone, beside = [], []
    for _ in range(args.rounds):
        alone.append(tokens_per_second(args))
        beside.append(beside_a_neighbour(args, cores[0]))
    ratio = statistics.median(beside) / statistics.median(alone)
    print(f"{len(cores)} cores, batch {args.batch_size}: {statistics.median(alone):.0f} tokens/s alone, "
          f"{statistics.median(beside):.0f} beside a neighbour, ratio {ratio:.2f}")
    if ratio < args.least:
        sys.exit(f"less than {args.least} of it is left")


if __name__ == "__main__":
    main()
