#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/fetch_cuda.py with generated wheels instead of downloads: which files are kept, and what a failure leaves."""

import dataclasses
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fetch_cuda  # noqa: E402

COMPILER = fetch_cuda.Wheel("toy-nvcc==1.0", ("0" * 64,), ("toy/bin/",))
HEADERS = fetch_cuda.Wheel("toy-lib==2.0", ("1" * 64,), ("toy/include/",))
BUNDLE = fetch_cuda.Bundle("toy-1.0", (COMPILER, HEADERS))


class FetchCudaTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = Path(folder.name) / "cache"
        patcher = mock.patch.object(fetch_cuda, "download_wheel", self.make_wheel)
        patcher.start()
        self.addCleanup(patcher.stop)
        stderr = mock.patch("sys.stderr")
        stderr.start()
        self.addCleanup(stderr.stop)
        self.downloads = []
        self.fail_on = None

    def make_wheel(self, wheel, folder):
        self.downloads.append(wheel.requirement)
        if wheel.requirement == self.fail_on:
            raise fetch_cuda.FetchError("no network")
        path = folder / "toy.whl"
        with zipfile.ZipFile(path, "w") as archive:
            program = zipfile.ZipInfo("toy/bin/nvcc")
            program.external_attr = 0o755 << 16
            archive.writestr(program, "#!")
            archive.writestr("toy/include/lib.h", "// header")
            archive.writestr("toy/lib/libtoy.so.1", bytes(1000))
        return path

    def files(self):
        return sorted(str(path.relative_to(self.cache)) for path in self.cache.rglob("*") if path.is_file())

    def test_keeps_what_each_wheel_names_and_fetches_once(self):
        target = fetch_cuda.fetch(BUNDLE, self.cache)
        self.assertEqual(fetch_cuda.fetch(BUNDLE, self.cache), target)
        self.assertEqual(self.downloads, ["toy-nvcc==1.0", "toy-lib==2.0"])
        self.assertEqual(self.files(), [f"deps/{target.name}/toy/bin/nvcc", f"deps/{target.name}/toy/include/lib.h"])
        self.assertTrue((target / "toy/bin/nvcc").stat().st_mode & 0o100)
        self.assertFalse((target / "toy/include/lib.h").stat().st_mode & 0o100)

    def test_a_failure_leaves_nothing(self):
        self.fail_on = "toy-lib==2.0"
        with self.assertRaisesRegex(fetch_cuda.FetchError, "no network"):
            fetch_cuda.fetch(BUNDLE, self.cache)
        self.assertEqual(self.files(), [])

    def test_other_pins_are_another_folder(self):
        other = dataclasses.replace(BUNDLE, wheels=(COMPILER, dataclasses.replace(HEADERS, wheel_sha256=("2" * 64,))))
        self.assertNotEqual(BUNDLE.folder(self.cache), other.folder(self.cache))

    def test_a_machine_without_pinned_wheels(self):
        with self.assertRaisesRegex(fetch_cuda.FetchError, "CUDACXX"):
            fetch_cuda.fetch(dataclasses.replace(BUNDLE, machines=("pdp11",)), self.cache)
        self.assertEqual(self.downloads, [])


if __name__ == "__main__":
    unittest.main()
