#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Black-box tests of the commands that talk to a server, against `warprow serve` and against stand-ins.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/client_test.py [-k NAME]

Environment as in cli_test.py. Exits 77, which ctest shows as skipped, if the model is not on this machine.
"""

import http.server
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cli_test import default_model_file  # noqa: E402
from server_test import BIN, MODEL, TIMEOUT, Server, clean_environment  # noqa: E402


def run(*args, stdin=b"", env=None):
    env = {k: v for k, v in (env or clean_environment()).items() if not k.startswith("OPENAI_")}
    return subprocess.run([BIN, *map(str, args)], input=stdin, capture_output=True, timeout=TIMEOUT, env=env)


class StandIn:
    """A stand-in for another server of OpenAI's API. It sends `pieces` words, `gap` seconds apart, after `first` seconds."""

    def __init__(self, first, gap, pieces):
        bodies = self.bodies = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if self.path != "/v1/models":
                    return self.send_error(404)
                data = json.dumps({"data": [{"id": "stand-in"}]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_POST(self):
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                time.sleep(first)
                for i in range(pieces):
                    time.sleep(gap if i else 0)
                    self.event({"choices": [{"index": 0, "text": "word "}]})
                self.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2 * pieces}})
                self.chunk(b"data: [DONE]\n\n")
                self.chunk(b"")

            def event(self, value):
                self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

            def chunk(self, data):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class BenchServeElsewhere(unittest.TestCase):
    """The measured values against known timings."""

    def setUp(self):
        self.server = StandIn(first=0.2, gap=0.05, pieces=5)

    def tearDown(self):
        self.server.stop()

    def bench(self, *flags):
        done = run("bench", "serve", "--port", self.server.port, "--output", "json", *flags)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return json.loads(done.stdout)

    def test_times_and_counts(self):
        got = self.bench("--num-prompts", 4, "--max-concurrency", 2, "--percentile-metrics", "ttft,tpot,itl,e2el",
                         "--random-input-len", 9, "--random-output-len", 3, "--save-detailed")
        self.assertEqual((got["completed"], got["failed"], got["model_id"]), (4, 0, "stand-in"))
        self.assertEqual((got["total_input_tokens"], got["total_output_tokens"]), (28, 40))
        self.assertEqual(got["max_concurrent_requests"], 2)
        # Lower bounds are the server's pauses. Upper bounds add what a busy machine may need.
        for name, least, most in (("median_ttft_ms", 200, 260), ("median_itl_ms", 49, 80), ("median_e2el_ms", 400, 550),
                                  ("median_tpot_ms", 200 / 9, 40)):
            self.assertGreaterEqual(got[name], least, name)
            self.assertLessEqual(got[name], most, name)
        self.assertGreaterEqual(got["duration"], 0.8)
        self.assertEqual(got["generated_texts"], ["word " * 5] * 4)
        self.assertEqual([len(body["prompt"]) for body in self.server.bodies], [9] * 4)
        self.assertEqual({body["max_tokens"] for body in self.server.bodies}, {3})

    def test_an_open_loop_takes_its_time(self):
        got = self.bench("--num-prompts", 10, "--request-rate", 20, "--seed", 3)
        self.assertGreaterEqual(got["duration"], 0.5 + 0.4)
        self.assertLess(got["duration"], 3)
        self.assertGreater(got["max_concurrent_requests"], 2)

    def test_the_result_is_saved(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "result.json"
            got = self.bench("--num-prompts", 1, "--save-result", "--result-filename", path)
            self.assertEqual(json.loads(path.read_text()), got)
            done = run("bench", "serve", "--port", self.server.port, "--num-prompts", 1, "--result-filename",
                       "/no/such/dir/x.json")
            self.assertEqual(done.returncode, 3)
            self.assertIn(b"/no/such/dir/x.json", done.stderr)


class BenchServe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def bench(self, *flags):
        return run("bench", "serve", "--base-url", f"http://127.0.0.1:{self.server.port}/v1", "--output", "json", *flags)

    def test_completions_and_chat(self):
        for backend in ("openai", "openai-chat"):
            done = self.bench("--backend", backend, "--num-prompts", 4, "--random-input-len", 20, "--random-output-len", 6,
                              "--ignore-eos")
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            got = json.loads(done.stdout)
            self.assertEqual((got["completed"], got["model_id"]), (4, MODEL))
            self.assertEqual(got["total_output_tokens"], 24)
            if backend == "openai":
                self.assertEqual(got["total_input_tokens"], 80)

    def test_failures_are_said(self):
        done = self.bench("--num-prompts", 2, "--random-input-len", 5000)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(json.loads(done.stdout)["failed"], 2)
        self.assertIn(b"maximum context length", done.stderr)
        for flags, code, needle in ((("--burstiness", 0), 2, b"--burstiness"), (("x",), 2, b"unexpected argument 'x'"),
                                    (("--base-url", "ftp://x"), 2, b"has no port"), (("--model", "y"), 1, b"404")):
            done = self.bench("--num-prompts", 1, *flags)
            self.assertEqual(done.returncode, code, flags)
            self.assertIn(needle, done.stderr)
        done = run("bench", "serve", "--port", 1)
        self.assertEqual(done.returncode, 3)
        self.assertIn(b"cannot reach http://127.0.0.1:1", done.stderr)


class Chat(unittest.TestCase):
    LINES = b"What is gravity?\nAnd light?\n"
    GREEDY = ("--temperature", 0, "--max-tokens", 12)

    def test_a_server_says_what_the_engine_says(self):
        server = Server("--api-key", "secret")
        try:
            url = f"http://127.0.0.1:{server.port}"
            here = run("chat", MODEL, "--max-model-len", 2048, *self.GREEDY, stdin=self.LINES)
            there = run("chat", "--base-url", url, "--api-key", "secret", *self.GREEDY, "--stats", stdin=self.LINES)
            self.assertEqual(there.returncode, 0, there.stderr.decode())
            self.assertEqual(there.stdout, here.stdout)
            self.assertRegex(there.stderr.decode(), r"12 tokens in [\d.]+ s")
            for flags, needle in ((("--base-url", url), "401"), (("nonesuch", "--base-url", url, "--api-key", "secret"), "404"),
                                  (("--base-url", "http://127.0.0.1:1"), "cannot reach"), (("--base-url", "x:y"), "'x:y'"), ((), "no model"),
                                  (("--url", url), "did you mean --base-url?")):
                refused = run("chat", *flags, stdin=self.LINES)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn(needle, refused.stderr.decode())
        finally:
            self.assertEqual(server.stop(), 0)


class Top(unittest.TestCase):
    """Runs against a server that is answering one long request."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.url = f"http://127.0.0.1:{cls.server.port}"
        cls.connection = cls.server.connect()
        cls.connection.request("POST", "/v1/completions",
                               json.dumps({"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": True}))
        cls.connection.getresponse().readline()

    @classmethod
    def tearDownClass(cls):
        cls.connection.close()
        assert cls.server.stop() == 0

    def test_one_look_in_a_pipe(self):
        done = run("top", "--base-url", self.url)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        text = done.stdout.decode()
        self.assertRegex(text, rf"{MODEL}  {self.url}  warprow \d+\.\d+\.\d+  up ")
        self.assertRegex(text, r"\b1 of \d+ rows, 0 waiting")
        self.assertRegex(text, r"running .* \d+ms .*/2000 ")
        self.assertNotIn("\x1b", text)
        state = json.loads(run("top", "--port", self.server.port, "--output", "json").stdout)
        self.assertEqual(state["scheduler"]["running"], 1)

    def open_terminal(self, url):
        """Starts `top` in a terminal and waits for its first drawing. Returns the terminal's two ends, its earlier settings, and
        the process."""
        main, side = pty.openpty()
        self.addCleanup(os.close, main)
        self.addCleanup(os.close, side)
        before = termios.tcgetattr(side)
        process = subprocess.Popen([BIN, "top", "--base-url", url, "--interval", "0.1"], stdin=side, stdout=side, env=clean_environment())
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.read_until(main, lambda seen: seen.count(b"\x1b[H") > 2)
        self.assertFalse(termios.tcgetattr(side)[3] & termios.ICANON)
        return main, side, before, process

    def read_until(self, main, done):
        seen, end = b"", time.monotonic() + TIMEOUT
        while not done(seen) and time.monotonic() < end:
            if select.select([main], [], [], 1)[0]:
                seen += os.read(main, 65536)
        self.assertTrue(done(seen), seen[-2000:])
        return seen

    def assert_left(self, terminal, code):
        main, side, before, process = terminal
        self.read_until(main, lambda seen: seen.endswith(b"\x1b[?25h\x1b[?1049l"))
        self.assertEqual(process.wait(TIMEOUT), code)
        self.assertEqual(termios.tcgetattr(side), before)

    def test_a_terminal(self):
        terminal = self.open_terminal(self.url)
        self.read_until(terminal[0], lambda seen: b"/s out" in seen)
        os.write(terminal[0], b"q")
        self.assert_left(terminal, 0)

    def test_a_signal_leaves_the_terminal_as_it_was(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            terminal = self.open_terminal(self.url)
            terminal[-1].send_signal(number)
            self.assert_left(terminal, 128 + number)

    def test_a_server_that_goes_away_and_comes_back(self):
        server = Server()
        url = f"http://127.0.0.1:{server.port}"
        terminal = main, _, _, process = self.open_terminal(url)
        self.assertEqual(server.stop(), 0)
        self.read_until(main, lambda seen: b"cannot reach" in seen)
        self.assertIsNone(process.poll())
        server = Server("--port", str(server.port))  # the last one counts
        self.addCleanup(server.stop)
        last = lambda seen: seen[seen.rfind(b"\x1b[H", 0, -3):]  # noqa: E731
        self.read_until(main, lambda seen: b"rows" in last(seen) and b"cannot reach" not in last(seen))
        os.write(main, b"q")
        self.assert_left(terminal, 0)

    def test_failures_are_said(self):
        stand_in = StandIn(0, 0, 1)
        try:
            for args, code, needle in ((("x",), 2, b"'x'; the server is given with --base-url"), (("--interval", 0), 2, b"--interval"),
                                       (("--url", self.url), 2, b"unknown flag --url; did you mean --base-url?"),
                                       (("--base-url", "http://127.0.0.1:1"), 3, b"reach"), (("--port", stand_in.port), 2, b"/v1/engine/state")):
                done = run("top", *args)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(needle, done.stderr)
        finally:
            stand_in.stop()


def main():
    if not os.path.exists(default_model_file()):
        print(f"skipped: {default_model_file()} is not there", file=sys.stderr)
        return 77
    return 0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
