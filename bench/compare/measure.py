# SPDX-License-Identifier: Apache-2.0
"""Shared by the comparisons: measuring one command, alternating between engines, and the table."""

import contextlib
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
THREADS = len(os.sched_getaffinity(0))
PROMPT = "The old lighthouse stood on a cliff above the grey sea, and every evening its keeper climbed the stairs. "


@dataclass(frozen=True)
class Row:
    group: str  # cases of a group are measured together
    key: str
    label: str
    must: float | None = None  # the goal: of the ratio, or of our value in the row's unit
    aim: float | None = None
    more_is_better: bool = True
    goal_is_ratio: bool = True
    digits: int = 0


class Failure(Exception):
    """Why a measurement failed, in one line."""


def output_of(command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Failure(f"{Path(command[0]).name}: exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def first_output_ms(command):
    """Seconds from process start to the first byte on standard output."""
    start = time.perf_counter()
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          stdin=subprocess.DEVNULL) as process:
        got = process.stdout.read(1)
        took = time.perf_counter() - start
        process.stdout.read()
    if process.returncode != 0 or not got:
        raise Failure(f"{Path(command[0]).name}: exit {process.returncode}")
    return took * 1e3


# A process counts the memory of the one that started it until it is replaced. So a small one starts the command.
PEAK = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss)
"""


def peak_memory_mb(command):
    """Peak resident set of a completed process."""
    status, kib = output_of([sys.executable, "-I", "-S", "-c", PEAK, *command]).split()
    if status != "0":
        raise Failure(f"{Path(command[0]).name}: exit {status}")
    return int(kib) * 1024 / 1e6


def text_of_about(num_toks):
    """English text of about this many SmolLM2 tokens. The repeated sentence has 22."""
    return PROMPT * (num_toks // 22)


class Warprow:
    """Our binary with its default settings."""

    def __init__(self, binary):
        self.binary = binary

    def latency(self, model, input_len, output_len, batch_size):
        return json.loads(output_of([self.binary, "bench", "latency", model, "--input-len", input_len, "--output-len",
                                     output_len, "--batch-size", batch_size, "--num-iters-warmup", 1, "--num-iters", 3,
                                     "--output", "json"]))

    def decode(self, model, input_len, num_steps, batch_size):
        step = json.loads(output_of([self.binary, "bench", "step", model, "--input-len", input_len, "--batch-size",
                                     batch_size, "--num-steps-warmup", 4, "--num-steps", num_steps, "--output", "json"]))
        return batch_size * 1e6 / step["wall_us"]["mean"]

    def prefill(self, model, input_len):
        return self.latency(model, input_len, 1, 1)["prompt_tokens_per_second"]

    def serve(self, model, port):
        return [self.binary, "serve", model, "--port", port]

    def generate(self, model, prompt, max_tokens):
        return [self.binary, "generate", "-m", model, "-p", prompt, "--temperature", "0", "--ignore-eos", "--max-tokens",
                max_tokens]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running_server(command, port):
    """A server that answers /health. It is stopped at the end of the block."""
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          stdin=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                if process.poll() is not None:
                    raise Failure(f"{Path(command[0]).name}: exit {process.returncode}")
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield
        finally:
            process.terminate()


def serve_load(client, command, port, prefix, num_prompts, concurrency, input_len, output_len):
    """The results of `warprow bench serve` for a server: {prefix + name: value}."""
    with running_server(command, port), tempfile.NamedTemporaryFile(suffix=".json") as file:
        output_of([client, "bench", "serve", "--port", port, "--num-prompts", num_prompts, "--max-concurrency", concurrency,
                   "--random-input-len", input_len, "--random-output-len", output_len, "--ignore-eos",
                   "--metric-percentiles", "99", "--save-result", "--result-filename", file.name])
        result = json.loads(Path(file.name).read_text())
    return {prefix + "output": result["output_throughput"], prefix + "ttft": result["median_ttft_ms"],
            prefix + "itl": result["median_itl_ms"], prefix + "itl p99": result["p99_itl_ms"],
            prefix + "evenness": result["p99_itl_ms"] / result["median_itl_ms"]}


def take_turns(cases, rounds):
    """cases: [(key, engine, callable)]; a callable returns the key's value, or a dict of several keys' ones. Every round
    measures each once, so that a slow minute hits all of them. Returns {"key engine": [values]}; a case that fails is
    dropped and says why on standard error."""
    values, broken = {}, set()
    for number in range(rounds):
        for key, engine, measure in cases:
            name = f"{key} {engine}"
            if name in broken:
                continue
            try:
                result = measure()
                for one, value in (result if isinstance(result, dict) else {key: result}).items():
                    values.setdefault(f"{one} {engine}", []).append(value)
            except Failure as failure:
                broken.add(name)
                print(f"{name}: {failure}", file=sys.stderr)
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return values


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    family = [next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith(key)), "?")
              for key in ("cpu family", "model\t")]
    return f"{THREADS} cores of {model} (family {family[0]}, model {family[1]})"


def report(values):
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {"date": datetime.date.today().isoformat(), "machine": machine(), "commit": commit.stdout.strip(),
            "values": values}


def merged(reports):
    """Merges the rounds of several runs."""
    values = {}
    for one in reports:
        for key, rounds in one["values"].items():
            values.setdefault(key, []).extend(rounds)
    return values


def verdict(row, ours, ratio):
    if row.must is None:
        return ""
    got = ratio if row.goal_is_ratio else ours
    if got is None:
        return ""
    reached = (lambda goal: got >= goal) if row.more_is_better or row.goal_is_ratio else (lambda goal: got <= goal)
    if row.aim is not None and reached(row.aim):
        return "aim met"
    return "must met" if reached(row.must) else "missed"


def goals(row):
    if row.must is None:
        return ""
    unit = "x" if row.goal_is_ratio else ""
    return " / ".join(f"{goal:g}{unit}" for goal in (row.must, row.aim) if goal is not None)


def table(rows, values, peer):
    """Our median and the peer's, each with its spread in brackets, and our advantage."""
    lines = [f"| | warprow | {peer} | ratio | must / aim | |", "|---|---|---|---|---|---|"]
    for row in rows:
        ours, theirs = (values.get(f"{row.key} {engine}") for engine in ("warprow", "peer"))
        if ours is None and theirs is None:
            continue
        middle = [statistics.median(one) if one else None for one in (ours, theirs)]
        ratio = None
        if None not in middle and min(middle) > 0:
            ratio = middle[0] / middle[1] if row.more_is_better else middle[1] / middle[0]

        def cell(one):
            return "" if not one else (f"{statistics.median(one):,.{row.digits}f} ({min(one):,.{row.digits}f}–"
                                       f"{max(one):,.{row.digits}f})")

        lines.append(f"| {row.label} | {cell(ours)} | {cell(theirs)} | {'' if ratio is None else f'{ratio:.2f}'} | "
                     f"{goals(row)} | {verdict(row, middle[0], ratio)} |")
    return "\n".join(lines)


def write_section(path, name, text):
    """Replaces the text between the marks of `name` in a Markdown file."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    old = path.read_text()
    if begin not in old or end not in old:
        raise SystemExit(f"{path} has no marks {begin.strip()} and {end.strip()}")
    head, rest = old.split(begin)
    path.write_text(head + begin + text + "\n" + end + rest.split(end)[1])
