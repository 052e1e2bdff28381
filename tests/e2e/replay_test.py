#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`serve --record-steps` and `replay`, with random weights of a tiny model.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/replay_test.py [-k NAME]
"""

import json
import os
import re
import stat
import subprocess
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import server_test
from server_test import BIN, TIMEOUT, clean_environment

MODEL = str(Path(__file__).resolve().parents[1] / "golden/tiny/llama_gqa_tied")
SETTINGS = ("--load-format", "dummy", "--max-model-len", "256", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "1MiB")
SECRET = "the secret prompt"


def replay(*arguments):
    return subprocess.run([BIN, "replay", *arguments], capture_output=True, text=True, timeout=TIMEOUT,
                          env=clean_environment())


class Replay(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = str(Path(folder.name) / "steps")

    def record(self, *flags):
        """Serves a few requests at once and returns the server's exit code."""
        server = server_test.Server("--device", "cpu", *SETTINGS, "--record-steps", self.file, *flags, model=MODEL)
        self.addCleanup(server.process.kill)

        def ask(n):
            body = {"model": MODEL, "prompt": f"{SECRET} {n}", "max_tokens": 20 + n, "ignore_eos": True, "seed": n,
                    "logprobs": 2 if n % 2 else None}
            return server.ask("POST", "/v1/completions", body)[0]

        with ThreadPoolExecutor(12) as pool:
            self.assertEqual(set(pool.map(ask, range(24))), {200})
        server.process.terminate()
        self.addCleanup(server.process.stderr.close)
        return server.process.wait(TIMEOUT)

    def test_nothing_differs(self):
        self.record("--record-tokens")
        done = replay(self.file)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"schedule +consistent")
        self.assertRegex(done.stdout, r"tokens +no difference")
        done = replay(self.file, "--output", "json", "--threads", "2", "--no-async-scheduling")
        report = json.loads(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(report["same"])
        self.assertEqual(report["checked"], "tokens")
        self.assertEqual(report["requests"], 24)
        self.assertEqual(report["requests_left_out"], 0)
        self.assertGreaterEqual(report["outputs_compared"], sum(20 + n for n in range(24)))

    def test_stages_replay_and_are_replayed(self):
        for recorded, here in (("1", "2"), ("2", "2"), ("2", "1")):
            self.record("--record-tokens", "-pp", recorded)
            done = replay(self.file, "-pp", here, "--no-async-scheduling", "--output", "json")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            report = json.loads(done.stdout)
            self.assertTrue(report["same"])
            self.assertEqual(report["requests"], 24)

    def test_another_precision_differs(self):
        self.record("--record-tokens")
        done = replay(self.file, "--dtype", "float32", "--output", "json")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        report = json.loads(done.stdout)
        self.assertFalse(report["same"])
        self.assertGreaterEqual(report["first_difference"]["step"], 1)
        self.assertIn("instead of", report["first_difference"]["what"])

    def test_without_tokens_the_schedule_is_checked(self):
        self.record()
        done = replay(self.file)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"schedule +consistent")
        self.assertIn("not checked: the recording has no ids", done.stdout)
        # A token of this model is a byte.
        as_ids = b"".join(bytes([byte, 0, 0, 0]) for byte in b"secret")
        self.assertNotIn(as_ids, Path(self.file).read_bytes())
        self.record("--record-tokens")
        self.assertIn(as_ids, Path(self.file).read_bytes())
        self.assertTrue(Path(self.file + ".old").exists())
        self.assertEqual(stat.S_IMODE(os.stat(self.file).st_mode), 0o600)

    def test_what_cannot_be_read_says_why(self):
        Path(self.file).write_bytes(b"x" * 5000)
        for arguments, code, needle in (((), 2, "needs one FILE"), ((self.file,), 3, "is no recording of steps"),
                                        ((self.file + "2",), 3, "No such file")):
            done = replay(*arguments)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(needle, done.stderr)
        done = subprocess.run([BIN, "serve", MODEL, *SETTINGS, "--port", "0", "--record-steps", self.file],
                              capture_output=True, text=True, timeout=TIMEOUT, env=clean_environment())
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("is no recording of steps", done.stderr)
        done = subprocess.run([BIN, "serve", MODEL, *SETTINGS, "--record-tokens"], capture_output=True, text=True,
                              timeout=TIMEOUT, env=clean_environment())
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--record-tokens needs --record-steps", done.stderr)
        done = replay("--help=all")
        self.assertTrue(re.search(r"usage: warprow replay FILE", done.stdout), done.stdout[:300])

    def test_a_server_that_was_killed_leaves_a_recording(self):
        server = server_test.Server("--device", "cpu", *SETTINGS, "--record-steps", self.file, "--record-tokens", model=MODEL)
        body = {"model": MODEL, "prompt": SECRET, "max_tokens": 120, "ignore_eos": True}
        self.assertEqual(server.ask("POST", "/v1/completions", body)[0], 200)
        # The thread that writes may be some steps behind, on a busy machine most of them.
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            seen = replay(self.file, "--output", "json")
            if seen.returncode == 0 and json.loads(seen.stdout)["steps"] >= 50:
                break
        server.process.kill()
        server.process.wait(TIMEOUT)
        server.process.stderr.close()
        done = replay(self.file, "--output", "json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertGreaterEqual(json.loads(done.stdout)["steps"], 50)


if __name__ == "__main__":
    unittest.main()
