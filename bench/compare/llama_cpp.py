#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""warprow against llama.cpp on this machine's CPU, alternately: medians and ratios (docs/performance.md, "CPU").

    bench/compare/llama_cpp.py --prepare                   build the peer, make the model files, measure nothing
    bench/compare/llama_cpp.py                             everything, about 10 minutes on two cores
    bench/compare/llama_cpp.py --only Q4_1,start --output-json a.json
    bench/compare/llama_cpp.py --isa avx2                  both for AVX2, on a newer machine too; avx_vnni: with AVX-VNNI
    bench/compare/llama_cpp.py --from a.json b.json        no measuring: prints the table of several results
    bench/compare/llama_cpp.py --from a.json --write       ... into docs/performance.md

The peer is llama.cpp from the source package llama-cpp-python 0.3.36, built once with -march=native into the cache. It
runs with flash attention, as many threads as there are cores and an f16 KV cache, its best on such a machine.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import measure
import peers
from measure import THREADS, Row

FILES = ("Q4_1", "Q4_0", "Q8_0", "BF16", "Q4_K_M")  # of SmolLM2-135M-Instruct
K_QUANTS = ("Q4_K", "Q5_K", "Q6_K")  # of peers.wide_model
EXPERTS = ("experts Q4_0", "experts Q8_0", "experts Q4_K")  # of peers.experts_model
EXPERT_GOALS = {"decode 1": (1.3, None), "prefill 512": (2, None), "decode 16": (2, None)}


def speed_rows(group, name, goals):
    for key, label in (("decode 1", "decode, batch 1"), ("prefill 512", "prefill of 512"),
                       ("decode 16", "decode, batch 16, context 256")):
        must, aim = goals.get(key, (None, None))
        yield Row(group, f"{group} {key}", f"{name}: {label}, tokens/s", must, aim)


ROWS = [
    *speed_rows("Q4_1", "Q4_1", {"decode 1": (1.3, 2.6), "prefill 512": (3, 6), "decode 16": (2.5, 5)}),
    Row("server", "server output", "server, 16 clients at once, 211 in, 128 out: output tokens/s", 2.5, 4.7),
    Row("server", "server ttft", "same: time to first token p50, ms", 2000, 1000, more_is_better=False, goal_is_ratio=False),
    Row("server", "server itl", "same: between two tokens p50, ms", more_is_better=False, digits=1),
    Row("server", "stream output", "server, 40 such requests, 16 at a time: output tokens/s"),
    Row("server", "stream ttft", "same: time to first token p50, ms", more_is_better=False),
    Row("server", "stream evenness", "same: between two tokens, p99 / p50", 2, None, more_is_better=False, goal_is_ratio=False,
        digits=2),
    Row("start", "start", "process start to first token, ms", 250, 100, more_is_better=False, goal_is_ratio=False),
    Row("memory", "memory", "peak resident memory, 512 tokens in, 128 out, MB", 250, 170, more_is_better=False,
        goal_is_ratio=False),
    Row("size", "size", "size of the server's binary, MB", 60, 25, more_is_better=False, goal_is_ratio=False, digits=1),
    *(row for kind in FILES[1:] for row in speed_rows(kind, kind, {})),
    *(row for kind in K_QUANTS for row in speed_rows(kind, f"{kind}, wide model", {"decode 1": (1, None)})),
    *(row for kind in EXPERTS for row in speed_rows(kind, f"{kind.split()[1]}, 8 of 64 experts", EXPERT_GOALS)),
]
GROUPS = tuple(dict.fromkeys(row.group for row in ROWS))


class LlamaCpp:
    def __init__(self, isa):
        self.programs = peers.llama_cpp(isa)

    def bench(self, model, prompt, generate):
        text = measure.output_of([self.programs / "llama-bench", "-m", model, "-p", prompt, "-n", generate, "-t", THREADS,
                                  "-fa", 1, "-r", 1, "-o", "json"])
        return json.loads(text)[0]["avg_ts"]

    def decode_batch(self, model, prompt, generate, batch):
        lines = measure.output_of([self.programs / "llama-batched-bench", "-m", model, "-c", 9600, "-b", 2048, "-ub", 512,
                                   "-npp", prompt, "-ntg", generate, "-npl", batch, "-pps", "-kvu", "-t", THREADS, "-tb",
                                   THREADS, "-fa", "on", "--output-format", "jsonl"]).splitlines()
        return json.loads(next(line for line in lines if line.startswith("{")))["speed_tg"]

    def complete(self, model, prompt, max_tokens, context):
        return [self.programs / "llama-completion", "-m", model, "-no-cnv", "--no-display-prompt", "-p", prompt, "-n",
                max_tokens, "-c", context, "-t", THREADS, "-fa", "on", "--temp", 0, "--ignore-eos"]

    def serve(self, model, port):
        return [self.programs / "llama-server", "-m", model, "-np", 16, "-c", 6400, "-t", THREADS, "-fa", "on", "--port", port]


def model_of(kind):
    smollm2 = peers.fetch.fetch(peers.fetch.ITEMS["smollm2"], peers.fetch.cache_dir())
    if kind in K_QUANTS:
        return peers.requantised(peers.wide_model(smollm2), kind, pure=True)
    if kind in EXPERTS:
        model, kind = peers.experts_model(smollm2), kind.split()[1]
        return model if kind == "Q8_0" else peers.requantised(model, kind, pure=True)
    return smollm2 if kind == "Q4_1" else peers.requantised(smollm2, kind)


def speed_cases(kind, ours, theirs):
    model = model_of(kind)
    return [
        (f"{kind} decode 1", "warprow", lambda: ours.decode(model, 8, 128, 1)),
        (f"{kind} decode 1", "peer", lambda: theirs.bench(model, 0, 128)),
        (f"{kind} prefill 512", "warprow", lambda: ours.prefill(model, 512)),
        (f"{kind} prefill 512", "peer", lambda: theirs.bench(model, 512, 0)),
        (f"{kind} decode 16", "warprow", lambda: ours.decode(model, 240, 32, 16)),
        (f"{kind} decode 16", "peer", lambda: theirs.decode_batch(model, 240, 32, 16)),
    ]


def cases_of(group, ours, theirs):
    model = model_of("Q4_1")
    question = "The capital of France is"
    prompt = measure.text_of_about(512)
    if group == "server":
        def load(engine, prefix, num_prompts):
            port = measure.free_port()
            return measure.serve_load(ours.binary, engine.serve(model, port), port, prefix, num_prompts, 16, 211, 128)

        return [(prefix, name, lambda engine=engine, prefix=prefix, num=num: load(engine, prefix + " ", num))
                for prefix, num in (("server", 16), ("stream", 40))
                for name, engine in (("warprow", ours), ("peer", theirs))]
    if group == "start":
        return [("start", "warprow", lambda: measure.first_output_ms(ours.generate(model, question, 2))),
                ("start", "peer", lambda: measure.first_output_ms(theirs.complete(model, question, 2, 2048)))]
    if group == "memory":
        return [("memory", "warprow", lambda: measure.peak_memory_mb(ours.generate(model, prompt, 128))),
                ("memory", "peer", lambda: measure.peak_memory_mb(theirs.complete(model, prompt, 128, 2048)))]
    if group == "size":
        return [("size", "warprow", lambda: Path(ours.binary).stat().st_size / 1e6),
                ("size", "peer", lambda: (theirs.programs / "llama-server").stat().st_size / 1e6)]
    return speed_cases(group, ours, theirs)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.split("\n\n", 1)[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/cpu-release/warprow")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups of rows: " + ", ".join(GROUPS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", choices=peers.LLAMA_ISAS, default="native",
                        help="the instruction set that the peer is built for and ours is held to; native: the machine's")
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--from", dest="sources", nargs="+", type=Path, help="tabulate these results, measure nothing")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument("--prepare", action="store_true", help="build the peer and the model files only")
    args = parser.parse_args(argv)
    if args.isa != "native":
        os.environ["WARPROW_CPU_ISA"] = args.isa
    groups = args.only.split(",")
    if unknown := set(groups) - set(GROUPS):
        parser.error(f"--only: no group {sorted(unknown)}; there are {', '.join(GROUPS)}")
    if args.sources:
        reports = [json.loads(path.read_text()) for path in args.sources]
    else:
        cases = [case for group in groups for case in cases_of(group, measure.Warprow(args.binary), LlamaCpp(args.isa))]
        if args.prepare:
            return
        reports = [measure.report(measure.take_turns(cases, args.rounds))]
    if args.output_json:
        args.output_json.write_text(json.dumps(reports[-1], indent=1))
    text = measure.table(ROWS, measure.merged(reports), "llama.cpp")
    print(text)
    if args.write:
        measure.write_section(measure.ROOT / "docs" / "performance.md", "bench/compare/llama_cpp.py", text)


if __name__ == "__main__":
    main(sys.argv[1:])
