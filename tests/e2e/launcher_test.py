#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that a launcher starts (--distributed-executor-backend external_launcher): by the variables of torchrun, by mpirun, and on
two hosts, which are two network namespaces. Answers are those of one rank; when a rank fails, all end and say why.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/launcher_test.py [-k NAME]

Environment as server_test.py. rank_faults.py repeats the faults. Tests of mpirun
skip without it (apt-get install openmpi-bin), those of two hosts without root or unshare.
"""

import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

import server_test
from server_test import BIN, MODEL, PROMPT, TIMEOUT, clean_environment

EXACT = ("--dtype", "float32", "--threads", "1", "--max-num-seqs", "8")
LAUNCHED = ("--distributed-executor-backend", "external_launcher", "--join-timeout", "60")
GENERATE = ("generate", MODEL, "-p", PROMPT, "--max-tokens", "24", "--output", "json", *EXACT)
GREEDY = ("--temperature", "0")
MPIRUN = shutil.which("mpirun")
# As root, whatever the cores; an aborted run says nothing of its own.
MPI_FLAGS = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--quiet")


def free_port():
    """A port below the range that Linux gives to connections, so that no connection of another test takes it first."""
    while True:
        port = random.randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return str(port)


def launch_environment(rank, size, port, address="127.0.0.1"):
    return {**clean_environment(), "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": port}


def token_ids(stdout):
    return json.loads(stdout)["choices"][0]["token_ids"]


def alone(*flags):
    done = subprocess.run([BIN, *GENERATE, *flags], capture_output=True, timeout=TIMEOUT, env=clean_environment(), check=True)
    return token_ids(done.stdout)


class Ranks:
    """Processes with the variables of torchrun. `wraps` are commands before that of a rank, such as `ip netns exec`."""

    def __init__(self, size, *command, wraps=None, address="127.0.0.1", own_flags=None):
        self.port = free_port()
        self.shm = set(os.listdir("/dev/shm"))
        self.processes = [
            subprocess.Popen([*(wraps[rank] if wraps else ()), BIN, *command, *LAUNCHED, *(own_flags or {}).get(rank, ())],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                             env=launch_environment(rank, size, self.port, address))
            for rank in range(size)]

    def finish(self):
        """Of all ranks: exit code, stdout and stderr."""
        said = [process.communicate(timeout=TIMEOUT) for process in self.processes]
        return [(process.returncode, *texts) for process, texts in zip(self.processes, said)]

    def end(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=TIMEOUT)


def members(session):
    """The processes of a session that are no zombies."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except (OSError, ValueError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(name))
    return found


class Launched(unittest.TestCase):
    def launch(self, size, *command, **how):
        ranks = Ranks(size, *command, **how)
        self.addCleanup(ranks.end)
        return ranks

    def assert_answer(self, ranks, expected):
        results = ranks.finish()
        self.assertEqual([code for code, _, _ in results], [0] * len(results), results)
        self.assertEqual(token_ids(results[0][1]), expected)
        self.assertFalse("".join(out for _, out, _ in results[1:]))  # the others say nothing
        self.assertEqual(set(os.listdir("/dev/shm")) - ranks.shm, set())


class Answers(Launched):
    def test_are_those_of_one_rank(self):
        masked = ("--seed", "7", "--temperature", "1", "--regex", "[0-9]{3}-[a-z]{40}")
        tcp = ("--rank-transport", "tcp")
        for flags, splits in ((GREEDY, ((3, "-tp", "3"), (2, "-pp", "2"), (2, "-pp", "2", *tcp))),
                              (masked, ((2, "-pp", "2"), (3, "-tp", "3", *tcp)))):
            expected = alone(*flags)
            self.assertGreater(len(set(expected)), 5)
            for size, *split in splits:
                with self.subTest(split=split):
                    self.assert_answer(self.launch(size, *GENERATE, *flags, *split), expected)


class Starts(Launched):
    def assert_refused(self, ranks, *needles):
        for code, _, said in ranks.finish():
            self.assertNotEqual(code, 0)
            for needle in needles:
                self.assertIn(needle, said)

    def test_a_disagreement_is_named_on_all_ranks(self):
        ranks = self.launch(2, *GENERATE, "-pp", "2", own_flags={1: ("--max-num-batched-tokens", "64")})
        self.assert_refused(ranks, "max-num-batched-tokens: 'auto' on rank 0", "'64' on rank 1")

    def test_the_number_of_ranks_must_fit(self):
        self.assert_refused(self.launch(2, *GENERATE, "-tp", "3"), "WORLD_SIZE is 2, but --tensor-parallel-size 3")

    def test_without_a_launcher_it_says_what_is_missing(self):
        done = subprocess.run([BIN, *GENERATE, *LAUNCHED], capture_output=True, text=True, timeout=TIMEOUT,
                              env=clean_environment(), check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("RANK and WORLD_SIZE are not set", done.stderr)

    def test_a_rank_that_does_not_come_is_named(self):
        for rank, needle in ((0, "rank 1 of 2 did not come within 1"), (1, "rank 1 of 2 found no rank 0 at 127.0.0.1:")):
            done = subprocess.run([BIN, *GENERATE, *LAUNCHED, "--join-timeout", "1", "-pp", "2"], capture_output=True, text=True,
                                  timeout=TIMEOUT, env=launch_environment(rank, 2, free_port()), check=False)
            self.assertEqual(done.returncode, 5)
            self.assertIn(needle, done.stderr)

    def test_strangers_do_not_end_the_start(self):
        ranks = self.launch(2, *GENERATE, *GREEDY, "-pp", "2")
        for _ in range(20):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", ranks.port), 1) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 50)
            time.sleep(0.01)
        self.assert_answer(ranks, alone(*GREEDY))


class LaunchedServer(Launched):
    """A server of two stages. Signals go to the process that the launcher started."""
    TRANSPORT = "auto"

    def setUp(self):
        self.ranks = self.launch(2, "serve", MODEL, "--port", "0", "--max-model-len", "2048", "-pp", "2", *EXACT,
                                 "--rank-transport", self.TRANSPORT)
        self.server, self.other = self.ranks.processes
        self.sessions = [process.pid for process in self.ranks.processes]
        said = [self.server.stderr.readline()]
        while said[-1] and not said[-1].startswith("ready in "):
            said.append(self.server.stderr.readline())
        self.assertTrue(said[-1], said)
        self.port = int(re.search(r"127\.0\.0\.1:(\d+)", said[-1]).group(1))

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        connection.request(method, path, body and json.dumps(body))
        return connection, connection.getresponse()

    def fail_during_an_answer(self, fault):
        """What the client got last, and how many seconds after the fault the answer ended."""
        connection, answer = self.ask("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True,
                                                                   "stream": True})
        for _ in range(20):
            answer.readline()
        begin = time.monotonic()
        fault()
        last = b""
        with contextlib.suppress(http.client.HTTPException, OSError):
            for line in answer:
                last = line if line.startswith(b"data: {") else last
        took = time.monotonic() - begin
        connection.close()
        return last.decode(), took

    def assert_all_end(self, since, codes):
        while any(members(session) for session in self.sessions) and time.monotonic() - since < 10:
            time.sleep(0.05)
        self.assertLess(time.monotonic() - since, 10)
        self.assertEqual([process.wait(1) for process in self.ranks.processes], codes)
        self.assertEqual(set(os.listdir("/dev/shm")) - self.ranks.shm, set())

    def assert_a_killed_rank_ends_all(self):
        since = time.monotonic()
        last, took = self.fail_during_an_answer(lambda: os.kill(self.other.pid, signal.SIGKILL))
        self.assertLess(took, 1.0)
        self.assertIn(f"rank 1 of 2 (process {self.other.pid} on", last)
        connection, answer = self.ask("GET", "/health")
        self.assertEqual(answer.status, 503)
        self.assertRegex(answer.read().decode(), r"rank 1 of 2 .* ended in phase [a-z]+, step \d+")
        connection.close()
        self.assert_all_end(since, [5, -signal.SIGKILL])

    def assert_a_killed_rank_0_ends_all(self):
        since = time.monotonic()
        self.fail_during_an_answer(lambda: os.kill(self.server.pid, signal.SIGKILL))
        self.assert_all_end(since, [-signal.SIGKILL, 5])


class Faults(LaunchedServer):
    def test_a_killed_rank_ends_all(self):
        self.assert_a_killed_rank_ends_all()

    def test_a_killed_rank_0_ends_all(self):
        self.assert_a_killed_rank_0_ends_all()

    def test_a_killed_process_of_rank_0_ends_all(self):
        since = time.monotonic()
        worker = next(pid for pid in members(self.server.pid) if pid != self.server.pid)
        last, took = self.fail_during_an_answer(lambda: os.kill(worker, signal.SIGKILL))
        self.assertLess(took, 1.0)
        self.assertIn("rank 0 of 2", last)
        self.assert_all_end(since, [5, 5])

    def test_a_stopped_rank_fails_requests(self):
        last, took = self.fail_during_an_answer(lambda: os.kill(self.other.pid, signal.SIGSTOP))
        self.assertLess(took, 7.0)
        self.assertIn("rank 1 of 2", last)
        self.assertIn("has given no sign of life for 5 s", last)
        self.assertEqual(self.server.wait(10), 5)
        os.kill(self.other.pid, signal.SIGCONT)
        self.assert_all_end(time.monotonic(), [5, 5])

    def metrics(self):
        connection, answer = self.ask("GET", "/metrics")
        text = answer.read().decode()
        connection.close()
        return [line for line in text.splitlines() if line.startswith("warprow:rank_")]

    def test_metrics_and_an_end_in_order(self):
        until = time.monotonic() + 20
        lines = "\n".join(self.metrics())
        while lines.count('phase="waiting"') < 2 and time.monotonic() < until:
            time.sleep(0.05)  # ranks tell ten times a second what they do
            lines = "\n".join(self.metrics())
        for rank in (0, 1):
            self.assertRegex(lines, rf'warprow:rank_steps_total\{{.*rank="{rank}"\}} \d+')
            self.assertRegex(lines, rf'warprow:rank_phase\{{.*rank="{rank}",phase="waiting"\}} 1')
        for process in reversed(self.ranks.processes):  # as launchers do
            process.send_signal(signal.SIGTERM)
        self.assert_all_end(time.monotonic(), [0, 0])


class TcpFaults(LaunchedServer):
    TRANSPORT = "tcp"

    def test_a_killed_rank_ends_all(self):
        self.assert_a_killed_rank_ends_all()

    def test_a_killed_rank_0_ends_all(self):
        self.assert_a_killed_rank_0_ends_all()


@unittest.skipUnless(MPIRUN, "no mpirun; apt-get install openmpi-bin")
class Mpirun(Launched):
    def run_mpi(self, size, *command):
        done = subprocess.run([MPIRUN, *MPI_FLAGS, "-np", str(size), "-x", f"MASTER_PORT={free_port()}", BIN, *command, *LAUNCHED],
                              capture_output=True, text=True, timeout=TIMEOUT, env=clean_environment(), check=False)
        return done.returncode, done.stdout, done.stderr

    def test_answers_are_those_of_one_rank(self):
        for split, size in ((("-pp", "2"), 2), (("-tp", "3"), 3)):
            code, out, said = self.run_mpi(size, *GENERATE, *GREEDY, *split)
            self.assertEqual(code, 0, said)
            self.assertEqual(token_ids(out), alone(*GREEDY))

    def test_a_killed_rank_ends_the_run(self):
        run = subprocess.Popen([MPIRUN, *MPI_FLAGS, "-np", "2", "-x", f"MASTER_PORT={free_port()}", BIN, "bench", "throughput", MODEL,
                                "--num-prompts", "500", "-pp", "2", *EXACT, *LAUNCHED], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, start_new_session=True, env=clean_environment())
        self.addCleanup(lambda: [os.kill(pid, signal.SIGKILL) for pid in members(run.pid)])
        time.sleep(2)
        self.assertGreaterEqual(len(members(run.pid)), 4)  # mpirun, two ranks, what rank 0 started
        for pid in members(run.pid):
            with open(f"/proc/{pid}/environ", "rb") as file:
                if b"\0OMPI_COMM_WORLD_RANK=1\0" in file.read():
                    os.kill(pid, signal.SIGKILL)
        said, _ = run.communicate(timeout=10)
        self.assertNotEqual(run.returncode, 0, said)
        self.assertFalse(members(run.pid))

    def test_a_wrong_number_of_ranks_is_refused(self):
        code, _, said = self.run_mpi(2, *GENERATE, "-tp", "3")
        self.assertNotEqual(code, 0)
        self.assertIn("OMPI_COMM_WORLD_SIZE is 2, but --tensor-parallel-size 3", said)


def has_namespaces():
    return os.geteuid() == 0 and all(map(shutil.which, ("unshare", "nsenter", "ip"))) and subprocess.run(
        ["unshare", "-mn", "true"], capture_output=True, check=False).returncode == 0


@unittest.skipUnless(has_namespaces(), "needs root, unshare, nsenter and ip (iproute2)")
class TwoHosts(Launched):
    """Two network namespaces with a cable between them, and a /dev/shm of its own in each."""

    def setUp(self):
        self.hosts = []
        for _ in range(2):
            host = subprocess.Popen(["unshare", "-mn", "sh", "-c",
                                     "mount -t tmpfs shm /dev/shm && ip link set lo up && echo up && exec sleep 600"],
                                    stdout=subprocess.PIPE, text=True)
            self.addCleanup(host.communicate)
            self.addCleanup(host.kill)
            self.assertEqual(host.stdout.readline(), "up\n")
            self.hosts.append(host.pid)
        self.wraps = [["nsenter", "-t", str(pid), "-m", "-n"] for pid in self.hosts]
        subprocess.run([*self.wraps[0], "ip", "link", "add", "wr0", "type", "veth", "peer", "name", "wr1", "netns",
                        str(self.hosts[1])], check=True)
        for host, wrap in enumerate(self.wraps):
            subprocess.run([*wrap, "ip", "address", "add", f"10.77.0.{host + 1}/24", "dev", f"wr{host}"], check=True)
            subprocess.run([*wrap, "ip", "link", "set", f"wr{host}", "up"], check=True)

    def test_answers_are_those_of_one_rank(self):
        expected = alone(*GREEDY)
        self.assert_answer(self.launch(2, *GENERATE, *GREEDY, "-pp", "2", wraps=self.wraps, address="10.77.0.1"), expected)
        # two ranks on the first host, one on the second
        self.assert_answer(self.launch(3, *GENERATE, *GREEDY, "-tp", "3", wraps=[self.wraps[0], *self.wraps], address="10.77.0.1"),
                           expected)

    def test_a_host_that_is_cut_off_ends_the_run(self):
        ranks = self.launch(2, "bench", "throughput", MODEL, "--num-prompts", "500", "--output-len", "400", "-pp", "2", *EXACT,
                            wraps=self.wraps, address="10.77.0.1")
        time.sleep(4)
        self.assertIsNone(ranks.processes[0].poll())
        since = time.monotonic()
        subprocess.run([*self.wraps[0], "ip", "link", "set", "wr0", "down"], check=True)
        results = ranks.finish()
        self.assertLess(time.monotonic() - since, 12)
        self.assertEqual([code for code, _, _ in results], [5, 5], results)
        # the second if rank 0 was still starting
        self.assertRegex(results[0][2], "no sign of life|rank 1 cannot be reached")
        self.assertIn("rank 0 cannot be reached", results[1][2])


if __name__ == "__main__":
    sys.exit(server_test.main())
