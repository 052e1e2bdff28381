#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`warprow serve` against random clients that disconnect, send partial, broken or oversized requests, or read slowly. A good
client beside them must always get the same answers. Afterwards the server must have released everything.

  WARPROW_BIN=... tests/e2e/random_client_test.py

WARPROW_E2E_SECONDS  how long, 15 by default; .ci/nightly takes 300 and the binary with AddressSanitizer
WARPROW_E2E_SEED     of what the clients do, 1 by default; what the server does in between still depends on time
Other environment as server_test.py.
"""

import collections
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time

import server_test
from server_load import RSS_GROWTH_KB, facts, settle
from server_test import BIN, CHAT, MODEL, Server, clean_environment

SECONDS = float(os.environ.get("WARPROW_E2E_SECONDS", "15"))
SEED = int(os.environ.get("WARPROW_E2E_SEED", "1"))
NUM_CLIENTS = 6
MOST_SECONDS = 2  # longest wait or pause of a client
RSS_GROWTH_KB_SANITIZED = 512 * 1024  # AddressSanitizer keeps freed memory for a while
SHADOW_KB = 1 << 32  # a sanitizer reserves more address space than this
PROMPTS = ["The capital of France is", "Water boils at", "One, two, three,"]
GREEDY = {"max_tokens": 8, "temperature": 0}
BODIES = [
    ("/v1/completions", {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 4, "n": 2, "temperature": 1, "seed": 3}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 100, "stream": True, "ignore_eos": True}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 3, "response_format": {"type": "json_object"}}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 20, "stream": True}),
    ("/tokenize", {"prompt": "one two three " * 50}),
    ("/detokenize", {"tokens": list(range(100))}),
]


def request_bytes(path, body, *lines):
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def chunked_bytes(choose, path, body):
    data = json.dumps(body).encode()
    out = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    while data:
        piece, data = data[:(size := choose.randint(1, 40))], data[size:]
        out += b"%x%s\r\n%s\r\n" % (len(piece), choose.choice([b"", b";a=b"]), piece)
    return out + b"0\r\n\r\n"


def any_request(choose):
    path, body = choose.choice(BODIES)
    return choose.choice([lambda: request_bytes(path, body), lambda: chunked_bytes(choose, path, body),
                          lambda: b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"])()


def spoilt(choose, data):
    """The data with some bytes changed, removed or doubled."""
    data = bytearray(data)
    for _ in range(choose.randint(1, 6)):
        at = choose.randrange(len(data))
        end = at + choose.randint(1, 12)
        data[at:end] = choose.choice([b"", choose.randbytes(choose.randint(1, 8)), data[at:end] * 2, b"\r\n", b"\x00"])
        if not data:
            data = bytearray(b"\n")
    return bytes(data)


def reset(connection):
    """Closes so that the other side gets a reset and not an end of stream."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def read_some(connection, most):
    got = 0
    while got < most and (piece := connection.recv(min(65536, most - got))):
        got += len(piece)
    return got


class Clients:
    """Actions of a bad client. Each takes a connection, which is closed afterwards."""

    def leaves_in_a_stream(self, choose, connection):
        path, body = choose.choice([one for one in BODIES if one[1].get("stream")])
        connection.sendall(request_bytes(path, body))
        read_some(connection, choose.randint(0, 6000))
        if choose.random() < 0.5:
            reset(connection)

    def sends_a_part(self, choose, connection):
        data = any_request(choose)
        connection.sendall(data[:choose.randrange(len(data))])
        choose.choice([lambda: None, lambda: reset(connection), lambda: connection.shutdown(socket.SHUT_WR)])()

    def sends_drops(self, choose, connection):
        data = any_request(choose)
        end = time.monotonic() + choose.random() * MOST_SECONDS
        while data and time.monotonic() < end:
            size = choose.randint(1, 40)
            connection.sendall(data[:size])
            data = data[size:]
            time.sleep(0.005 * choose.random())

    def sends_ahead(self, choose, connection):
        requests = [any_request(choose) for _ in range(choose.randint(2, 6))]
        if choose.random() < 0.3:
            requests.append(spoilt(choose, any_request(choose)))
        connection.sendall(b"".join(requests))
        read_some(connection, choose.choice([0, 100, 5000, 50000]))

    def reads_slowly(self, choose, connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(any_request(choose))
        end = time.monotonic() + choose.random() * MOST_SECONDS
        while time.monotonic() < end and connection.recv(choose.randint(1, 64)):
            time.sleep(0.01 * choose.random())

    def sends_large_headers(self, choose, connection):
        lines = choose.choice([[f"X-Large: {'x' * choose.randint(1000, 200_000)}"],
                               [f"X-{i}: {i}" for i in range(choose.randint(100, 2000))],
                               [f"Cookie: {'a=b; ' * 10_000}", "Expect: 100-continue"]])
        connection.sendall(request_bytes("/tokenize", {"prompt": "x"}, *lines))
        read_some(connection, choose.choice([0, 500]))

    def talks_garbage(self, choose, connection):
        connection.sendall(choose.choice([choose.randbytes(choose.randint(1, 5000)), spoilt(choose, any_request(choose)),
                                          b"\x16\x03\x01" + choose.randbytes(200), b"\r\n" * choose.randint(1, 5000)]))
        connection.shutdown(socket.SHUT_WR)
        read_some(connection, choose.choice([0, 1000]))

    def lies_about_lengths(self, choose, connection):
        data = any_request(choose)
        length = choose.choice([b"0", b"1", b"5", b"100000", b"99999999999", b"-1", b"1e3", b"", b"0x10", b"7, 7"])
        connection.sendall(re.sub(rb"Content-Length: \d+", b"Content-Length: " + length, data))
        if choose.random() < 0.7:
            connection.shutdown(socket.SHUT_WR)
        else:
            connection.settimeout(choose.random())
        read_some(connection, 1000)

    def closes_one_half(self, choose, connection):
        connection.sendall(any_request(choose))
        connection.shutdown(socket.SHUT_WR)
        read_some(connection, choose.choice([0, 200, 100_000]))


KINDS = [name for name in vars(Clients) if not name.startswith("_")]


class Test:
    def __init__(self, server):
        self.server = server
        self.end = 0.0
        self.lock = threading.Lock()
        self.counts, self.wrong = collections.Counter(), []

    def note(self, kind, wrong=None):
        with self.lock:
            self.counts[kind] += 1
            if wrong is not None:
                self.wrong.append((kind, wrong))

    def bad_client(self, number):
        choose = random.Random(SEED * 1000 + number)
        clients = Clients()
        while time.monotonic() < self.end:
            kind = choose.choice(KINDS)
            try:
                with socket.create_connection(("127.0.0.1", self.server.port), MOST_SECONDS) as connection:
                    getattr(clients, kind)(choose, connection)
            except ConnectionRefusedError as error:
                self.note(kind, repr(error))
                return
            except OSError:  # the server has refused the request and closed
                pass
            self.note(kind)

    def answers(self):
        """The answer as a whole and as a stream."""
        for prompt in PROMPTS:
            _, answer = self.server.post("/v1/completions", {"prompt": prompt, **GREEDY})
            yield answer["choices"][0]["text"]
            chunks = self.server.events("/v1/completions", {"prompt": prompt, **GREEDY})
            yield "".join(chunk["choices"][0]["text"] for chunk in chunks)
        _, answer = self.server.post("/v1/chat/completions", {"messages": CHAT, **GREEDY})
        yield answer["choices"][0]["message"]["content"]

    def good_client(self, first):
        while time.monotonic() < self.end:
            try:
                for got, wanted in zip(self.answers(), first, strict=True):
                    self.note("good", None if got == wanted else (got, wanted))
            except Exception as error:  # pylint: disable=broad-except
                self.note("good", repr(error))
                return

    def crowd(self, first, seconds):
        self.end = time.monotonic() + seconds
        threads = [threading.Thread(target=self.bad_client, args=(number,)) for number in range(NUM_CLIENTS)]
        threads.append(threading.Thread(target=self.good_client, args=(first,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def check_rest(self, before):
        """What the server still holds after the clients have gone."""
        state = settle(self.server)
        metrics = self.server.ask("GET", "/metrics")[2].decode()
        after = facts(self.server)
        running = re.findall(r"(?m)^vllm:num_requests_(?:running|waiting)\{.*\} (.*)$", metrics)
        print(f"seed {SEED}: {dict(sorted(self.counts.items()))}; memory {before[0]} -> {after[0]} KB, descriptors {before[1]} -> "
              f"{after[1]}", flush=True)
        if state["requests"] or state["kv"]["blocks_used"] or len(running) != 2 or any(float(text) for text in running):
            self.wrong.append(("left behind", state, running))
        if after[1] > before[1] + 2:
            self.wrong.append(("descriptors", before[1], after[1]))
        if after[0] > before[0] + (RSS_GROWTH_KB_SANITIZED if is_sanitized(self.server) else RSS_GROWTH_KB):
            self.wrong.append(("memory", before[0], after[0]))


def is_sanitized(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmSize")) > SHADOW_KB


def run(test):
    first = list(test.answers())
    for whole, streamed in zip(first[:-1:2], first[1::2], strict=True):
        if whole != streamed:
            test.wrong.append(("first", whole, streamed))
    test.crowd(first, SECONDS / 3)  # afterwards everything that is kept permanently has been allocated
    before = facts(test.server)
    test.crowd(first, SECONDS * 2 / 3)
    test.check_rest(before)
    for kind in ["good", *KINDS]:
        if test.counts[kind] == 0:
            test.wrong.append((kind, "never happened"))
    if list(test.answers()) != first:
        test.wrong.append(("afterwards", "the answers are others"))


def main():
    plan = subprocess.run([BIN, "plan", MODEL], capture_output=True, timeout=server_test.TIMEOUT, env=clean_environment(), check=False)
    if plan.returncode == 3:
        print(f"skipped: the model {MODEL} is not here; ./dev test fetches it")
        return 77
    # A KV cache that is soon fully touched.
    server = Server("--max-model-len", "512", "--kv-cache-memory-bytes", "16MiB")
    said = []
    listener = threading.Thread(target=lambda: said.extend(server.process.stderr))
    listener.start()
    test = Test(server)
    try:
        run(test)
    finally:
        if server.process.poll() is None:
            server.process.terminate()
        code = server.process.wait(server_test.TIMEOUT)
        listener.join()
        server.process.stderr.close()
    if code != 0:
        test.wrong.append(("exit status", code, "".join(said)[-4000:]))
    test.wrong += [("log", line) for line in said if "error" in line.lower()]
    for failure in test.wrong[:10]:
        print("FAILED:", failure)
    return 1 if test.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
