#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures every row of the GPU table (docs/performance.md) with `warprow bench` and random weights.

    bench/gpu_table.py                                     everything, about 6 minutes on an H200
    bench/gpu_table.py --models 0.6B --only decode,step    a part of it
    bench/gpu_table.py --from a.json b.json                no measuring: one table of several results

Prints the table as Markdown, with the figures of the peer (vLLM 0.26.0 on the same kind of machine) and our goals, and
writes everything that was measured to --output-json, again after each command, so that a run cut short leaves what it
has. A row that was not reached says why. What follows `--` goes to every command: -- --attention-backend native
"""

import argparse
import datetime
import json
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"0.6B": "Qwen3-0.6B", "8B": "Qwen3-8B", "30B-A3B": "Qwen3-30B-A3B", "gpt-oss-20b": "gpt-oss-20b"}
DECODE_BATCHES = (1, 8, 32, 128, 256, 512)
# Added to greedy at batch 128; the peer's rows were taken with the same parameters.
SAMPLING = {
    "greedy": [],
    "top-p + top-k": ["--temperature", "0.8", "--top-p", "0.95", "--top-k", "50"],
    "logprobs 5": ["--logprobs", "5"],
    "penalties": ["--temperature", "0.8", "--repetition-penalty", "1.1", "--presence-penalty", "0.5"],
    "seeded": ["--temperature", "0.8", "--seed", "7"],
}


@dataclass(frozen=True)
class Row:
    model: str
    key: str  # of the measured value
    label: str
    peer: float | None
    must: float | None
    aim: float | None
    more_is_better: bool = False
    digits: int = 2


def decode_rows(model, figures):
    for batch, (peer, must, aim) in zip(DECODE_BATCHES, figures):
        yield Row(model, f"decode {batch}", f"decode, batch {batch}, ms a step", peer, must, aim)


ROWS = [
    *decode_rows("0.6B", [(1.60, 0.95, 0.45), (1.61, 1.05, 0.55), (1.95, 1.25, 0.75), (3.20, 2.0, 1.4),
                          (4.65, 3.3, 2.5), (8.25, 6.2, 4.7)]),
    Row("0.6B", "context 2048", "decode, batch 32, context 2048, ms a step", 3.44, 2.4, 1.6),
    Row("0.6B", "first token", "first token, 1 x 1024, ms", 13.7, 5, 2.5),
    Row("0.6B", "prefill", "prefill, 256 x 1024, k tokens/s", 420, 420, 550, True, 0),
    Row("0.6B", "throughput", "512 x (1024 in + 256 out), k tokens/s", 103, 118, 150, True, 1),
    Row("0.6B", "start", "process start to ready, s", 15.3, 3, 1),
    Row("0.6B", "top-p + top-k", "sampling, batch 128: top-p + top-k, ms added", 0.23, 0.15, 0.05),
    Row("0.6B", "logprobs 5", "same: logprobs 5", 2.1, 0.15, 0.05),
    Row("0.6B", "penalties", "same: repetition + presence penalty", 0.24, 0.12, 0.04),
    Row("0.6B", "seeded", "same: seeded", 0.4, 0.0, 0.0),
    Row("0.6B", "host", "host time of a step, 256 rows, us", None, 60, 20, False, 1),
    Row("0.6B", "idle", "device idle between steps, 256 rows, us", 193, 20, 5, False, 1),
    *decode_rows("8B", [(5.17, 4.2, 3.6), (5.47, 4.4, 3.8), (5.66, 4.8, 4.1), (7.7, 6.4, 5.2), (11.7, 10.0, 8.2),
                        (20.9, 18.5, 16)]),
    Row("8B", "context 2048", "decode, batch 32, context 2048, ms a step", 7.70, 6.9, 6.0),
    Row("8B", "first token", "first token, 1 x 1024, ms", 26.2, 25, 21),
    Row("8B", "prefill", "prefill, 256 x 1024, k tokens/s", 43, 43, 47, True, 1),
    Row("8B", "throughput", "512 x (1024 in + 256 out), k tokens/s", 30.4, 33, 40, True, 1),
    Row("8B", "start", "process start to ready, s", 16.4, 3, 1),
    Row("8B", "top-p + top-k", "sampling, batch 128: top-p + top-k, ms added", 0.35, 0.15, 0.05),
    Row("8B", "logprobs 5", "same: logprobs 5", 0.57, 0.15, 0.05),
    Row("8B", "penalties", "same: repetition + presence penalty", 0.18, 0.12, 0.04),
    Row("8B", "seeded", "same: seeded", 0.16, 0.0, 0.0),
    Row("8B", "host", "host time of a step, 256 rows, us", None, 60, 20, False, 1),
    Row("8B", "idle", "device idle between steps, 256 rows, us", 247, 20, 5, False, 1),
    *decode_rows("30B-A3B", [(4.10, 2.6, 1.9), (9.2, 8.0, 6.9), (15.8, 14.5, 13.2), (18.8, 17.3, 15.5),
                             (21.6, 19, 16.8), (None, None, None)]),
    Row("30B-A3B", "first token", "first token, 1 x 1024, ms", None, None, None),
    Row("30B-A3B", "prefill", "prefill, 256 x 1024, k tokens/s", None, None, None, True, 1),
    Row("30B-A3B", "throughput", "512 x (1024 in + 256 out), k tokens/s", 39.4, 46, 56, True, 1),
    Row("30B-A3B", "start", "process start to ready, s", 85, 4, 1.5),
    *decode_rows("gpt-oss-20b", [(2.97, 1.6, 1.2), (3.36, 2.8, 2.4), (None, 3.9, 3.3), (7.9, 5, 4), (14.1, 7, 5),
                                 (None, None, None)]),
    Row("gpt-oss-20b", "first token", "first token, 1 x 1024, ms", None, None, None),
    Row("gpt-oss-20b", "prefill", "prefill, 256 x 1024, k tokens/s", None, None, None, True, 1),
    Row("gpt-oss-20b", "throughput", "512 x (1024 in + 256 out), k tokens/s", 57.6, 70, 85, True, 1),
    Row("gpt-oss-20b", "start", "process start to ready, s", 130, 4, 1.5),
]


@dataclass(frozen=True)
class Job:
    """One command, and a function from its JSON to the values of rows."""

    name: str
    arguments: list
    values: object  # result -> {key: value}
    tries: int = 1  # processes; the one with the least host time counts


def jobs(model, num_iters=2):
    iters = ["--num-iters-warmup", "1", "--num-iters", str(num_iters)]

    def decode(result):
        return {f"decode {one['batch_size']}": one["decode_ms_per_step"] for one in result["results"]}

    yield Job("decode", ["latency", "--input-len", "128", "--output-len", "256", "--batch-size",
                         ",".join(map(str, DECODE_BATCHES)), *iters], decode)
    yield Job("step", ["step", "--batch-size", "256", "--input-len", "128", "--num-steps", "100"],
              lambda result: {"host": result["host_us"]["median"],
                              **({"idle": result["device"]["idle_us"]["median"]} if "device" in result else {})},
              tries=5)
    yield Job("first token", ["latency", "--input-len", "1024", "--output-len", "1", "--batch-size", "1",
                              "--num-iters-warmup", "5", "--num-iters", "20"],
              lambda result: {"first token": 1e3 * result["first_token_latency"]})
    yield Job("context 2048", ["latency", "--input-len", "2048", "--output-len", "128", "--batch-size", "32", *iters],
              lambda result: {"context 2048": result["decode_ms_per_step"]})
    yield Job("prefill", ["latency", "--input-len", "1024", "--output-len", "1", "--batch-size", "256", *iters],
              lambda result: {"prefill": 1e-3 * result["prompt_tokens_per_second"]})
    yield Job("start", ["startup", "--num-iters-cold", "0", "--num-iters-warmup", "0", "--num-iters-warm", "3"],
              lambda result: {"start": result["warm_startup_percentiles"]["50"],
                              "first answer": result["warm_first_token_percentiles"]["50"]})
    for rule, flags in SAMPLING.items():  # the same few runs of each, so that only the rule differs
        yield Job(rule, ["latency", "--input-len", "128", "--output-len", "256", "--batch-size", "128", *flags, *iters],
                  lambda result, rule=rule: {f"with {rule}": result["decode_ms_per_step"]})
    yield Job("throughput", ["throughput", "--input-len", "1024", "--output-len", "256", "--num-prompts", "512",
                             "--num-iters-warmup", "1"],
              lambda result: {"throughput": 1e-3 * result["tokens_per_second"]})


def run_job(args, model, job, timeout):
    """The record of one command: its command line, and its JSON or the error."""
    command = [args.binary, "bench", job.arguments[0], str(ROOT / "bench" / "models" / MODELS[model]), "--load-format",
               "dummy", "--device", args.device, "--max-model-len", "4096", *job.arguments[1:], *args.more,
               "--output", "json"]
    record = {"model": model, "job": job.name, "command": shlex.join(command)}
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        record["failed"] = f"not done after {timeout:.0f} s"
    except OSError as error:
        record["failed"] = str(error)
    else:
        if done.returncode == 0:
            record["result"] = json.loads(done.stdout)
        else:
            said = done.stderr.strip().splitlines() or ["nothing said"]
            record["failed"] = f"exit {done.returncode}: {said[-1]}"
    record["seconds"] = round(time.monotonic() - begin, 1)
    return record


def run_tries(args, model, job, deadline):
    """The record with the least host time, with the host times of all tries."""
    records = []
    for _ in range(job.tries):
        left = deadline - time.monotonic()
        if left < 5:
            records.append({"model": model, "job": job.name, "failed": "out of time"})
            break
        records.append(run_job(args, model, job, left))
    good = [record for record in records if "result" in record]
    if job.tries == 1 or not good:
        return records[0]
    best = min(good, key=lambda record: record["result"]["host_us"]["median"])
    best["host_us_of_tries"] = [round(record["result"]["host_us"]["median"], 1) for record in good]
    return best


def measure(args):
    deadline = time.monotonic() + args.budget
    report = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
              "machine": said_by(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]),
              "version": said_by([args.binary, "--version"]), "records": []}
    for model in args.models:
        for job in jobs(model, args.iters):
            if args.only and job.name not in args.only:
                continue
            record = run_tries(args, model, job, deadline)
            report["records"].append(record)
            print(f"{model} {job.name}: {record.get('failed', 'ok')}, {record.get('seconds', 0)} s", file=sys.stderr)
            if args.output_json:
                Path(args.output_json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def said_by(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]
    except (OSError, IndexError):
        return "unknown"


def values_of(reports):
    """{(model, key): value or error}. Later records of a job replace earlier ones unless they failed."""
    by_job = {(model, job.name): job for model in MODELS for job in jobs(model)}
    values = {}
    for record in (record for report in reports for record in report["records"]):
        model, job = record["model"], by_job[record["model"], record["job"]]
        if "result" in record:
            values.update({(model, key): value for key, value in job.values(record["result"]).items()})
        else:
            for key in keys_of(job.name):
                values.setdefault((model, key), record["failed"])
    for model in MODELS:
        greedy = values.get((model, "with greedy"))
        for rule in SAMPLING:
            sampled = values.get((model, f"with {rule}"))
            if isinstance(greedy, float) and isinstance(sampled, float):
                values[model, rule] = sampled - greedy
    return values


def keys_of(job_name):
    """The rows without a value when a command fails."""
    return {"decode": [f"decode {batch}" for batch in DECODE_BATCHES], "step": ["host", "idle"]}.get(job_name,
                                                                                                    [job_name])


def verdict(row, value):
    if not isinstance(value, float):
        return ""
    noise = 0.02 if row.must == 0 else 0  # with a goal of 0, runs may still differ by a percent
    for name, goal in (("aim", row.aim), ("must", row.must)):
        if goal is not None and (value >= goal if row.more_is_better else value <= goal + noise):
            return f"{name} met"
    return "missed"


def table(reports):
    values = values_of(reports)
    lines = ["| | vLLM 0.26 | must | aim | warprow | |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        value = values.get((row.model, row.key))
        shown = "not run" if value is None else value if isinstance(value, str) else f"{value:.{row.digits}f}"
        goals = ["" if goal is None else f"{goal:g}" for goal in (row.peer, row.must, row.aim)]
        lines.append(f"| {row.model}: {row.label} | {' | '.join(goals)} | {shown} | {verdict(row, value)} |")
    return "\n".join(lines)


STEP_PARTS = {"step": "wall_us", "host": "host_us", "execute_model": "execute_model_us",
              "sample_tokens": "sample_tokens_us", "take_output": "take_output_us",
              "schedule and deliver": "schedule_us", "host waits": "wait_us"}


def step_table(reports):
    """Median times of a steady step of 256 rows, in microseconds."""
    records = {record["model"]: record for report in reports for record in report["records"]
               if record["job"] == "step" and "result" in record}
    steps = {model: record["result"] for model, record in records.items()}
    lines = ["| us a step, 256 rows | " + " | ".join(steps) + " |", "|---|" + "---|" * len(steps)]
    for label, field in STEP_PARTS.items():
        lines.append(f"| {label} | " + " | ".join(f"{step[field]['median']:.1f}" for step in steps.values()) + " |")
    lines.append("| host, each process | " + " | ".join(", ".join(f"{us:.0f}" for us in sorted(
        record.get("host_us_of_tries", []))) for record in records.values()) + " |")
    lines.append("| driver calls | " + " | ".join(f"{step.get('driver_calls_per_step', 0):.2f}"
                                                  for step in steps.values()) + " |")
    return "\n".join(lines) if steps else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "build" / "cuda-release" / "warprow"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS), help="0.6B,8B,30B-A3B")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="names of commands: decode,step")
    parser.add_argument("--iters", type=int, default=3, help="measured runs of each batch")
    parser.add_argument("--budget", type=float, default=900, help="seconds for everything")
    parser.add_argument("--output-json", help="file for everything that was measured")
    parser.add_argument("--from", nargs="+", dest="reports", default=[], help="results to show instead of measuring")
    parser.add_argument("more", nargs="*", help="flags for every command, after --")
    args = parser.parse_args()
    unknown = [model for model in args.models if model not in MODELS]
    if unknown:
        parser.error(f"--models: {unknown[0]} is none of {', '.join(MODELS)}")
    if args.reports:
        reports = [json.loads(Path(path).read_text(encoding="utf-8")) for path in args.reports]
    else:
        reports = [measure(args)]
    for report in reports:
        print(f"{report['date']}, {report['machine']}, {report['version']}")
    print("\n" + table(reports) + "\n\n" + step_table(reports))


if __name__ == "__main__":
    main()
