#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests .ci/times.py on complete and on missing logs."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent.parent / ".ci" / "times.py"


def table(files):
    """Returns the script's output for a checkout with these files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            file = Path(folder) / "build" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=True).stdout


def junit(*cases):
    return "<testsuite>" + "".join(f'<testcase name="{name}" time="{time}" status="{status}"/>' for name, time, status in cases) + \
        "</testsuite>"


class CiTimes(unittest.TestCase):
    def test_everything_is_in_its_table(self):
        out = table({
            "logs/parts.tsv": "3\tset-up\n125\t./dev test\n",
            "logs/steps.tsv": "4\tconfiguring x\n100\tbuilding x\n",
            "logs/tests.xml": junit(*((f"t.{i:02d}", i, "run") for i in range(12)), ("t.bad", 0.5, "fail")),
            "logs/stages.xml": junit(("ci.asan", 61.4, "run"), ("ci.cuda", 2, "fail")),
            "x/.ninja_log": "# ninja log v5\n0\t1500\t0\ta/CMakeFiles/a.dir/one.cpp.o\tf\n0\t9000\t0\ta/liba.a\tf\n"
                            "0\t5000\t0\ta/CMakeFiles/a.dir/two.cpp.o\tf\n7\t3007\t0\ta/CMakeFiles/a.dir/two.cpp.o\tf\n",
        })
        for line in ("   0:03  set-up", "   2:05  ./dev test", "   2:08  in all", "   1:01  ci.asan", "   1:40  building x",
                     "   0:11  t.11", "   0:03  x: two.cpp", "The slowest of 2 compiles, of 0:04 in all", "failed: t.bad, ci.cuda"):
            self.assertIn(line, out)
        self.assertNotIn("configuring", out)
        self.assertNotIn("t.01", out)
        self.assertNotIn("liba", out)
        self.assertLess(out.index("two.cpp"), out.index("one.cpp"))

    def test_what_is_absent_is_left_out(self):
        self.assertTrue(table({}).endswith("no stage ran\n"))
        self.assertTrue(table({"logs/stages.xml": junit(("ci.rooms", 1, "run"))}).endswith("nothing failed\n"))


if __name__ == "__main__":
    unittest.main()
