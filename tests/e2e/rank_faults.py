#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every kind of fault of a rank, N times: kill -9, SIGSTOP, an exception and a step that does not end; of ranks of mp and of a
launcher; at start, while loading, in a step and in a collective. Nothing may hang, and no process and no shared memory may be left.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/rank_faults.py [N]

N is 1; .ci/nightly takes 5. .ci/run has each fault once, in the tests that this script repeats. It ends with the first round that
fails, and says how long each took. The tests in C++ beside the binary (tests/test_executor) are left out if they were not built.
"""

import os
import subprocess
import sys
import time
import unittest

import launcher_test
import ranks_test
from server_test import BIN, clean_environment

PYTHON = (ranks_test.Faults, ranks_test.StageFaults, ranks_test.StuckStage, launcher_test.Faults, launcher_test.TcpFaults)
EXECUTOR = os.path.join(os.path.dirname(os.path.abspath(BIN)), "tests", "test_executor")
IN_CPP = "MpExecutorFaults.*:ExternalFaults.*:ExternalStart.*:*MpExecutor.AKilled*:*MpExecutor.AStopped*"
ROUND_SECONDS = 600  # longer is a hang


def rank_processes():
    """Those of the program under test that run ranks."""
    found = set()
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        program = os.path.basename(words[0])
        if program == b"rank_process" or (len(words) > 1 and words[1] == b"rank") or b"external_launcher" in words:
            found.add((int(name), b" ".join(words[:4]).decode()))
    return found


def one_round():
    """What failed; empty if nothing did."""
    shm, before = set(os.listdir("/dev/shm")), rank_processes()
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in PYTHON)
    result = unittest.TextTestRunner(verbosity=0).run(suite)
    failed = [str(test) for test, _ in (*result.failures, *result.errors)]
    if os.path.exists(EXECUTOR):
        done = subprocess.run([EXECUTOR, f"--gtest_filter={IN_CPP}", "--gtest_brief=1"], timeout=ROUND_SECONDS,
                              env=clean_environment(), check=False)
        failed += ["test_executor"] if done.returncode else []
    time.sleep(0.2)
    failed += [f"left in /dev/shm: {name}" for name in set(os.listdir("/dev/shm")) - shm]
    failed += [f"left running: {pid} {words}" for pid, words in rank_processes() - before]
    return failed


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for number in range(1, rounds + 1):
        begin = time.monotonic()
        failed = one_round()
        took = time.monotonic() - begin
        print(f"round {number} of {rounds}: {took:.0f} s, {', '.join(failed) or 'nothing failed, nothing is left'}", flush=True)
        if failed or took > ROUND_SECONDS:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
