#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Black-box tests of the order of service: `--scheduling-policy`, `--long-prefill-token-threshold`
and `--target-itl-ms`.

Usage and environment as server_test.py.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import server_test
from server_test import BIN, CHAT, MODEL, PROMPT, TIMEOUT, clean_environment
from server_life_test import LONG, Case, stream, wait_until

BY_PRIORITY = ("--scheduling-policy", "priority")


class Priorities(Case):
    def order(self, server, priorities):
        """The order of answers to requests with these priorities, which arrive in sequence while another request runs."""
        running, answer = stream(server)
        answer.read(10)
        ended = []

        def ask(priority):
            status, data = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 16, "ignore_eos": True,
                                                           "priority": priority})
            ended.append(priority if status == 200 else data)

        threads = []
        for priority in priorities:
            threads.append(threading.Thread(target=ask, args=(priority,)))
            threads[-1].start()
            self.assertTrue(wait_until(lambda: self.state(server)["scheduler"]["waiting"] == len(threads)))
        running.close()
        for thread in threads:
            thread.join(TIMEOUT)
        return ended

    def test_the_lower_value_is_served_first(self):
        server = self.serve("--max-num-seqs", "1", *BY_PRIORITY)
        self.assertEqual(self.order(server, [7, 0, -3, 2]), [-3, 0, 2, 7])

    def test_without_the_policy_a_priority_is_refused(self):
        server = self.serve("--max-num-seqs", "1")
        for path, prompt in (("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": CHAT})):
            status, answer = server.post(path, {**prompt, "max_tokens": 1, "priority": -3})
            self.assertEqual((status, answer["error"]["param"]), (400, "priority"))
            self.assertIn("-3", answer["error"]["message"])
            self.assertIn("--scheduling-policy priority", answer["error"]["message"])
            for none in (0, None):
                self.assertEqual(server.post(path, {**prompt, "max_tokens": 1, "priority": none})[0], 200)
        self.assertEqual(self.order(server, [0, 0]), [0, 0])

    def test_other_commands_have_the_policy_too(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = Path(folder) / "lines.jsonl"
            lines.write_text(json.dumps({"prompt": PROMPT, "max_tokens": 1, "priority": 5}) + "\n")
            batch = Path(folder) / "batch.jsonl"
            batch.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions",
                                         "body": {"model": MODEL, "prompt": PROMPT, "max_tokens": 1, "priority": 5}}) + "\n")
            for command in (["generate", MODEL, "--prompts-file", str(lines)], ["run-batch", MODEL, "-i", str(batch), "-o", "-"]):
                for flags, code in ((BY_PRIORITY, 0), ((), 1)):
                    done = subprocess.run([BIN, *command, "--max-model-len", "256", *flags], capture_output=True, text=True,
                                          timeout=TIMEOUT, env=clean_environment(), check=False)
                    self.assertEqual(done.returncode, code, done.stderr)
                    self.assertEqual("--scheduling-policy priority" in done.stdout, code == 1, done.stdout)


class LongPrompts(Case):
    def short_comes_first(self, *flags):
        """Whether a short prompt is answered before an earlier long prompt has its first token."""
        server = self.serve("--max-num-batched-tokens", "64", *flags)
        connection = server.connect()
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", json.dumps({**LONG, "prompt": "word " * 1800, "max_tokens": 2}))
        self.assertTrue(wait_until(lambda: any(request["computed_tokens"] for request in self.state(server)["requests"])))
        self.assertEqual(server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2})[0], 200)
        live = self.state(server)["requests"]
        return len(live) == 1 and live[0]["output_tokens"] == 0

    def test_a_short_prompt_does_not_wait_for_a_long_one(self):
        self.assertTrue(self.short_comes_first())
        self.assertFalse(self.short_comes_first("--long-prefill-token-threshold", "0"))


class TargetItl(Case):
    def gaps_beside_a_prompt(self, target_ms):
        """The times between a stream's tokens while a prompt of about 1800 tokens is computed, in seconds."""
        server = self.serve("--target-itl-ms", str(target_ms))
        running, answer = stream(server)
        self.addCleanup(running.close)
        times = []
        ended = threading.Event()

        def read():
            while not ended.is_set() and answer.readline():
                if answer.readline():  # an event and an empty line
                    times.append(time.monotonic())

        reader = threading.Thread(target=read)
        reader.start()
        self.assertTrue(wait_until(lambda: len(times) > 20))
        begin = time.monotonic()
        status, body = server.post("/v1/completions", {"prompt": "word " * 1800, "max_tokens": 1})
        end = time.monotonic()
        ended.set()
        reader.join(TIMEOUT)
        self.assertEqual((status, body["usage"]["prompt_tokens"] > 1700), (200, True), body)
        inside = [at for at in times if begin <= at <= end]
        self.assertGreater(len(inside), 2)
        return [later - earlier for earlier, later in zip(inside, inside[1:])]

    def test_a_stream_goes_on_beside_a_long_prompt(self):
        # Without a limit the prompt takes four steps. On a slow machine steps get smaller, so there are more of them.
        free, limited = self.gaps_beside_a_prompt(0), self.gaps_beside_a_prompt(10)
        self.assertGreater(len(limited), 2 * len(free))
        self.assertLess(statistics.median(limited), statistics.mean(free))

    def test_a_bad_target_is_refused(self):
        for value in ("-1", "60001", "soon"):
            done = subprocess.run([BIN, "serve", MODEL, "--target-itl-ms", value], capture_output=True, text=True, timeout=TIMEOUT,
                                  env=clean_environment(), check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("--target-itl-ms", done.stderr)
            self.assertIn(value, done.stderr)
        done = subprocess.run([BIN, "serve", MODEL, "--prefill-toks-per-decode", "2"], capture_output=True, text=True, timeout=TIMEOUT,
                              env=clean_environment(), check=False)
        self.assertEqual(done.returncode, 2, done.stderr)


if __name__ == "__main__":
    sys.exit(server_test.main())
