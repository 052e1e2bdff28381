#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Good clients beside a hostile one. The hostile client has a key and its own address, runs at the lowest priority and
cycles through: grammars that take long, texts of 20 MB, large bodies without a key, chats that nest deeply, broken HTTP and
slow senders. No good request may fail. Memory must come back, and the 99th percentile of the small requests is printed
without and with the hostile client.

  WARPROW_BIN=... tests/e2e/hostile_load.py [SECONDS [CLIENTS]]     20 s beside it and as many without, of 8 clients

Environment as server_test.py. WARPROW_E2E_MAX_P99 makes a larger ratio of the percentiles a failure. WARPROW_E2E_ACTS names the
hostile acts (grammars,large_texts for instance) if not all are wanted.
"""

import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time

import server_test
from hostile_test import descendants, hostile
from server_test import BIN, CHAT, MODEL, Server, clean_environment

KEYS = {"good": "key-of-the-good", "hostile": "key-of-the-hostile"}
HOSTILE_ADDRESS = "127.0.0.2"
MEMORY_GROWTH = 0.05
SHORT_RUN_S = 300  # in less time the first rounds do not reach all thread heaps
SHORT_RUN_SLACK_MB = 24
PAUSE_S = 1.0  # between two requests of a good client
CLIENT_TIMEOUT = 120
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}


def memory_mb(pid):
    """Resident memory, in which a page that several processes share counts once in all of them together."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def ask(port, kind, path, body, address="127.0.0.1"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CLIENT_TIMEOUT, source_address=(address, 0))
    try:
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body),
                           {"Authorization": f"Bearer {KEYS[kind]}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def good_requests(choose):
    number = choose.randrange(1_000_000)
    return choose.choice([
        ("/v1/completions", {"prompt": f"Number {number} is", "max_tokens": 4, "temperature": 0}),
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 4}),
        ("/tokenize", {"prompt": f"Number {number} is " * 20}),
        ("/v1/completions", {"prompt": "A city:", "max_tokens": 4, "structured_outputs": {"json": SCHEMA}}),
    ])


class Good:
    """Clients with small requests, each with pauses between them."""

    def __init__(self, port, seconds, num_clients):
        self.port, self.end = port, time.monotonic() + seconds
        self.took, self.failed, self.lock = [], [], threading.Lock()
        threads = [threading.Thread(target=self.client, args=(number,)) for number in range(num_clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def client(self, number):
        choose = random.Random(number)
        while time.monotonic() < self.end:
            path, body = good_requests(choose)
            begin = time.monotonic()
            try:
                status, answer = ask(self.port, "good", path, body)
            except OSError as error:
                status, answer = 0, repr(error)
            with self.lock:
                self.took.append((time.monotonic() - begin, path))
                if status != 200:
                    self.failed.append((path, status, answer[:300]))
            time.sleep(PAUSE_S * (0.5 + choose.random()))

    def p99(self):
        times = sorted(seconds for seconds, _ in self.took)
        return times[len(times) * 99 // 100]


def grammars(port):
    jobs = [threading.Thread(target=ask, args=(port, "hostile", "/v1/completions", hostile(i), HOSTILE_ADDRESS))
            for i in random.sample(range(1_000_000), 8)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


def large_texts(port):
    body = json.dumps({"prompt": "word " * 4_000_000}).encode()
    jobs = [threading.Thread(target=quietly, args=(ask, port, "hostile", "/tokenize", body, HOSTILE_ADDRESS)) for _ in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


def raw(port):
    return socket.create_connection(("127.0.0.1", port), CLIENT_TIMEOUT, source_address=(HOSTILE_ADDRESS, 0))


def bodies_without_key(port):
    size = 31_000_000
    sockets = [raw(port) for _ in range(20)]
    for one in sockets:
        quietly(one.sendall, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size + b"x" * 1_000_000)
    time.sleep(0.5)
    for one in sockets:
        one.close()


def deep_chats(port):
    for body in (b'{"messages":' + b"[" * 100_000, json.dumps({"messages": [{"role": "user", "content": "x" * 2_000_000}]}).encode(),
                 json.dumps({"messages": [{"role": "user", "content": "{{"}] * 20_000}).encode()):
        quietly(ask, port, "hostile", "/v1/chat/completions", body, HOSTILE_ADDRESS)


def broken_http(port):
    smuggled = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for line in (b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: xchunked", b"Content-Length: 5\r\nContent-Length: 6",
                 b"X: " + b"x" * 200_000):
        with raw(port) as one:
            quietly(one.sendall, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n" + smuggled)
            quietly(one.recv, 4096)


def slow_senders(port):
    sockets = [raw(port) for _ in range(50)]
    for byte in b"POST /v1/":
        for one in sockets:
            quietly(one.sendall, bytes([byte]))
        time.sleep(0.1)
    for one in sockets:
        one.close()


def quietly(call, *args):
    """Calls and ignores errors, because the server may close the connection at any time."""
    try:
        return call(*args)
    except (OSError, http.client.HTTPException):
        return None


ACTS = (grammars, large_texts, bodies_without_key, deep_chats, broken_http, slow_senders)


def be_hostile(port, seconds):
    """The process of the hostile client. It always completes its first round."""
    os.nice(19)
    wanted = os.environ.get("WARPROW_E2E_ACTS", "").split(",")
    acts = [act for act in ACTS if wanted == [""] or act.__name__ in wanted]
    end = time.monotonic() + seconds
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        for act in acts:
            act(port)
            if rounds > 0 and time.monotonic() >= end:
                break
        rounds += 1
    print(f"the hostile client went round {rounds} times")


def run(seconds, num_clients):
    # Each key is one client, because limits also count by address.
    server = Server("--api-key", KEYS["good"], "--api-key", KEYS["hostile"])
    try:
        def memory():
            return sum(memory_mb(pid) for pid in [server.process.pid, *descendants(server.process.pid)])

        Good(server.port, min(seconds, 10), num_clients)  # warms up what the first requests allocate
        quick_hostile = subprocess.run([sys.executable, __file__, "--hostile", str(server.port), "0"], check=True)
        assert quick_hostile.returncode == 0
        quiet = Good(server.port, seconds, num_clients)
        time.sleep(2)
        before = memory()
        with subprocess.Popen([sys.executable, __file__, "--hostile", str(server.port), str(seconds)]) as other:
            beside = Good(server.port, seconds, num_clients)
            assert other.wait(CLIENT_TIMEOUT) == 0
        time.sleep(10)
        after = memory()
        ratio = beside.p99() / quiet.p99()
        print(f"{num_clients} clients, {seconds} s each: {len(quiet.took)} and {len(beside.took)} requests; p99 {quiet.p99() * 1e3:.0f} "
              f"-> {beside.p99() * 1e3:.0f} ms ({ratio:.2f}); memory {before:.0f} -> {after:.0f} MiB", flush=True)
        for path in sorted({path for _, path in beside.took}):
            print(f"  {path}: slowest beside the hostile client "
                  f"{[round(s * 1e3) for s in sorted(s for s, p in beside.took if p == path)[-3:]]} ms")
        bad = quiet.failed[:5] + beside.failed[:5]
        if after > before * (1 + MEMORY_GROWTH) + (SHORT_RUN_SLACK_MB if seconds < SHORT_RUN_S else 0):
            bad.append(("memory", before, after))
        limit = os.environ.get("WARPROW_E2E_MAX_P99")
        if limit and ratio > float(limit):
            bad.append(("p99", ratio, limit))
        return bad
    finally:
        assert server.stop() == 0


def main():
    if sys.argv[1:2] == ["--hostile"]:
        be_hostile(int(sys.argv[2]), float(sys.argv[3]))
        return 0
    plan = subprocess.run([BIN, "plan", MODEL], capture_output=True, timeout=server_test.TIMEOUT, env=clean_environment(), check=False)
    if plan.returncode == 3:
        print(f"skipped: the model {MODEL} is not here; ./dev test fetches it")
        return 77
    failures = run(float(sys.argv[1]) if len(sys.argv) > 1 else 20, int(sys.argv[2]) if len(sys.argv) > 2 else 8)
    for failure in failures:
        print("FAILED:", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
