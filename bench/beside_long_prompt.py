#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to first token of short prompts that arrive during the prefill of one very long prompt.

    bench/beside_long_prompt.py --warprow build/cuda-release/warprow --models 0.6B,8B --tokens 600000

Starts a server with random weights, sends the long prompt, then every --interval seconds a prompt of --short tokens with one
output token. Prints how long those took at each tenth of the long prompt, and how long the long prompt took in all. The last
tenth is the deepest and the slowest. --seconds ends a model's run early.
"""

import argparse
import http.client
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from local_server import LocalServer

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"0.6B": "Qwen3-0.6B", "8B": "Qwen3-8B"}
VOCAB = 100_000


def long_model(name, tokens, folder):
    """Writes the model's config with a context long enough for the long prompt."""
    source = ROOT / "bench/models" / MODELS[name]
    shutil.copytree(source, folder, dirs_exist_ok=True)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = tokens + 1024
    (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")


def ask(port, prompt, timeout):
    """Seconds until a one-token answer is complete."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    begin = time.monotonic()
    try:
        connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0, "return_token_ids": True}))
        answer = connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(data.decode()[:500])
        return time.monotonic() - begin
    finally:
        connection.close()


def measure(args, name):
    choose = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        long_model(name, args.tokens, folder)
        flags = ["--load-format", "dummy", "--max-model-len", str(args.tokens + 512), *args.flags]
        with LocalServer(args.warprow, folder, *flags) as server:
            port = server.port
            short = [[choose.randrange(VOCAB) for _ in range(args.short)] for _ in range(2000)]
            alone = [ask(port, short.pop(), 60) for _ in range(3)][-1]
            took = {}
            long_prompt = [choose.randrange(VOCAB) for _ in range(args.tokens)]
            done = threading.Thread(target=lambda: took.setdefault("long", ask(port, long_prompt, 3600)), daemon=True)
            begin = time.monotonic()
            done.start()
            samples = []
            while done.is_alive() and time.monotonic() - begin < args.seconds and short:
                time.sleep(args.interval * (0.5 + choose.random()))
                at = time.monotonic() - begin
                samples.append((at, ask(port, short.pop(), 120)))
    total = took.get("long", time.monotonic() - begin)
    print(f"{name}: short prompt of {args.short} tokens alone {alone * 1e3:.0f} ms; long prompt of {args.tokens} tokens "
          f"{'took' if 'long' in took else 'not done after'} {total:.1f} s; first tokens beside it by tenths of that time, slowest in ms:", flush=True)
    tenths = [[seconds for at, seconds in samples if int(at / total * 10) == tenth] for tenth in range(10)]
    print("  " + " ".join(f"{max(tenth) * 1e3:.0f}" if tenth else "-" for tenth in tenths) +
          f"; median {sorted(s for _, s in samples)[len(samples) // 2] * 1e3:.0f} of {len(samples)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warprow", default="build/cuda-release/warprow")
    parser.add_argument("--models", default="0.6B")
    parser.add_argument("--tokens", type=int, default=600_000)
    parser.add_argument("--short", type=int, default=64)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("flags", nargs="*", help="flags for `warprow serve`, after --")
    args = parser.parse_args()
    for name in args.models.split(","):
        measure(args, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
