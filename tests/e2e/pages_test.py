#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/package/help_pages.py against the binary WARPROW_BIN: every command and flag is on its pages, and shells read them."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools/package"))
import help_pages  # noqa: E402

BINARY = Path(os.environ.get("WARPROW_BIN", ROOT / "build/cpu-release/warprow"))
HELP = """warprow serve: serve a model

usage: warprow serve MODEL [FLAGS]

Server
  -p, --port N                    port; 0: any free one [8000]
      --[no-]strict               refuse fields that
                                  are not known
      --kv-cache-memory-bytes SIZE
                                  memory
      --mode a|b                  one of two
"""
COMPLETE = """source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _warprow; echo "${COMPREPLY[*]}"
"""


class Parsing(unittest.TestCase):
    def test_flags_of_a_help_text(self):
        port, strict, cache, mode = help_pages.read_flags(HELP.split("\n\n", 2)[2])
        self.assertEqual(port, help_pages.Flag("port", "p", "N", "Server", "port; 0: any free one [8000]"))
        self.assertEqual((strict.words, strict.help), (["--strict", "--no-strict"], "refuse fields that are not known"))
        self.assertEqual((cache.value, cache.help), ("SIZE", "memory"))
        self.assertEqual(mode.choices, ["a", "b"])

    def test_what_is_not_understood_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "not understood"):
            help_pages.read_flags("Server\n      --port N two words\n")


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name)
        help_pages.main([str(BINARY), str(cls.folder)])
        _, cls.commands = help_pages.read_commands(BINARY)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def complete(self, *words):
        run = subprocess.run(["bash", "-c", COMPLETE, "bash", self.folder / "bash/warprow", "warprow", *words], capture_output=True, text=True, check=True)
        self.assertEqual(run.stderr, "")
        return run.stdout.split()

    def test_every_command_is_found(self):
        names = {" ".join(command.words) for command in self.commands}
        self.assertLessEqual({"generate", "serve", "bench latency", "bench serve", "run-batch", "selftest sleep"}, names)
        for command in self.commands:
            if command.usage:
                self.assertGreater(len(command.flags), 1, command.words)

    def test_every_flag_is_on_every_page(self):
        man, fish, zsh = ((self.folder / name).read_text() for name in ("man1/warprow.1", "fish/warprow.fish", "zsh/_warprow"))
        for command in self.commands:
            for flag in command.flags:
                self.assertIn(f"-l {flag.name} ", fish)
                self.assertIn(f"'*--{flag.name}[", zsh)
                self.assertIn(help_pages.roff(flag.name), man)

    def test_bash_completes(self):
        self.assertEqual(self.complete("gen"), ["generate"])
        self.assertEqual(self.complete("bench", "th"), ["throughput"])
        self.assertEqual(self.complete("serve", "smollm2", "--max-num-s"), ["--max-num-seqs"])
        self.assertEqual(self.complete("generate", "--dtype", "fl"), ["float32"])
        for command in self.commands:
            if command.usage:
                offered = self.complete(*command.words, "--")
                self.assertEqual(sorted(offered), sorted([word for flag in command.flags for word in flag.words if word.startswith("--")] + ["--help"]))

    def test_other_programs_read_the_pages(self):
        checks = {"zsh": ["-n", "zsh/_warprow"], "fish": ["--no-execute", "fish/warprow.fish"], "groff": ["-man", "-ww", "-z", "man1/warprow.1"]}
        for program, arguments in checks.items():
            if shutil.which(program):
                run = subprocess.run([program, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
                self.assertEqual((run.returncode, run.stderr), (0, ""), program)


if __name__ == "__main__":
    if not BINARY.is_file():
        print(f"skipped: no binary {BINARY}; build it with ./dev build")
        sys.exit(77)
    unittest.main()
