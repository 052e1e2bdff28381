#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`warprow simulate` beside a real server, under the same arrivals.

    bench/simulate_vs_serve.py --rounds 3 --output-json simulate.json
    bench/simulate_vs_serve.py --from simulate.json

A round measures the cost table of this machine (`warprow bench costs`), starts a server, and for each load runs `warprow bench
serve`, then `warprow simulate` over the arrivals that the client noted. Prints the medians of the rounds. The loads are seconds
of random prompts, so that the machine's speed matters as little as possible; another process on the cores still spoils them, so
there are several rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from local_server import LocalServer

# name: flags of `bench serve`, and of the server and the simulation
LOADS = {
    "4 requests/s, 128 in, 64 out": (["--request-rate", "4", "--num-prompts", "40", "--random-input-len", "128", "--random-output-len", "64"], []),
    "10 requests/s, 64 in, 32 out": (["--request-rate", "10", "--num-prompts", "80", "--random-input-len", "64", "--random-output-len", "32"], []),
    "16 at once, 240 in, 33 out": (["--num-prompts", "16", "--random-input-len", "240", "--random-output-len", "33"], []),
    "8 at a time, 200 in, 48 out": (["--num-prompts", "40", "--max-concurrency", "8", "--random-input-len", "200", "--random-output-len", "48"], []),
    "16 at once, 60 KV blocks": (["--num-prompts", "16", "--random-input-len", "64", "--random-output-len", "64"], ["--kv-cache-memory-bytes", "22118400", "--max-model-len", "512"]),
}
METRICS = ["mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "median_itl_ms", "output_throughput", "duration"]
COMMON = ["--max-model-len", "2048"]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


def measure_load(args, folder, costs, name, seed):
    load, flags = LOADS[name]
    result = Path(folder) / "serve.json"
    with LocalServer(args.warprow, args.model, *COMMON, *args.flags, *flags) as server:
        run(args.warprow, "bench", "serve", "--port", server.port, *load, "--seed", seed, "--ignore-eos", "--num-warmups", 2,
            "--save-detailed", "--result-filename", result, "--percentile-metrics", "ttft,tpot,itl,e2el")
        before = json.loads(result.read_text(encoding="utf-8"))
        preemptions = 0
        metrics = run(sys.executable, "-c", f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{server.port}/metrics').read().decode())")
        for line in metrics.splitlines():
            if line.startswith("vllm:num_preemptions_total"):
                preemptions = float(line.split()[-1])
    more = ["--max-concurrency", load[load.index("--max-concurrency") + 1]] if "--max-concurrency" in load else []
    if more:  # a client's limit makes the arrivals: those of the real run are not given
        arrivals = [*load, "--seed", seed]
    else:
        arrivals = ["--trace", result]
    simulated = json.loads(run(args.warprow, "simulate", args.model, "--costs", costs, *COMMON, *args.flags, *flags, *arrivals,
                               "--output", "json", "--percentile-metrics", "ttft,tpot,itl,e2el"))
    real = {metric: before[metric] for metric in METRICS}
    real["preemptions"] = preemptions
    return real, {metric: simulated[metric] for metric in [*METRICS, "preemptions"]}


def measure(args):
    rounds = []
    names = [name for name in LOADS if not args.only or args.only in name]
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            one = {}
            costs = Path(folder) / "costs.json"
            for name in names:
                if args.each or not one:
                    run(args.warprow, "bench", "costs", args.model, *COMMON, *args.flags, "--max-batch-size", 32, "--num-steps", args.steps,
                        "--context-len", 256, "--output-json", costs)
                real, simulated = measure_load(args, folder, costs, name, number)
                one[name] = {"real": real, "simulated": simulated}
                print(f"round {number + 1}, {name}: " + ", ".join(
                    f"{metric} {real[metric]:.4g} / {simulated[metric]:.4g}" for metric in METRICS), file=sys.stderr, flush=True)
            rounds.append(one)
    return rounds


def table(rounds):
    lines = ["| load | figure | server | simulated | simulated / server, median (each round) |", "|---|---|---|---|---|"]
    for name in rounds[0]:
        for metric in METRICS:
            real = [one[name]["real"][metric] for one in rounds]
            simulated = [one[name]["simulated"][metric] for one in rounds]
            ratios = [s / r for s, r in zip(simulated, real)]
            lines.append(f"| {name} | {metric} | {statistics.median(real):.4g} | {statistics.median(simulated):.4g} | "
                         f"{statistics.median(ratios):.3f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)}) |")
        counts = [(one[name]["real"]["preemptions"], one[name]["simulated"]["preemptions"]) for one in rounds]
        if any(real or simulated for real, simulated in counts):
            lines.append(f"| {name} | preemptions | {', '.join(f'{real:.0f}' for real, _ in counts)} | "
                         f"{', '.join(f'{simulated:.0f}' for _, simulated in counts)} | |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warprow", default="build/cpu-release/warprow")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="measured steps for each point of the cost table")
    parser.add_argument("--each", action="store_true", help="measure the cost table before each load, not once a round")
    parser.add_argument("--only", default="", help="loads with this in their name")
    parser.add_argument("--output-json")
    parser.add_argument("--from", dest="source", help="print the table of an earlier --output-json")
    parser.add_argument("flags", nargs="*", help="flags for all commands, after --")
    args = parser.parse_args()
    if args.source:
        rounds = json.loads(Path(args.source).read_text(encoding="utf-8"))
    else:
        rounds = measure(args)
        if args.output_json:
            Path(args.output_json).write_text(json.dumps(rounds, indent=1), encoding="utf-8")
    print(table(rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
