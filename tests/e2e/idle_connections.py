#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of idle connections: busy clients' latency with and without them, alternately, and the processor time of an
idle server with them. Needs a quiet machine and is not part of the suite (server_life_test.py has many connections too).

  WARPROW_BIN=... tests/e2e/idle_connections.py [busy [PAIRS [REQUESTS]] | idle [SECONDS]]    6 pairs of 100 requests; 60 s

Exits 1 if the median of the pairs' ratios of p50 is above 1.05, or the idle server takes more than 1 % of a core.
"""

import contextlib
import json
import resource
import socket
import statistics
import subprocess
import sys
import time

from server_test import BIN, TIMEOUT, Server, clean_environment

CONNECTIONS = 3000
MOST_SLOWER = 1.05
MOST_OF_A_CORE = 0.01
# Longer than a run, so that no connection is closed during it.
FLAGS = ("--idle-timeout", "600")


@contextlib.contextmanager
def idle_connections(server, count):
    sockets = [socket.create_connection(("127.0.0.1", server.port), TIMEOUT) for _ in range(count)]
    try:
        while json.loads(server.ask("GET", "/v1/engine/state")[2])["connections"] < count:
            time.sleep(0.05)
        yield
        assert all(still_open(connection) for connection in sockets[:: max(1, count // 10)])
    finally:
        for connection in sockets:
            connection.close()


def still_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True


def busy_ms(server, requests):
    """The p50 of 4 clients' requests with 32 input and 16 output tokens."""
    done = subprocess.run([BIN, "bench", "serve", "--port", str(server.port), "--output", "json", "--num-prompts", str(requests),
                           "--max-concurrency", "4", "--random-input-len", "32", "--random-output-len", "16", "--ignore-eos",
                           "--percentile-metrics", "e2el"], capture_output=True, timeout=TIMEOUT, env=clean_environment(), check=True)
    return json.loads(done.stdout)["median_e2el_ms"]


def compare(server, pairs, requests):
    busy_ms(server, 20)
    alone, beside = [], []
    for pair in range(pairs):
        for with_idle in ((False, True), (True, False))[pair % 2]:
            with idle_connections(server, CONNECTIONS if with_idle else 0):
                (beside if with_idle else alone).append(busy_ms(server, requests))
    ratio = statistics.median(after / before for before, after in zip(alone, beside))
    print(f"p50 of {requests} requests: {statistics.median(alone):.1f} ms alone, {statistics.median(beside):.1f} ms beside {CONNECTIONS} "
          f"idle connections; median of {pairs} pairs' ratios {ratio:.3f} ({' '.join(f'{b / a:.3f}' for a, b in zip(alone, beside))})")
    return ratio <= MOST_SLOWER


def watch_idle(server, seconds):
    busy_ms(server, 4)
    good = True
    for count in (0, CONNECTIONS):
        with idle_connections(server, count):
            time.sleep(1)
            share = server.cpu_seconds(seconds) / seconds
        print(f"{count} idle connections, {seconds:.0f} s: {100 * share:.3f} % of a core")
        good = good and share <= MOST_OF_A_CORE
    return good


def main():
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    numbers = [float(text) for text in sys.argv[2:]]
    resource.setrlimit(resource.RLIMIT_NOFILE, (CONNECTIONS + 200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    server = Server(*FLAGS)
    try:
        good = True
        if what in ("all", "busy"):
            pairs, requests = [int(number) for number in numbers] + [6, 100][len(numbers):]
            good = compare(server, pairs, requests) and good
        if what in ("all", "idle"):
            good = watch_idle(server, numbers[0] if numbers else 60) and good
        return 0 if good else 1
    finally:
        assert server.stop() == 0


if __name__ == "__main__":
    sys.exit(main())
