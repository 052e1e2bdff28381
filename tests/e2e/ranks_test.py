#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks in processes of their own: answers are those of one rank, and when a rank fails, requests end at once, the server says
why, and nothing is left.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/ranks_test.py [-k NAME]

Environment as server_test.py. rank_faults.py repeats the faults.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import unittest

import server_test
from server_test import BIN, MODEL, PROMPT, Server, TIMEOUT, clean_environment

RANKS = 3  # SmolLM2 has 9 heads and 3 KV heads
STUCK_RANK = os.path.join(os.path.dirname(os.path.abspath(BIN)), "tests", "rank_process")
EXACT = ("--dtype", "float32", "--threads", "1", "--max-num-seqs", "8")


def ranks_of(pid):
    """The processes that a server started for its ranks."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except (OSError, ValueError):
            continue
        if parent == pid and words[1:2] == [b"rank"]:
            found.append((int(words[2]), int(name)))
    return [pid for _, pid in sorted(found)]


def lives(pid):
    """Whether the process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def generate(*flags, prompt=PROMPT):
    command = [BIN, "generate", MODEL, "-p", prompt, "--max-tokens", "24", "--output", "json", *EXACT, *flags]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, env=clean_environment(), check=True)
    return json.loads(done.stdout)["choices"][0]["token_ids"]


class Answers(unittest.TestCase):
    def test_are_those_of_one_rank(self):
        for flags in (("--temperature", "0"),
                      ("--seed", "7", "--temperature", "0.8", "--top-p", "0.9"),
                      ("--seed", "7", "--temperature", "1", "--regex", "[0-9]{3}-[a-z]{40}")):
            alone = generate(*flags)
            self.assertGreater(len(set(alone)), 5)
            self.assertEqual(generate(*flags, "-tp", str(RANKS)), alone)
            self.assertEqual(generate(*flags, "-pp", "2"), alone)
            self.assertEqual(generate(*flags, "--distributed-executor-backend", "mp"), alone)
        self.assertEqual(generate(*flags, "-tp", str(RANKS), "-pp", "2"), alone)
        self.assertEqual(generate(*flags, "-pp", "4", "--no-async-scheduling"), alone)

    # The residual stream of 64 tokens is larger than a slot of the memory between stages.
    def test_a_long_prompt_passes_the_stages(self):
        alone = generate("--temperature", "0", prompt=PROMPT * 40)
        self.assertEqual(generate("--temperature", "0", "-pp", "3", prompt=PROMPT * 40), alone)

    def test_stages_sleep_and_wake(self):
        done = subprocess.run([BIN, "selftest", "sleep", MODEL, "-pp", "2", "--max-model-len", "256", "--kv-cache-memory-bytes",
                               "32MiB"], capture_output=True, text=True, timeout=TIMEOUT, env=clean_environment(), check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_impossible_split_is_refused(self):
        done = subprocess.run([BIN, "generate", MODEL, "-p", PROMPT, "-tp", "2"], capture_output=True, text=True, timeout=TIMEOUT,
                              env=clean_environment(), check=False)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("num_attention_heads 9 is no multiple of tensor-parallel-size 2", done.stderr)

    def test_more_stages_than_layers_are_refused(self):
        done = subprocess.run([BIN, "generate", MODEL, "-p", PROMPT, "-pp", "31"], capture_output=True, text=True, timeout=TIMEOUT,
                              env=clean_environment(), check=False)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("pipeline-parallel-size 31 is more than the model's 30 layers", done.stderr)


class RankFaults(unittest.TestCase):
    FLAGS = ("-tp", str(RANKS))

    def setUp(self):
        self.server = Server(*self.FLAGS, *EXACT)
        self.ranks = ranks_of(self.server.process.pid)
        self.assertEqual(len(self.ranks), RANKS)
        self.shm = set(os.listdir("/dev/shm"))

    def tearDown(self):
        for pid in [self.server.process.pid, *self.ranks]:
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
        self.server.process.wait(TIMEOUT)
        self.server.process.stderr.close()

    def fail_during_an_answer(self, fault, num_lines=20):
        """Causes the fault when some lines of an answer have come. Returns what the client got last, and how many seconds later."""
        connection = self.server.connect()
        body = {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200)
        last = b""
        for _ in range(num_lines):
            last = answer.readline()
        begin = time.monotonic()
        fault()
        try:
            for line in answer:
                last = line if line.startswith(b"data: {") else last
        except http.client.HTTPException:
            pass
        took = time.monotonic() - begin
        connection.close()
        return last.decode(), took

    def assert_all_end(self, why):
        """The server says why it fails, and all processes end in time."""
        begin = time.monotonic()
        status, _, text = self.server.ask("GET", "/health")
        self.assertEqual(status, 503)
        self.assertIn(why, text.decode())
        self.assertEqual(self.server.process.wait(10), 5)
        while any(lives(pid) for pid in self.ranks) and time.monotonic() - begin < 10:
            time.sleep(0.05)
        self.assertLess(time.monotonic() - begin, 10)
        self.assertFalse([pid for pid in self.ranks if lives(pid)])
        self.assertEqual(set(os.listdir("/dev/shm")) - self.shm, set())

    def assert_rank_failure(self, rank, number, why):
        last, took = self.fail_during_an_answer(lambda: os.kill(self.ranks[rank], number))
        self.assertLess(took, 1.0)
        self.assertIn(f"rank {rank} of {RANKS}", last)
        self.assert_all_end(why)


class Faults(RankFaults):
    def test_a_killed_rank(self):
        self.assert_rank_failure(1, signal.SIGKILL, "ended with signal 9")

    def test_the_killed_output_rank(self):
        self.assert_rank_failure(0, signal.SIGKILL, "ended with signal 9")

    def test_a_stopped_rank(self):
        self.assert_rank_failure(2, signal.SIGSTOP, "is stopped")

    def test_ranks_end_with_a_killed_server(self):
        os.kill(self.server.process.pid, signal.SIGKILL)
        begin = time.monotonic()
        while any(lives(pid) for pid in self.ranks) and time.monotonic() - begin < 5:
            time.sleep(0.05)
        self.assertFalse([pid for pid in self.ranks if lives(pid)])

    def test_ranks_end_with_a_stopped_server(self):
        self.assertEqual(self.server.stop(), 0)
        self.assertFalse([pid for pid in self.ranks if lives(pid)])


class StageFaults(RankFaults):
    """Stages before the last, which has the outputs."""
    FLAGS = ("-pp", str(RANKS))

    def test_a_killed_first_stage(self):
        self.assert_rank_failure(0, signal.SIGKILL, "ended with signal 9")

    def test_a_stopped_stage(self):
        self.assert_rank_failure(1, signal.SIGSTOP, "is stopped")


@unittest.skipUnless(os.path.exists(STUCK_RANK), "the rank process of tests was not built")
class StuckStage(RankFaults):
    FLAGS = ("-pp", str(RANKS), "--worker-binary", STUCK_RANK, "--stall-timeout", "1")

    def setUp(self):
        os.environ["WR_RANK_FAULT"] = "stuck 1"
        try:
            super().setUp()
        finally:
            del os.environ["WR_RANK_FAULT"]

    # It does not return from its third step.
    def test_fails_the_rest_after_the_stall_timeout(self):
        last, took = self.fail_during_an_answer(lambda: None, num_lines=1)
        self.assertLess(took, 2.0)
        self.assertIn(f"rank 1 of {RANKS}", last)
        self.assert_all_end("has finished no step for 1.0 s: phase submitting, step 3")


if __name__ == "__main__":
    sys.exit(server_test.main())
