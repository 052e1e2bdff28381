#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ./dev test ROOM without a build: unknown names, and the patterns made of names (tools/dev/room_tests.sh)."""

import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def call(function, *args):
    """Returns the output of a function of the script."""
    script = f'root={ROOT}; source "$root/tools/dev/room_tests.sh"; "$@"'
    return subprocess.run(["bash", "-euc", script, "bash", function, *args], capture_output=True, text=True, check=True).stdout


class RoomTests(unittest.TestCase):
    def test_a_name_that_is_no_room(self):
        for name in ("scheduler", "sch", "fuzz", "support", "../src", "sched,sch"):
            done = subprocess.run([ROOT / "dev", "test", name], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("no tests of '", done.stderr)
            self.assertIn(" sched ", done.stderr)
            self.assertIn(" e2e ", done.stderr)

    def test_patterns(self):
        self.assertEqual(call("filter_of", "Scheduler.Waits"), "Scheduler.Waits:*/Scheduler.Waits:Scheduler.Waits/*:*/Scheduler.Waits/*")
        self.assertEqual(call("filter_of", "Scheduler"), "Scheduler.*:*/Scheduler.*:Scheduler/*.*:*/Scheduler/*.*")

    def test_the_room_of_a_changed_file(self):
        for path, room in (("src/sched/scheduler.cpp", "sched"), ("tests/sched/scheduler_test.cpp", "sched"),
                           ("src/kernels/linear/linear.h", "kernels"), ("tests/support/model_rig.h", ""), ("CMakeLists.txt", "")):
            self.assertEqual(call("room_of", f"{ROOT}/{path}"), room, path)


if __name__ == "__main__":
    unittest.main()
