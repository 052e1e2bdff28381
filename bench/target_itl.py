#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What --target-itl-ms costs and brings: a closed batch, and a stream beside long prompts.

    bench/target_itl.py --warprow build/cpu-release/warprow --targets 20,0 --rounds 5

Each round starts a server for every target, so that a slow minute of a shared machine hits all of them. It sends 16 prompts of
240 tokens at once, for 33 tokens each, and takes the time until the last answer. Then one request streams, and beside it come
--long prompts of 1,800 tokens, one after the other, for one token each: the gaps between the stream's tokens from the first
prompt's start to the last one's end, and the prompt tokens a second. Prints medians of the rounds, smallest and largest in
brackets. Prompts are random tokens, and no two are alike.
"""

import argparse
import http.client
import json
import random
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from local_server import LocalServer

VOCAB = 40_000
LONG_TOKENS = 1_800


class Server(LocalServer):
    def begin(self, prompt, max_tokens, stream):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": stream}))
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(answer.read().decode()[:500])
        return connection, answer

    def ask(self, prompt, max_tokens):
        connection, answer = self.begin(prompt, max_tokens, False)
        answer.read()
        connection.close()


def tokens(choose, count):
    return [choose.randrange(100, VOCAB) for _ in range(count)]


def closed_batch(server, choose):
    prompts = [tokens(choose, 240) for _ in range(16)]
    begin = time.monotonic()
    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(lambda prompt: server.ask(prompt, 33), prompts))
    return {"closed batch, s": time.monotonic() - begin}


def beside_prompts(server, choose, num_long):
    connection, answer = server.begin(tokens(choose, 16), 8_000, True)
    times = []

    def read():
        try:
            while line := answer.readline():
                if line.startswith(b"data: "):
                    times.append(time.monotonic())
        except (OSError, ValueError, AttributeError):  # the connection was closed here
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    while len(times) < 50:
        time.sleep(0.01)
    begin = time.monotonic()
    for _ in range(num_long):
        server.ask(tokens(choose, LONG_TOKENS), 1)
    end = time.monotonic()
    connection.sock.shutdown(2)
    reader.join()
    inside = [at for at in times if begin <= at <= end]
    gaps = sorted(1e3 * (later - earlier) for earlier, later in zip(inside, inside[1:]))
    return {"gap p50, ms": statistics.median(gaps), "gap p99, ms": gaps[int(0.99 * (len(gaps) - 1))], "gap max, ms": gaps[-1],
            "prompt tokens/s": num_long * LONG_TOKENS / (end - begin), "stream tokens/s": len(inside) / (end - begin)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warprow", default="build/cpu-release/warprow")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--targets", default="20,0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", type=int, default=4)
    parser.add_argument("flags", nargs="*", help="of `serve`, behind --")
    args = parser.parse_args()
    results = {target: [] for target in args.targets.split(",")}
    for number in range(args.rounds):
        for target, rounds in results.items():
            with Server(args.warprow, args.model, "--max-model-len", "8192", "--target-itl-ms", target, *args.flags) as server:
                choose = random.Random(number)
                server.ask(tokens(choose, 512), 20)
                rounds.append(closed_batch(server, choose) | beside_prompts(server, choose, args.long))
            print(f"round {number + 1}, {target} ms: {rounds[-1]}", file=sys.stderr, flush=True)
    print("| | " + " | ".join(f"`--target-itl-ms {target}`" for target in results) + " |")
    print("|---" * (1 + len(results)) + "|")
    for name in next(iter(results.values()))[0]:
        cells = []
        for rounds in results.values():
            values = [one[name] for one in rounds]
            cells.append(f"{statistics.median(values):,.4g} ({min(values):,.4g}–{max(values):,.4g})")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
