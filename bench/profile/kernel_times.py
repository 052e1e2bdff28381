#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the time of a steady decode step, or of a step of prompts, goes on the GPU: its kernels, with their times.

    bench/profile/kernel_times.py --model Qwen3-8B --batch-size 32,128 [-- --attention-backend native]
    bench/profile/kernel_times.py --prompts --model Qwen3-8B --batch-size 8 --input-len 1024
    bench/profile/kernel_times.py --layer --model gpt-oss-20b --batch-size 8

Runs `warprow bench step`, or for prompts `warprow bench latency`, with random weights and reads the kernels' times from
CUPTI (Python's nvidia-cuda-cupti or the CUDA toolkit's, with nvcc for its headers). Kernels overlap where the next one
may begin early; a kernel's own time here is what it adds to the step: from the end of the one before (or its own begin,
if later) to its end. What is left of the step is idle. Measuring slows a step of many small kernels by a few percent.
With --layer the kernels of a layer in order, means over layers: what each adds, how long it lasts, and how long before the
end of the one before it begins.
"""

import argparse
import collections
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent / "models"
FIRST_KERNEL = "UnpackStep"  # in the name of the first kernel of each step
STEPS = 24
# Parts of the summary, and what the names of their kernels contain; the first that fits.
PARTS = {"linears": r"sm80_gemm|sm90_gemm|nvjet|splitK|gemm|cutlass", "delta": r"advance_heads", "attention": r"mha|decode_kernel|attention|combine|extend|Prefill",
         "norm, gate": r"norm|gate", "rope + KV write": r"write_heads|rope",
         "sampling": r"scan|finish|mass|sample|Epilogue", "inputs": r"UnpackStep|Prologue|tables|look_up|gather"}


def cupti_home():
    """The folder with include/cupti.h and a library folder."""
    homes = [Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13"]
    nvcc = shutil.which("nvcc")
    if nvcc:
        toolkit = Path(nvcc).resolve().parent.parent
        homes += [toolkit / "extras" / "CUPTI", toolkit]
    for home in homes:
        if (home / "include" / "cupti.h").exists():
            return home
    sys.exit("no CUPTI: install nvidia-cuda-cupti or a CUDA toolkit")


def build(folder):
    home = cupti_home()
    library = next((path for name in ("lib", "lib64") for path in sorted((home / name).glob("libcupti.so*"))), None)
    if library is None:
        sys.exit(f"no libcupti.so below {home}")
    out = Path(folder) / "libkernel_log.so"
    nvcc = shutil.which("nvcc")
    includes = [home / "include"] + ([Path(nvcc).resolve().parent.parent / "include"] if nvcc else [])
    subprocess.run(["g++", "-std=c++20", "-O1", "-shared", "-fPIC", *(f"-I{path}" for path in includes),
                    str(HERE / "kernel_log.cpp"), "-o", str(out), str(library), f"-Wl,-rpath,{library.parent}"],
                   check=True)
    return out


def run(args, library, model, batch, folder):
    """The kernels of a run: [(begin, end, name)] in the order of their begin."""
    log = Path(folder) / "kernels"
    if args.prompts:
        kind, counts = "latency", ["--output-len", "1", "--num-iters-warmup", "2", "--num-iters", "8"]
    else:
        kind, counts = "step", ["--num-steps-warmup", "8", "--num-steps", STEPS]
    command = [args.binary, "bench", kind, str(MODELS / model), "--load-format", "dummy", "--device", "cuda",
               "--max-model-len", max(4096, int(args.input_len) + 8), "--batch-size", batch, "--input-len",
               args.input_len, *counts, *args.more]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          env=dict(os.environ, CUDA_INJECTION64_PATH=str(library), KERNEL_LOG=str(log)))
    if done.returncode != 0 or not log.exists():
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    kernels = []
    for line in log.read_text().splitlines():
        begin, end, name = line.split(" ", 2)
        kernels.append((int(begin), int(end), name))
    return sorted(kernels)


def steady_steps(kernels, least):
    """The last STEPS steps of the kind that takes most time, each with the first kernel of the step behind it. Steps of a
    kind have the same kernels. Kinds with fewer than `least` steps, as those that load something, do not count."""
    starts = [i for i, kernel in enumerate(kernels) if FIRST_KERNEL in kernel[2]]
    steps = [kernels[a:b + 1] for a, b in zip(starts, starts[1:])]
    shapes = collections.Counter()
    counts = collections.Counter(tuple(kernel[2] for kernel in step) for step in steps)
    for step in steps:
        shape = tuple(kernel[2] for kernel in step)
        if counts[shape] >= least:
            shapes[shape] += step[-1][0] - step[0][0]
    if not shapes:
        sys.exit(f"no {least} steps of one kind begin with {FIRST_KERNEL}")
    shape = shapes.most_common(1)[0][0]
    return [step for step in steps if tuple(kernel[2] for kernel in step) == shape][-STEPS:]


def short_names(names):
    """Demangled, without namespaces and parameters; of template arguments the first where it is a class."""
    out = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = {}
    for name, plain in zip(names, out.splitlines()):
        plain = re.sub(r"\(anonymous namespace\)::|^void ", "", plain)
        of_class = re.search(r"<(?:\w+::)*([A-Z]\w*)", plain)
        while "<" in plain and re.search(r"<[^<>]*>", plain):
            plain = re.sub(r"<[^<>]*>", "", plain)
        short[name] = (plain.split("::")[-1].strip()[:48] + (f" {of_class[1]}" if of_class else ""))
    return short


def behind_each_other(step):
    """Of the step's kernels (end of all before, begin, end, name)."""
    at = step[0][0]
    for begin, end, name in step[:-1]:
        yield at, begin, end, name
        at = max(at, end)


def added(at, begin, end):
    """What a kernel adds to the step, ns."""
    return max(0, end - max(at, begin))


def table(steps):
    """Rows (kernel, times a step, own us a step) by time, and the step's own figures."""
    count = len(steps)
    own = collections.Counter()
    times = collections.Counter()
    idle = 0
    for step in steps:
        for at, begin, end, name in behind_each_other(step):
            idle += max(0, begin - at)
            own[name] += added(at, begin, end)
            times[name] += 1
        idle += max(0, step[-1][0] - max(end for _, end, _ in step[:-1]))
    short = short_names(list(own))
    rows = collections.defaultdict(lambda: [0, 0.0])
    for name, ns in own.items():
        rows[short[name]][0] += times[name] / count
        rows[short[name]][1] += ns / count / 1000
    period = statistics.median(step[-1][0] - step[0][0] for step in steps) / 1000
    return sorted(rows.items(), key=lambda row: -row[1][1]), period, idle / count / 1000


def layer_of(names):
    """(first, length, count) of the longest run of equal layers: of `count` times the same `length` kernels."""
    best = (0, 0, 0)
    for length in range(1, len(names) // 2 + 1):
        same = 0
        for i in range(len(names) - length):
            same = same + 1 if names[i] == names[i + length] else 0
            count = same // length + 1
            if same >= length and count * length > best[1] * best[2]:
                best = (i + 1 - same, length, count)
    return best


def layer_table(steps):
    """Rows (kernel, us that it adds, us that it lasts, us before the end of the one before) of a layer, and their number."""
    short = short_names(list({kernel[2] for kernel in steps[0]}))
    first, length, count = layer_of([short[kernel[2]] for kernel in steps[0][:-1]])
    if count == 0:
        sys.exit("no kernels of a step repeat")
    rows = [[short[steps[0][first + j][2]], 0.0, 0.0, 0.0] for j in range(length)]
    for step in steps:
        layers = list(behind_each_other(step))[first:first + length * count]
        for i, (at, begin, end, _) in enumerate(layers):
            for column, ns in enumerate([added(at, begin, end), end - begin, at - begin]):
                rows[i % length][1 + column] += ns / (1000 * count * len(steps))
    return rows, count


def summary_line(title, rows, period, idle):
    parts = dict.fromkeys([*PARTS, "other"], 0.0)
    for name, (_, us) in rows:
        parts[next((part for part, pattern in PARTS.items() if re.search(pattern, name)), "other")] += us
    figures = [period, sum(row[1][0] for row in rows), *parts.values(), idle]
    return f"| {title} | " + " | ".join(f"{figure:.0f}" for figure in figures) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(HERE.parent.parent / "build" / "cuda-release" / "warprow"))
    parser.add_argument("--model", default="Qwen3-0.6B", help="a folder of bench/models")
    parser.add_argument("--batch-size", default="32", help="one or several, divided by commas")
    parser.add_argument("--input-len", default="208", help="context at which the steps begin, or tokens of a prompt")
    parser.add_argument("--prompts", action="store_true", help="steps of prompts instead of decode steps")
    parser.add_argument("--layer", action="store_true", help="the kernels of a layer in order")
    parser.add_argument("more", nargs="*", help="flags for the command, after --")
    args = parser.parse_args()
    summary = []
    with tempfile.TemporaryDirectory() as folder:
        library = build(folder)
        for batch in args.batch_size.split(","):
            least = 4 if args.prompts else STEPS // 2
            steps = steady_steps(run(args, library, args.model, batch, folder), least)
            rows, period, idle = table(steps)
            of = "prompts of" if args.prompts else "context"
            title = f"{args.model}, batch {batch}, {of} {args.input_len}"
            summary.append(summary_line(title, rows, period, idle))
            print(f"\n{title}: {period:.0f} us a step\n")
            if args.layer:
                layer, count = layer_table(steps)
                print(f"{count} layers of {sum(row[1] for row in layer):.1f} us\n")
                print("| kernel | adds, us | lasts, us | begins before the end of those before it, us |\n|---|---|---|---|")
                for name, *figures in layer:
                    print(f"| {name} | " + " | ".join(f"{us:.2f}" for us in figures) + " |")
                continue
            print("| kernel | a step | us a step | share |\n|---|---|---|---|")
            for name, (times, us) in rows:
                if us >= 0.002 * period:
                    print(f"| {name} | {times:.0f} | {us:.0f} | {100 * us / period:.0f} % |")
    if args.layer:
        return
    columns = ["us a step", "step", "kernels", *PARTS, "other", "idle"]
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    print("\n".join(summary))


if __name__ == "__main__":
    main()
