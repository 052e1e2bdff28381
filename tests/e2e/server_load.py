#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load on a server: good requests beside clients that disconnect, read slowly or send garbage. Afterwards nothing may leak:
no request, KV block, memory or file descriptor. Every good answer must equal that of a quiet server.

  WARPROW_BIN=... tests/e2e/server_load.py [SECONDS [CLIENTS ...]]     60 s of 16 and of 64 clients by default

Environment as server_test.py.
"""

import collections
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time

import server_test
from server_test import BIN, MODEL, Server, clean_environment

PROMPTS = ["The capital of France is", "Water boils at", "One, two, three,", "My favourite colour"]
GREEDY = {"max_tokens": 12, "temperature": 0}
KV_CACHE = "96MiB"  # little more than one context, so all pages are touched before the load
RSS_GROWTH_KB = 32 * 1024


def facts(server):
    """Memory in KB and open file descriptors of the server's process."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
        rss = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    return rss, len(os.listdir(f"/proc/{server.process.pid}/fd"))


class Load:
    def __init__(self, server, quiet, seconds):
        self.server, self.quiet, self.end = server, quiet, time.monotonic() + seconds
        self.counts, self.wrong, self.lock = collections.Counter(), [], threading.Lock()

    def good(self, choose):
        prompt = choose.choice(PROMPTS)
        if choose.random() < 0.5:
            _, answer = self.server.post("/v1/completions", {"prompt": prompt, **GREEDY})
            text = answer["choices"][0]["text"] if "choices" in answer else str(answer)
        else:
            chunks = self.server.events("/v1/completions", {"prompt": prompt, **GREEDY})
            text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        if text != self.quiet[prompt]:
            with self.lock:
                self.wrong.append((prompt, text))

    def leaves(self, choose):
        connection = self.server.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}))
        if choose.random() < 0.7:
            connection.getresponse().read(choose.randint(1, 400))
        connection.sock.close()
        connection.close()

    def reads_slowly(self, choose):
        connection = self.server.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 40, "ignore_eos": True, "stream": True}))
        answer = connection.getresponse()
        while answer.read(64):
            time.sleep(0.05 * choose.random())
        connection.close()

    def talks_nonsense(self, choose):
        status, _ = self.server.post("/v1/completions", choose.choice(
            [{"prompt": "x", "temperature": 9}, {"prompt": [-1]}, {}, {"prompt": "x", "stop": ""}, {"prompt": [1] * 9999}]))
        assert status == 400, status
        with socket.create_connection(("127.0.0.1", self.server.port), 30) as raw:
            raw.sendall(choose.choice([b"\x00\x01\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n"]))
            raw.recv(10)

    def client(self, number):
        choose = random.Random(number)
        while time.monotonic() < self.end:
            kind = choose.choices([self.good, self.leaves, self.reads_slowly, self.talks_nonsense], [6, 2, 1, 2])[0]
            try:
                kind(choose)
            except Exception as error:  # pylint: disable=broad-except
                with self.lock:
                    self.wrong.append((kind.__name__, repr(error)))
                return
            with self.lock:
                self.counts[kind.__name__] += 1


def settle(server):
    for _ in range(300):
        state = json.loads(server.ask("GET", "/v1/engine/state")[2])
        if not state["requests"] and state["scheduler"]["running"] == 0:
            break
        time.sleep(0.1)
    time.sleep(0.5)
    return json.loads(server.ask("GET", "/v1/engine/state")[2])


def run(seconds, num_clients):
    server = Server("--kv-cache-memory-bytes", KV_CACHE)
    try:
        quiet = {}
        for prompt in PROMPTS:
            quiet[prompt] = server.post("/v1/completions", {"prompt": prompt, **GREEDY})[1]["choices"][0]["text"]
        for number in range(3):  # prompts without common prefixes fill the cache
            assert server.post("/v1/completions", {"prompt": [10 + number] * 2000, "max_tokens": 1})[0] == 200
        halves = []
        for _ in range(2):
            before = facts(server)
            load = Load(server, quiet, seconds / 2)
            threads = [threading.Thread(target=load.client, args=(number,)) for number in range(num_clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            state = settle(server)
            halves.append(load)
        after = facts(server)
        print(f"{num_clients} clients, {seconds} s: {dict(sum((half.counts for half in halves), collections.Counter()))}; memory in the second half {before[0]} -> {after[0]} KB, descriptors "
              f"{before[1]} -> {after[1]}; steps p50 {state['recent_steps']['p50_ms']:.2f} ms", flush=True)
        bad = [wrong for half in halves for wrong in half.wrong[:5]]
        if state["requests"] or state["kv"]["blocks_used"] or state["scheduler"]["waiting"]:
            bad.append(("left behind", state))
        if after[1] > before[1] + 2:
            bad.append(("descriptors", before[1], after[1]))
        if after[0] > before[0] + RSS_GROWTH_KB:
            bad.append(("memory", before[0], after[0]))
        return bad
    finally:
        assert server.stop() == 0


def main():
    plan = subprocess.run([BIN, "plan", MODEL], capture_output=True, timeout=server_test.TIMEOUT, env=clean_environment(), check=False)
    if plan.returncode == 3:
        print(f"skipped: the model {MODEL} is not here; ./dev test fetches it")
        return 77
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    failures = [failure for clients in [int(text) for text in sys.argv[2:]] or [16, 64] for failure in run(seconds, clients)]
    for failure in failures:
        print("FAILED:", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
