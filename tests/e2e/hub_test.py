#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models by name: downloads from a stand-in of the Hugging Face Hub on this machine. Needs no network and no model.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/hub_test.py [-k NAME]
"""

import hashlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gguf_parts import split_gguf  # noqa: E402
from cli_test import BIN, NO_MODEL, TIMEOUT, USAGE, clean_environment  # noqa: E402

TINY = Path(__file__).resolve().parent.parent / "golden/tiny/llama_mha"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Answers as the Hub does: a listing, and files of which the large ones lie behind a redirect to another host."""

    def __init__(self):
        self.repos = {}  # name: {file: bytes}
        self.private = set()
        self.requests = []  # (path, range, authorization)
        self.cut_after = None  # bytes of a large file after which the connection breaks, once
        self.pause = 0  # seconds between pieces of a large file
        self.spoilt = 0  # answers with a large file of which a byte is wrong
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path = self.path.split("?")[0]
                hub.requests.append((path, self.headers["Range"], self.headers["Authorization"]))
                if path.startswith("/cdn/"):
                    data = hub.blob(path.removeprefix("/cdn/"))
                    if hub.spoilt and self.headers["Range"] != "bytes=0-0":
                        hub.spoilt -= 1
                        data = data[:-1] + bytes([data[-1] ^ 1])
                    return self.send_range(data, slow=True)
                found = (re.fullmatch(r"/api/models/(\w+/\w+)/revision/(\w+)", path)
                         or re.fullmatch(r"/(\w+/\w+)/resolve/(\w+)/(.+)", path))
                files = found and hub.repos.get(found[1])
                if found and found[1] in hub.private and self.headers["Authorization"] != "Bearer secret":
                    return self.refuse(401)
                if not files or found[2] not in ("main", COMMIT):
                    return self.refuse(404)
                if found.re.groups == 2:
                    listing = {"sha": COMMIT, "siblings": [{"rfilename": name, "size": len(data)} for name, data in files.items()]}
                    return self.send_whole(json.dumps(listing).encode())
                if found[3] not in files:
                    return self.refuse(404)
                data = files[found[3]]
                etag = hashlib.sha256(data).hexdigest()
                common = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{etag}"', "ETag": f'"{etag[:32]}"'}
                if len(data) > 10000:
                    # Another host, as far as a client can tell.
                    return self.send_whole(b"", 302, Location=f"http://localhost:{hub.port}/cdn/{etag}", **common)
                self.send_range(data, **common)

            def send_whole(self, data, status=200, **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def refuse(self, status):
                self.send_whole(b"{}", status)

            def send_range(self, data, slow=False, **headers):
                first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "bytes=0-").groups()
                first, last = int(first), int(last or len(data) - 1)
                if first >= len(data):
                    return self.refuse(416)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(last - first + 1))
                self.end_headers()
                for at in range(first, last + 1, 4096):
                    if slow and hub.cut_after is not None and at >= hub.cut_after and last > first:
                        hub.cut_after = None
                        self.close_connection = True
                        return
                    self.wfile.write(data[at:min(at + 4096, last + 1)])
                    time.sleep(hub.pause if slow else 0)

            def handle(self):
                try:
                    super().handle()
                except ConnectionError:
                    pass  # a client that was killed

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def blob(self, etag):
        return next(data for files in self.repos.values() for data in files.values()
                    if hashlib.sha256(data).hexdigest() == etag)

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def fetched(self, name):
        """Ranges of the requests for a large file that wanted more than its size."""
        etag = hashlib.sha256(next(files[name] for files in self.repos.values() if name in files)).hexdigest()
        return [wanted for path, wanted, _ in self.requests if path == f"/cdn/{etag}" and wanted != "bytes=0-0"]


class ModelsByName(unittest.TestCase):
    def setUp(self):
        self.hub = Hub()
        self.addCleanup(self.hub.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = Path(folder.name) / "hub"
        gguf = (TINY / "model.gguf").read_bytes()
        tensors = {name: (TINY / name).read_bytes() for name in ("config.json", "model.safetensors")}
        self.hub.repos = {"org/tensors": {**tensors, "README.md": b"x", "pytorch_model.bin": b"x", "sub/config.json": b"x",
                                          "../../evil.json": b"x"},
                          "org/quants": {"m-Q8_0.gguf": gguf, "m-F16.gguf": gguf + b"\0"},
                          "org/one": {"m.gguf": gguf + b"\0\0"}}

    def environment(self, **changes):
        env = {k: v for k, v in clean_environment().items() if not k.startswith("HF_")}
        return {**env, "HF_ENDPOINT": f"http://127.0.0.1:{self.hub.port}/", "HF_HUB_CACHE": str(self.cache),
                "HF_HOME": str(self.cache / "no-home"), **changes}

    def plan(self, model, code=0, flags=(), **changes):
        done = subprocess.run([BIN, "plan", model, "--output", "json", *flags], capture_output=True, timeout=TIMEOUT, text=True,
                              env=self.environment(**changes))
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def snapshot(self, repo):
        folder = self.cache / f"models--org--{repo}"
        self.assertEqual((folder / "refs/main").read_text(), COMMIT)
        return folder / "snapshots" / COMMIT

    def assert_same(self, path, data):
        self.assertEqual(hashlib.sha256(path.read_bytes()).hexdigest(), hashlib.sha256(data).hexdigest())

    def test_safetensors_come_once(self):
        said = self.plan("org/tensors")
        self.assertIn(f"downloading org/tensors@main from http://127.0.0.1:{self.hub.port}/: 2 files", said)
        folder = self.snapshot("tensors")
        self.assertEqual(sorted(os.listdir(folder)), ["config.json", "model.safetensors"])
        for name in os.listdir(folder):
            self.assertTrue((folder / name).is_symlink())
            self.assert_same(folder / name, self.hub.repos["org/tensors"][name])
        self.assertFalse(list(self.cache.rglob("evil*")))
        asked = len(self.hub.requests)
        for changes in ({}, {"HF_HUB_OFFLINE": "1"}):
            self.assertEqual(self.plan("org/tensors", **changes), "")
        self.assertEqual(len(self.hub.requests), asked)
        self.plan("org/tensors@" + COMMIT)
        self.assertEqual(len(self.hub.requests), asked)

    def test_dummy_weights_need_no_download_of_theirs(self):
        self.plan("org/tensors", flags=("--load-format", "dummy"))
        self.assertEqual(os.listdir(self.snapshot("tensors")), ["config.json"])
        self.plan("org/tensors")
        self.assertEqual(sorted(os.listdir(self.snapshot("tensors"))), ["config.json", "model.safetensors"])

    def test_a_quantisation(self):
        self.assertIn("m-Q8_0.gguf, m-F16.gguf", self.plan("org/quants", code=USAGE))
        self.plan("org/quants:q8_0")
        self.assertEqual(os.listdir(self.snapshot("quants")), ["m-Q8_0.gguf"])
        self.plan("org/quants@main:F16")
        self.assertEqual(sorted(os.listdir(self.snapshot("quants"))), ["m-F16.gguf", "m-Q8_0.gguf"])
        self.assertIn("m-Q8_0.gguf", self.plan("org/quants:Q2_K", code=USAGE))
        self.plan("org/one")

    def test_a_broken_connection_is_taken_up_again(self):
        data = self.hub.repos["org/one"]["m.gguf"]
        self.hub.cut_after = 8192
        self.plan("org/one")
        self.assert_same(self.snapshot("one") / "m.gguf", data)
        ranges = self.hub.fetched("m.gguf")
        self.assertEqual(ranges[0], "bytes=0-")
        self.assertGreaterEqual(int(ranges[1].removeprefix("bytes=").removesuffix("-")), 4096)

    def test_a_killed_download_is_taken_up_again(self):
        data = self.hub.repos["org/one"]["m.gguf"]
        self.hub.pause = 0.05
        killed = subprocess.Popen([BIN, "plan", "org/one"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  env=self.environment())
        part = None
        end = time.monotonic() + TIMEOUT
        while not part and time.monotonic() < end:
            part = next((p for p in self.cache.rglob("*.part") if p.stat().st_size > 8192), None)
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
        killed.wait(TIMEOUT)
        self.assertFalse((self.cache / "models--org--one/refs/main").exists())
        there = part.stat().st_size
        self.assertLess(there, len(data))
        self.hub.pause = 0
        self.plan("org/one")
        self.assertEqual(self.hub.fetched("m.gguf")[-1], f"bytes={there}-")
        self.assert_same(self.snapshot("one") / "m.gguf", data)
        self.assertFalse(list(self.cache.rglob("*.part")))

    def test_a_signal_ends_a_download(self):
        """Also that of the first process of a container, to which signals without a handler do nothing."""
        self.hub.pause = 0.2
        container = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
        has_containers = subprocess.run([*container, "true"], capture_output=True, check=False).returncode == 0
        for number in (signal.SIGTERM, signal.SIGINT):
            for prefix in ([], container) if has_containers else ([],):
                part = None
                process = subprocess.Popen([*prefix, BIN, "serve", "org/one", "--port", "0"], stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL, env=self.environment())
                self.addCleanup(process.kill)
                end = time.monotonic() + 20
                while not part and time.monotonic() < end:
                    part = next((p for p in self.cache.rglob("*.part") if p.stat().st_size > 0), None)
                    time.sleep(0.01)
                self.assertTrue(part)
                pid = process.pid
                if prefix:
                    pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
                start = time.monotonic()
                os.kill(pid, number)
                self.assertIn(process.wait(20), {-number, 128 + number})
                self.assertLess(time.monotonic() - start, 6, "2 s, and more for a busy machine")
                part.unlink()

    def test_a_gguf_file_in_parts(self):
        whole = (TINY / "model.gguf").read_bytes()
        parts = {f"m-Q8_0-{i:05}-of-00003.gguf": data for i, data in enumerate(split_gguf(whole), 1)}
        self.hub.repos["org/parts"] = {**parts, "m-F16.gguf": whole}
        self.hub.repos["org/folders"] = {f"Q8_0/{name}": data for name, data in parts.items()}
        weights = set()
        for model, files in ((str(TINY / "model.gguf"), 0), ("org/parts:Q8_0", 3), ("org/folders:Q8_0", 3), ("org/folders", 0)):
            done = subprocess.run([BIN, "plan", model, "--output", "json"], capture_output=True, timeout=TIMEOUT, text=True,
                                  env=self.environment())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(f"{files} files" in done.stderr, files > 0, done.stderr)
            weights.add(json.loads(done.stdout)["checkpoint_bytes"])
        self.assertEqual(len(weights), 1)
        self.assertEqual(sorted(os.listdir(self.snapshot("parts"))), sorted(parts))
        (self.snapshot("parts") / "m-Q8_0-00002-of-00003.gguf").unlink()
        self.assertIn("m-Q8_0-00002-of-00003.gguf", self.plan("org/parts:Q8_0", code=NO_MODEL))
        self.hub.repos["org/torn"] = dict(list(parts.items())[:2])
        self.assertIn("00003-of-00003.gguf' is not", self.plan("org/torn", code=NO_MODEL))

    def test_what_came_is_what_the_hub_announced(self):
        data = self.hub.repos["org/one"]["m.gguf"]
        self.hub.spoilt = 1
        self.plan("org/one")
        self.assertEqual(self.hub.fetched("m.gguf"), ["bytes=0-", "bytes=0-"])
        self.assert_same(self.snapshot("one") / "m.gguf", data)
        # A part that is wrong shows once the rest has come.
        (self.snapshot("one") / "m.gguf").unlink()
        blobs = self.cache / "models--org--one/blobs"
        etag = hashlib.sha256(data).hexdigest()
        (blobs / etag).unlink()
        (blobs / f"{etag}.part").write_bytes(b"\0" * 8192)
        self.plan("org/one")
        self.assertEqual(self.hub.fetched("m.gguf")[2:], ["bytes=8192-", "bytes=0-"])
        self.assert_same(self.snapshot("one") / "m.gguf", data)
        self.hub.spoilt = 100
        self.assertIn("SHA-256", self.plan("org/quants:Q8_0", code=NO_MODEL))
        self.assertFalse((self.cache / "models--org--quants/refs/main").exists())
        self.assertFalse(list((self.cache / "models--org--quants").rglob("*.gguf")))

    def test_whole_parts_and_blobs_are_used(self):
        data = self.hub.repos["org/one"]["m.gguf"]
        blobs = self.cache / "models--org--one/blobs"
        blobs.mkdir(parents=True)
        etag = hashlib.sha256(data).hexdigest()
        (blobs / f"{etag}.part").write_bytes(data)
        self.plan("org/one")
        self.assertEqual(self.hub.fetched("m.gguf"), [])
        self.assert_same(self.snapshot("one") / "m.gguf", data)
        (self.snapshot("one") / "m.gguf").unlink()
        (blobs / f"{etag}.part").write_bytes(data + b"too long")
        self.plan("org/one")
        self.assertEqual(self.hub.fetched("m.gguf"), [])

    def test_a_token_opens_what_is_private_and_goes_nowhere_else(self):
        self.hub.private.add("org/one")
        self.assertIn("HF_TOKEN", self.plan("org/one", code=NO_MODEL))
        self.plan("org/one", HF_TOKEN="secret")
        self.assertEqual({token for path, _, token in self.hub.requests if path.startswith("/cdn/")}, {None})
        self.hub.private.add("org/quants")
        home = self.cache.parent / "home"
        home.mkdir()
        (home / "token").write_text("secret\n")
        self.plan("org/quants:F16", HF_HOME=str(home))

    def test_what_is_not_there(self):
        self.assertIn("no such model", self.plan("org/none", code=NO_MODEL))
        self.assertIn("no such model", self.plan("org/one@other", code=NO_MODEL))
        asked = len(self.hub.requests)
        for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            self.assertIn("HF_HUB_OFFLINE forbids", self.plan("org/one", code=NO_MODEL, **{variable: "1"}))
        for name in ("nonesuch", "./org/one", "org/one.gguf"):
            self.plan(name, code=NO_MODEL)
        self.assertEqual(len(self.hub.requests), asked)
        self.assertIn("no download", self.plan("org/one", code=NO_MODEL, HF_ENDPOINT="http://127.0.0.1:1"))
        self.assertFalse(self.cache.exists() and list(self.cache.rglob("refs")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
