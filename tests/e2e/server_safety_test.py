#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Black-box tests of `warprow serve` against malicious clients: broken framing, foreign host names, bodies without a key,
texts that take long to process.

Usage and environment as server_test.py.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures

import server_test
from server_life_test import Case, UnixServer
from server_test import BIN, TIMEOUT, clean_environment

SMUGGLED = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLIENT_TIMEOUT = 30  # the server must close before this timeout


def read_all(connection):
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:  # follows an early refusal
        pass
    return data


def exchange(port, request, address="127.0.0.1"):
    """The statuses and the text of all answers until the server closes."""
    with socket.create_connection((address, port), CLIENT_TIMEOUT) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # the server has closed it
            pass
        data = read_all(connection)
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d+)", data)], data


def seconds_until_cut(port, request, drip, pause):
    """Sends the request, then `drip` repeatedly. Returns after how many seconds the server closes; at most 20."""
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), CLIENT_TIMEOUT) as connection:
        try:
            connection.sendall(request)
            while time.monotonic() - begin < 20:
                connection.sendall(drip)
                time.sleep(pause)
        except OSError:
            pass
    return time.monotonic() - begin


def head(*lines, target="POST /v1/completions HTTP/1.1", host="localhost"):
    all_lines = [target, *([f"Host: {host}"] if host else []), *lines]
    return "\r\n".join(all_lines).encode() + b"\r\n\r\n"


class Framing(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = server_test.Server()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def refused(self, request, needle, status=400):
        """Expects one answer, and that the server reads no second request from the rest."""
        got, data = exchange(self.server.port, request)
        self.assertEqual(got, [status], (request[:300], data))
        self.assertIn(b"Connection: close", data)
        self.assertIn(needle, data)

    def test_no_body_is_read_as_a_request(self):
        for value in ("chunked, identity", "identity, chunked", "xchunked", "gzip", "gzip, chunked", "identity", "chunked,", ""):
            self.refused(head(f"Transfer-Encoding: {value}") + SMUGGLED, b"Transfer-Encoding")
        self.refused(head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + SMUGGLED, b"")
        self.refused(head("Transfer-Encoding: identity", "Transfer-Encoding: chunked") + SMUGGLED, b"Transfer-Encoding")
        self.refused(head("Transfer-Encoding: chunked", target="POST /v1/completions HTTP/1.0") + b"0\r\n\r\n" + SMUGGLED,
                     b"Transfer-Encoding")
        for lines in (("Transfer-Encoding: chunked", "Content-Length: 5"), ("Content-Length: 5", "Transfer-Encoding: chunked"),
                      ("Content-Length: 5", "Transfer-Encoding: identity"), ("Content-Length: 5", "Content-Length: 5"),
                      ("Content-Length: 5, 5",), ("Content-Length: +5",), ("Content-Length: -1",), ("Content-Length: ",)):
            self.refused(head(*lines) + b"0\r\n\r\n" + SMUGGLED, b"")

    def test_chunked_bodies_are_read(self):
        body = json.dumps({"prompt": "x", "add_special_tokens": False}).encode()
        chunks = b"".join(b"%x;name=value\r\n%s\r\n" % (len(piece), piece) for piece in (body[:7], body[7:]))
        for name in ("chunked", "Chunked"):
            got, data = exchange(self.server.port, head(f"Transfer-Encoding: {name}", target="POST /tokenize HTTP/1.1") + chunks +
                                 b"0\r\nX-Trailer: 1\r\n\r\n" + SMUGGLED)
            self.assertEqual(got, [200, 200], data)  # the bytes after a whole request are the next request

    def test_what_is_around_chunks_is_bounded(self):
        begin = head("Transfer-Encoding: chunked")
        self.refused(begin + b"1;" + b"e" * 40_000 + b"\r\nx\r\n0\r\n\r\n", b"chunk")
        self.refused(begin + b"1;e=" + b"e" * 5_000_000, b"chunk")  # the line never ends
        self.refused(begin + (b"1;" + b"e" * 1000 + b"\r\nx\r\n") * 40 + b"0\r\n\r\n", b"chunk")
        self.refused(begin + b"0\r\n" + b"X-Trailer: 1\r\n" * 40_000 + b"\r\n", b"chunk")

    def test_headers_go_on_in_no_other_line(self):
        for fold in (" chunked", "\tchunked", " "):
            self.refused(head("Transfer-Encoding:", fold) + SMUGGLED, b"begins with a space")
        self.refused(head("X-A: 1", " Transfer-Encoding: chunked") + SMUGGLED, b"begins with a space")
        self.refused(b"POST /v1/completions HTTP/1.1\r\n Host: localhost\r\n\r\n", b"")

    def test_headers_are_bounded_however_they_come(self):
        self.refused(head(*["X: 1"] * 300), b"header lines", 431)
        self.refused(head(*["X: " + "x" * 1000] * 100), b"headers are larger", 431)
        # Line by line, so that the parser never holds much of it.
        with socket.create_connection(("127.0.0.1", self.server.port), CLIENT_TIMEOUT) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n")
            data = b""
            for _ in range(200):
                try:
                    connection.sendall(b"X: " + b"x" * 1000 + b"\r\n")
                except OSError:
                    break
                time.sleep(0.002)
            data = read_all(connection)
        self.assertTrue(data.startswith(b"HTTP/1.1 431"), data)

    def test_a_request_names_one_host(self):
        got, data = exchange(self.server.port, b"GET /version HTTP/1.0\r\n\r\n")
        self.assertEqual(got, [200], data)
        get = "GET /version HTTP/1.1"
        self.refused(head(target=get, host=None) + SMUGGLED, b"Host: missing")
        self.refused(head("Host: localhost", target=get) + SMUGGLED, b"Host: must stand once")
        for host in ("a b", "localhost:x", "localhost:99999", "[::1", "a@localhost", "localhost, localhost", ""):
            self.refused(head(target=get, host=host + " ").replace(b" \r\n\r\n", b"\r\n\r\n") + SMUGGLED, b"Host: ")

    def test_slow_headers_are_cut(self):
        server = self.serve("--header-timeout", "1")
        for request in (b"GET /vers", b"GET /version HTTP/1.1\r\nHost: localhost\r\n"):
            self.assertLess(seconds_until_cut(server.port, request, drip=b"X", pause=0.1), 15)


class Names(Case):
    def status(self, server, **arguments):
        arguments.setdefault("target", "GET /version HTTP/1.1")
        return exchange(server.port, head("Connection: close", *arguments.pop("lines", ()), **arguments))

    def test_a_server_without_a_key_answers_to_loopback_names_alone(self):
        server = self.serve("--allowed-hosts", "box.example")
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "127.9.9.9", "[::1]:8000", "box.example:80", "Box.Example"):
            self.assertEqual(self.status(server, host=host)[0], [200], host)
        for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]"):
            got, data = self.status(server, host=host)
            self.assertEqual(got, [403], host)
            self.assertIn(b"--allowed-hosts", data)
            self.assertIn(b"X-Request-Id", data)
        body = b'{"prompt": "x"}'
        got, _ = exchange(server.port, head(f"Content-Length: {len(body)}", host="evil.example") + body + SMUGGLED)
        self.assertEqual(got, [403])

    def test_pages_of_others_cannot_post_to_it(self):
        server = self.serve("--server-dev-mode", "--allowed-origins", "https://a.example")
        post = "POST /reset_prefix_cache HTTP/1.1"
        for site in ("cross-site", "same-site"):
            got, data = self.status(server, target=post, lines=(f"Sec-Fetch-Site: {site}", "Origin: https://evil.example"))
            self.assertEqual(got, [403], data)
            self.assertIn(b"https://evil.example", data)
        for lines in ((), ("Sec-Fetch-Site: same-origin", "Origin: http://localhost:8000"), ("Sec-Fetch-Site: none",),
                      ("Sec-Fetch-Site: cross-site", "Origin: https://a.example")):
            self.assertEqual(self.status(server, target=post, lines=lines)[0], [200], lines)

    def test_a_key_or_a_unix_socket_makes_names_free(self):
        server = self.serve("--api-key", "k")
        self.assertEqual(self.status(server, host="any.example", lines=("Authorization: Bearer k",))[0], [200])
        with tempfile.TemporaryDirectory() as folder:
            server = UnixServer(os.path.join(folder, "s"), "--server-dev-mode")
            self.addCleanup(lambda: server.process.poll() is None and server.stop())
            with server.open() as connection:
                connection.sendall(head("Connection: close", target="GET /is_sleeping HTTP/1.1", host="any.example"))
                self.assertTrue(read_all(connection).startswith(b"HTTP/1.1 200"))

    def test_what_cannot_start(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            with open(keys, "w", encoding="utf-8") as file:
                file.write("good\nno good\n")
            for flags, needle in ((["--api-key", ""], "--api-key: the key is empty"), (["--api-key", "a b"], "visible ASCII"),
                                  (["--api-key-file", keys], "--api-key-file"), (["--allowed-hosts", "a:80"], "'a:80'"),
                                  (["--allowed-origins", "[x"], "no list of texts"),
                                  (["--server-dev-mode", "--host", "0.0.0.0"], "--server-dev-mode needs --api-key"),
                                  (["--max-buffered-bytes", "32MiB"], "--max-buffered-bytes: 33554432 is less than"),
                                  (["--allowed-hosts", "a", "--uds", os.path.join(folder, "s")], "--allowed-hosts has no meaning"),
                                  (["--max-connections", "0"], "--max-connections: '0'")):
                # The request never reaches this model.
                done = subprocess.run([BIN, "serve", "/no/such.gguf", "--port", "0", *flags], capture_output=True,
                                      timeout=TIMEOUT, env=clean_environment(), check=False)
                self.assertEqual(done.returncode, 2, (flags, done.stderr))
                self.assertIn(needle, done.stderr.decode())
        self.serve("--server-dev-mode", "--host", "127.0.0.1")


class Memory(Case):
    def resident(self, server):
        with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1)) * 1024

    def test_bodies_without_a_key_are_not_read(self):
        server = self.serve("--api-key", "k")
        size = 31 * 1024 * 1024
        for framing in (f"Content-Length: {size}", "Transfer-Encoding: chunked"):
            server.ask("GET", "/health")
            before = self.resident(server)
            connections = [socket.create_connection(("127.0.0.1", server.port), CLIENT_TIMEOUT) for _ in range(20)]
            answers = []
            try:
                for connection in connections:
                    connection.sendall(head(framing))
                piece = b"%x\r\n" % (1024 * 1024) + b"x" * 1024 * 1024 + b"\r\n"
                alive = set(connections)
                for _ in range(31):
                    for connection in list(alive):
                        try:
                            connection.sendall(piece)
                        except OSError:  # the server has closed it
                            alive.discard(connection)
                grown = self.resident(server) - before
                for connection in connections:
                    try:
                        answers.append(connection.recv(100))
                    except OSError:
                        pass
            finally:
                for connection in connections:
                    connection.close()
            self.assertLess(grown, 5_000_000, framing)
            for answer in answers:
                self.assertTrue(answer.startswith(b"HTTP/1.1 401"), answer)

    def test_what_needs_a_key(self):
        server = self.serve("--api-key", "k", "--server-dev-mode")
        for path in ("/", "/health", "/livez", "/readyz", "/ping"):
            self.assertEqual(server.ask("GET", path)[0], 200, path)
        # Each is answered before its body has arrived.
        for target, status in (("POST /v1/completions", 401), ("POST /tokenize", 401), ("GET /metrics", 401), ("GET /version", 401),
                               ("POST /sleep", 401), ("GET /nowhere", 401), ("OPTIONS /v1/completions", 204), ("POST /ping", 200)):
            with socket.create_connection(("127.0.0.1", server.port), CLIENT_TIMEOUT) as connection:
                connection.sendall(head("Content-Length: 1000", target=target + " HTTP/1.1"))
                data = connection.recv(65536)
            self.assertTrue(data.startswith(b"HTTP/1.1 %d" % status), (target, data))
            self.assertIn(b"Connection: close", data, target)
        # A refusal instead of 100 Continue.
        with socket.create_connection(("127.0.0.1", server.port), CLIENT_TIMEOUT) as connection:
            connection.sendall(head("Content-Length: 1000", "Expect: 100-continue"))
            self.assertTrue(connection.recv(65536).startswith(b"HTTP/1.1 401"))
        with socket.create_connection(("127.0.0.1", server.port), CLIENT_TIMEOUT) as connection:
            body = b'{"prompt": "x"}'
            connection.sendall(head(f"Content-Length: {len(body)}", "Expect: 100-continue", "Authorization: Bearer k",
                                    target="POST /tokenize HTTP/1.1"))
            self.assertTrue(connection.recv(25, socket.MSG_WAITALL).startswith(b"HTTP/1.1 100"))
            connection.sendall(body)
            self.assertTrue(connection.recv(65536).startswith(b"HTTP/1.1 200"))
        server = self.serve("--api-key", "k", "--metrics-without-key")
        self.assertEqual((server.ask("GET", "/metrics")[0], server.ask("GET", "/version")[0]), (200, 401))

    def test_a_body_that_is_too_large_needs_a_key_first(self):
        server = self.serve("--api-key", "k", "--max-body-bytes", "2048")
        body = b"x" * 100_000
        self.assertEqual(server.ask("POST", "/tokenize", body)[0], 401)
        key = {"Authorization": "Bearer k"}
        self.assertEqual(server.ask("POST", "/tokenize", body, key)[0], 413)
        pieces = (body[:1000] for _ in range(5))  # chunked
        self.assertEqual(server.ask("POST", "/tokenize", pieces, key)[0], 413)

    def test_requests_share_a_budget(self):
        server = self.serve("--max-body-bytes", "1MiB", "--max-buffered-bytes", "5200000")
        body = b'{"prompt": "x"' + b" " * 1_000_000 + b"}"
        for framing, wrap in (("Content-Length: %d" % len(body), lambda data: data),
                              ("Transfer-Encoding: chunked", lambda data: b"%x\r\n" % len(body) + data)):
            held = []
            for _ in range(2):  # everything but the end
                held.append(socket.create_connection(("127.0.0.1", server.port), CLIENT_TIMEOUT))
                held[-1].sendall(head(framing, target="POST /tokenize HTTP/1.1") + wrap(body)[:980_000])
            time.sleep(0.5)
            status, headers, data = server.ask("POST", "/tokenize", b'{"prompt": "' + b"x" * 500_000 + b'"}')
            self.assertEqual((status, headers["Retry-After"]), (503, "1"), data)
            self.assertIn(b"--max-buffered-bytes", data)
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            for connection in held:
                connection.close()
            end = time.monotonic() + 20
            while server.ask("POST", "/tokenize", body)[0] != 200 and time.monotonic() < end:
                time.sleep(0.05)
            for _ in range(20):  # memory of what was read is released
                self.assertEqual(server.ask("POST", "/tokenize", body)[0], 200)

    def test_connections_are_bounded(self):
        for flag in ("--max-connections", "--max-connections-per-address"):
            server = self.serve(flag, "5")
            held = [socket.create_connection(("127.0.0.1", server.port), CLIENT_TIMEOUT) for _ in range(5)]
            with socket.create_connection(("127.0.0.1", server.port), CLIENT_TIMEOUT) as one_more:
                data = read_all(one_more)
            self.assertTrue(data.startswith(b"HTTP/1.1 503"), data)
            self.assertIn(b"Retry-After: 1\r\n", data)
            if flag == "--max-connections-per-address":
                with socket.create_connection(("127.0.0.1", server.port), CLIENT_TIMEOUT, ("127.0.0.2", 0)) as other:
                    other.sendall(head("Connection: close", target="GET /health HTTP/1.1"))
                    self.assertTrue(read_all(other).startswith(b"HTTP/1.1 200"))
            for connection in held:
                connection.close()
            end = time.monotonic() + 20
            while time.monotonic() < end:
                try:
                    if server.ask("GET", "/health")[0] == 200:
                        break
                except OSError:
                    pass
                time.sleep(0.05)
            self.assertEqual(server.ask("GET", "/health")[0], 200)

    def test_slow_bodies_are_cut(self):
        server = self.serve("--read-timeout", "1")
        request = head("Content-Length: 100000")
        self.assertLess(seconds_until_cut(server.port, request, drip=b"x", pause=0.05), 15)


class Load(Case):
    """Large texts keep the thread pool busy while small requests and reports are timed."""

    PROBES = (("GET", "/health", None), ("GET", "/metrics", None), ("GET", "/version", None), ("GET", "/v1/models", None),
              ("GET", "/v1/engine/state", None), ("POST", "/tokenize", b'{"prompt": "small"}'))

    def slowest(self, server, body, num_clients, seconds):
        """Returns the longest time of a probe, and the statuses of the large requests."""
        statuses, stop = [], threading.Event()

        def send_large():
            while not stop.is_set():
                try:
                    statuses.append(server.ask("POST", "/tokenize", body)[0])
                except OSError as error:
                    statuses.append(type(error).__name__)

        threads = [threading.Thread(target=send_large) for _ in range(num_clients)]
        for thread in threads:
            thread.start()
        longest = 0
        try:
            time.sleep(0.5)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for method, path, small in self.PROBES:
                    begin = time.monotonic()
                    self.assertEqual(server.ask(method, path, small)[0], 200)
                    longest = max(longest, time.monotonic() - begin)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        return longest, statuses

    def test_a_text_that_cannot_fit_is_refused_at_once(self):
        server = self.serve()
        body = json.dumps({"prompt": "word " * 4_000_000}).encode()  # 20 MB
        begin = time.monotonic()
        longest, statuses = self.slowest(server, body, 4, 2)
        self.assertEqual({400}, set(statuses))
        self.assertLess(time.monotonic() - begin, 20)
        self.assertLess(longest, 2)
        # A text whose length might fit. Its beginning already has too many tokens.
        status, answer = server.post("/v1/completions", {"prompt": "a b c d " * 20_000})
        self.assertEqual((status, answer["error"]["type"]), (400, "context_length_exceeded"), answer)
        self.assertLess(answer["error"]["n_prompt_tokens"], 40_000)

    def test_large_texts_hold_up_nobody_else(self):
        server = self.serve("--max-model-len", "8192")
        for size in (400_000, 200_000, 100_000, 50_000):  # the largest allowed sizes
            body = json.dumps({"prompt": "abc def " * (size // 8)}).encode()
            if server.ask("POST", "/tokenize", body)[0] == 200:
                break
        longest, statuses = self.slowest(server, body, 24, 3)
        self.assertEqual({200}, set(statuses))
        self.assertLess(longest, 1.5)

    def test_waiting_texts_are_bounded(self):
        server = self.serve("--max-model-len", "8192", "--max-waiting-texts", "2")
        body = json.dumps({"prompt": "abc def " * 6_000}).encode()
        with futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: server.ask("POST", "/tokenize", body), range(64)))
        self.assertEqual({status for status, _, _ in answers}, {200, 503})
        full = next(answer for answer in answers if answer[0] == 503)
        self.assertEqual(full[1]["Retry-After"], "1")
        self.assertIn(b"--max-waiting-texts", full[2])


if __name__ == "__main__":
    sys.exit(server_test.main())
