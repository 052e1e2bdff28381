#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two builds on one GPU, alternately: how a change affects the rows of the GPU table (docs/performance.md).

    bench/gpu_pair.py --before OLD/warprow --after build/cuda-release/warprow
    bench/gpu_pair.py ... --models 8B --only decode,step --rounds 5 --output-json pair.json

Every round runs each command with both builds, the order turned around from round to round, so that a card that warms
up or slows down hits both. Prints the medians, the ratio after / before and the smallest and largest of each; for host
times the least of all processes, since other work on the host only adds. Cards differ by 4 %: compare within one run.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import gpu_table

# Decode at these batches; the whole table has more.
BATCHES = "1,32,256"
LEAST = {"host"}  # takes the minimum of several processes, not the median


def pair_jobs(model, iters):
    for job in gpu_table.jobs(model, iters):
        if job.name == "decode":
            arguments = list(job.arguments)
            arguments[arguments.index("--batch-size") + 1] = BATCHES
            yield gpu_table.Job(job.name, arguments, job.values)
        else:
            yield gpu_table.Job(job.name, job.arguments, job.values)


def measure(args):
    """{(model, key): {"before": [values], "after": [values]}}"""
    deadline = time.monotonic() + args.budget
    values = {}
    builds = {"before": args.before, "after": args.after}
    for index in range(args.rounds):
        for model in args.models:
            for job in pair_jobs(model, args.iters):
                if (args.only and job.name not in args.only) or (index > 0 and job.name in args.once):
                    continue
                names = list(builds) if index % 2 == 0 else list(reversed(builds))
                for name in names:
                    left = deadline - time.monotonic()
                    if left < 10:
                        return values
                    args.binary = builds[name]
                    record = gpu_table.run_job(args, model, job, left)
                    print(f"{index} {model} {job.name} {name}: {record.get('failed', 'ok')}, {record['seconds']} s",
                          file=sys.stderr, flush=True)
                    if "result" in record:
                        for key, value in job.values(record["result"]).items():
                            values.setdefault((model, key), {}).setdefault(name, []).append(value)
                if args.output_json:
                    Path(args.output_json).write_text(json.dumps(
                        [{"model": at[0], "key": at[1], **both} for at, both in values.items()], indent=1) + "\n",
                        encoding="utf-8")
    return values


def add_sampling(values):
    """The time that a rule adds to greedy, from the medians, as in the table."""
    for model in {at[0] for at in values}:
        greedy = values.get((model, "with greedy"), {})
        for rule in gpu_table.SAMPLING:
            both = values.get((model, f"with {rule}"), {})
            if rule != "greedy" and all(name in both and name in greedy for name in ("before", "after")):
                values[model, f"{rule}, ms added"] = {
                    name: [statistics.median(both[name]) - statistics.median(greedy[name])]
                    for name in ("before", "after")}


def table(values):
    lines = ["| | before | after | after / before |", "|---|---|---|---|"]
    for (model, key), both in sorted(values.items()):
        if set(both) != {"before", "after"}:
            continue
        pick = min if key in LEAST else statistics.median
        before, after = pick(both["before"]), pick(both["after"])
        shown = [f"{pick(both[name]):.3f} ({min(both[name]):.3f}-{max(both[name]):.3f})" for name in ("before", "after")]
        ratio = f"{after / before:.3f}" if abs(before) > 0.05 else f"{after - before:+.3f}"
        lines.append(f"| {model}: {key} | {shown[0]} | {shown[1]} | {ratio} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True, help="the binary of the old build")
    parser.add_argument("--after", required=True, help="the binary of the new build")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(gpu_table.MODELS), help="0.6B,8B")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="names of commands: decode,step")
    parser.add_argument("--once", type=lambda text: text.split(","), default=["prefill", "throughput"],
                        help="commands that run in the first round only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iters", type=int, default=3, help="measured runs of each batch in a command")
    parser.add_argument("--budget", type=float, default=900, help="seconds for everything")
    parser.add_argument("--output-json", help="file for every value")
    parser.add_argument("more", nargs="*", help="flags for every command, after --")
    args = parser.parse_args()
    print(gpu_table.said_by(["nvidia-smi", "--query-gpu=name,uuid,driver_version", "--format=csv,noheader"]))
    for name in ("before", "after"):
        print(f"{name}: {gpu_table.said_by([getattr(args, name), '--version'])}")
    values = measure(args)
    add_sampling(values)
    print("\n" + table(values))


if __name__ == "__main__":
    main()
