#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`warprow serve` against grammars of clients and chat templates of models that ask for endless time or memory.

Usage and environment as server_test.py; WARPROW_E2E_HOSTILE, how many hostile grammars (40), of which each takes its limit.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent import futures
from pathlib import Path

import server_test
from gguf_parts import with_template
from server_test import BIN, CHAT, MODEL, PROMPT, TIMEOUT, Server, clean_environment

HOSTILE_SCHEMAS = int(os.environ.get("WARPROW_E2E_HOSTILE", "40"))
ENDLESS = "{% for i in range(9999) %}" * 3 + "x" + "{% endfor %}" * 3


def resident_mb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024


def descendants(pid):
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass  # the process has ended
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def open_files(pid):
    try:
        return {fd.name: os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return {}


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def structured(**wanted):
    return {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "structured_outputs": wanted}


def hostile(i):
    """A request that exceeds a limit. No two are equal."""
    endless = {"type": "integer", "multipleOf": 99999989 + 2 * i}
    kinds = [lambda: structured(json=endless),
             lambda: structured(json={"type": "object", "properties": {f"p{i}": endless}, "required": [f"p{i}"]}),
             lambda: structured(regex="a?" * (20000 + i) + "a" * 20000),
             lambda: structured(regex="(" * 9000 + f"a{i}" + ")" * 9000)]
    return kinds[i % len(kinds)]()


class Case(unittest.TestCase):
    def serve(self, *flags, model=MODEL):
        server = Server(*flags, model=model)
        self.addCleanup(server.process.stderr.close)
        self.addCleanup(server.process.wait)
        self.addCleanup(server.process.kill)
        return server

    def assert_ends(self, process, number, codes):
        """The limit is 2 s; the rest is for a busy machine."""
        start = time.monotonic()
        process.send_signal(number)
        self.assertIn(process.wait(20), codes)
        self.assertLess(time.monotonic() - start, 6)


class Grammars(Case):
    def test_hostile_ones_cost_their_senders_alone(self):
        server = self.serve()
        self.assertEqual(server.post("/v1/completions", structured(regex="before [a-z]+"))[0], 200)
        time.sleep(1)
        helpers = len(descendants(server.process.pid))
        resident = resident_mb(server.process.pid)
        answers = []
        quick = []
        done = threading.Event()

        def ask_quick():
            while not done.is_set():
                quick.append(server.ask("POST", "/v1/completions", structured(regex=f"normal {len(quick)} [a-z]+")))

        asking = threading.Thread(target=ask_quick)
        asking.start()
        with futures.ThreadPoolExecutor(6) as pool:
            jobs = [pool.submit(server.ask, "POST", "/v1/completions", hostile(i)) for i in range(HOSTILE_SCHEMAS)]
            answers = [job.result() for job in jobs]
        done.set()
        asking.join()
        start = time.monotonic()
        status, answer = server.post("/v1/completions", structured(json={"type": "object", "properties": {
            "after": {"type": "string"}}, "required": ["after"]}))
        self.assertEqual(status, 200, answer)
        self.assertLess(time.monotonic() - start, 10)

        refused = 0
        for status, headers, body in answers:
            error = json.loads(body)["error"]
            self.assertEqual(error["param"], "structured_outputs", error)
            if status == 503:
                self.assertGreater(int(headers["Retry-After"]), 0)
            else:
                self.assertEqual(status, 400, error)
                refused += 1
        self.assertGreater(refused, HOSTILE_SCHEMAS / 8)
        limits = {json.loads(body)["error"]["message"].split("takes ")[-1] for status, _, body in answers if status == 400}
        self.assertTrue(any("of processor time" in limit or "MiB of memory" in limit for limit in limits), limits)
        # A busy machine may refuse a quick request too, but only with an error that says so.
        self.assertLessEqual({status for status, _, _ in quick}, {200, 503})
        self.assertGreater(sum(status == 200 for status, _, _ in quick), len(quick) / 2)

        self.assertLess(resident_mb(server.process.pid) - resident, 150)
        self.assertTrue(wait_until(lambda: len(descendants(server.process.pid)) <= helpers), "a worker stays")
        self.assertLess(server.cpu_seconds(1), 0.5)

    def test_grammars_of_many_clients_delay_no_plain_request(self):
        server = self.serve()
        self.assertEqual(server.post("/v1/completions", structured(regex="before [a-z]+"))[0], 200)
        end = time.monotonic() + 4

        def ask_slowly(number):
            """Sends from its own address."""
            while time.monotonic() < end:
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT,
                                                        source_address=(f"127.0.1.{number}", 0))
                connection.request("POST", "/v1/completions", json.dumps(hostile(4 * random.randrange(1_000_000))))
                connection.getresponse().read()
                connection.close()

        threads = [threading.Thread(target=ask_slowly, args=(number,)) for number in range(1, 13)]
        for thread in threads:
            thread.start()
        took = []
        while time.monotonic() < end:
            begin = time.monotonic()
            self.assertEqual(server.post("/tokenize", {"prompt": "a few words"})[0], 200)
            took.append(time.monotonic() - begin)
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        self.assertLess(sorted(took)[len(took) // 2], 0.3)

    def test_the_field_that_asked_is_named(self):
        server = self.serve()
        schema = {"type": "integer", "multipleOf": 99999989}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": schema},
                                                                             "required": ["x"]}}}
        wishes = {"response_format": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
                  "tools": {"tools": [tool], "tool_choice": "required"},
                  "structured_outputs": {"structured_outputs": {"json": schema}}}
        for field, wish in wishes.items():
            status, answer = server.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 2, **wish})
            self.assertEqual((status, answer["error"]["param"]), (400, field), answer)
            self.assertRegex(answer["error"]["message"], "takes more than [0-9]+ (ms of processor time|MiB of memory)")

    def test_the_helper_holds_nothing_of_the_server_and_ends_with_it(self):
        server = self.serve()
        connection = server.connect()
        connection.connect()
        self.addCleanup(connection.close)
        self.assertEqual(server.post("/v1/completions", structured(regex="[a-z]+"))[0], 200)
        helpers = descendants(server.process.pid)
        self.assertTrue(helpers)
        for pid in helpers:
            fds = open_files(pid)
            if not fds:
                continue  # the worker has ended meanwhile
            self.assertEqual({fds[number] for number in "012"}, {"/dev/null"}, fds)
            self.assertLessEqual(len(fds), 5, fds)
            sockets = {link for link in fds.values() if link.startswith("socket:")}
            self.assertLessEqual(len(sockets), 1, fds)
            self.assertFalse([link for link in fds.values() if "nvidia" in link], fds)
        server.process.kill()
        server.process.wait()
        self.assertTrue(wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in helpers)))


class Templates(Case):
    def model(self, template):
        """The model's file with another chat template of the same length."""
        original = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warprow" / \
            "SmolLM2-135M-Instruct.Q4_1.gguf"
        if MODEL != "smollm2" or not original.exists():
            self.skipTest("needs the file of smollm2")
        file = tempfile.NamedTemporaryFile(suffix=".gguf")
        self.addCleanup(file.close)
        file.write(with_template(original.read_bytes(), template))
        file.flush()
        return file.name

    def test_each_limit_refuses_its_request_alone(self):
        cases = "{% set c=messages[0].content %}{% if c=='loop' %}" + ENDLESS + \
            "{% elif c=='pad' %}{{ 'x'.ljust(10**12) }}{% elif c=='join' %}{% set n=namespace(s='x') %}" \
            "{% for i in range(99) %}{% set n.s=n.s~n.s %}{% endfor %}{% else %}{{ c }}{% endif %}"
        server = self.serve(model=self.model(cases))
        resident = resident_mb(server.process.pid)
        for content, limit in (("loop", "fuel"), ("pad", "MiB of memory"), ("join", "MiB of memory")):
            messages = [{"role": "user", "content": content}]
            status, answer = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
            self.assertEqual(status, 400, answer)
            self.assertIn("chat template: ", answer["error"]["message"])
            self.assertIn(limit, answer["error"]["message"])
            self.assertEqual(server.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 2})[0], 200)
        self.assertLess(resident_mb(server.process.pid) - resident, 150)

    def test_one_that_nests_too_deeply_is_named_at_the_start(self):
        server = self.serve(model=self.model("{{" + "(" * 170 + "1" + ")" * 170 + "}}"))
        self.assertIn("chat template", server.said)
        status, answer = server.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 2})
        self.assertEqual(status, 400, answer)
        self.assertIn("chat template: ", answer["error"]["message"])
        self.assertEqual(server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2})[0], 200)

    def test_a_signal_ends_the_process_during_one(self):
        model = self.model(ENDLESS)
        for number in (signal.SIGTERM, signal.SIGINT):
            server = self.serve(model=model)
            asking = threading.Thread(target=lambda: self.ask_quietly(server))
            asking.start()
            time.sleep(0.3)
            self.assert_ends(server.process, number, {0})
            asking.join()
            process = subprocess.Popen([BIN, "generate", "-m", model, "--chat", "x"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, env=clean_environment())
            time.sleep(0.5)
            self.assert_ends(process, number, {1, 2, 128 + number, -number})

    def ask_quietly(self, server):
        try:
            server.ask("POST", "/v1/chat/completions", {"messages": CHAT, "max_tokens": 2})
        except OSError:
            pass  # the server has ended


class Loading(Case):
    def test_a_signal_ends_the_process_while_a_model_loads(self):
        """Generating random weights for 1.2 billion parameters takes seconds."""
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
                  "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
                  "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
                  "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            command = [BIN, "serve", folder, "--load-format", "dummy", "--port", "0", "--max-model-len", "128"]
            for number in (signal.SIGTERM, signal.SIGINT):
                for prefix in ([], ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]):
                    if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
                        continue  # this machine allows no namespaces
                    process = subprocess.Popen([*prefix, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                               env=clean_environment())
                    self.addCleanup(process.kill)
                    time.sleep(0.7)
                    self.assertIsNone(process.poll())
                    inner = descendants(process.pid)[-1] if prefix else process.pid
                    start = time.monotonic()
                    os.kill(inner, number)
                    self.assertIn(process.wait(20), {-number, 128 + number})
                    self.assertLess(time.monotonic() - start, 6)


if __name__ == "__main__":
    sys.exit(server_test.main())
