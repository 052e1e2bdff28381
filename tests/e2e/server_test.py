#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Black-box tests of `warprow serve` with the default model.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/server_test.py [-k NAME]

Environment as in cli_test.py. Exits 77, which ctest shows as skipped, if the model is not on this machine. Tests
of other clients: tests/clients.
"""

import base64
import http.client
import http.server
import json
import math
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
from tiny_model import TinyModel  # noqa: E402

BIN = os.environ.get("WARPROW_BIN", "build/cpu-release/warprow")
MODEL = os.environ.get("WARPROW_E2E_MODEL", "smollm2")
TIMEOUT = 240
PROMPT = "The capital of France is"
CHAT = [{"role": "user", "content": "What is gravity?"}]


def clean_environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("WARPROW_")}


class Server:
    """Starts a server and reads its port from the ready line."""

    def __init__(self, *flags, model=MODEL, max_model_len=2048):
        self.process = subprocess.Popen([BIN, "serve", model, "--port", "0", "--max-model-len", str(max_model_len), *flags],
                                        stderr=subprocess.PIPE, text=True, env=clean_environment())
        self.said = ""  # output before it was ready
        self.ready_line = self.process.stderr.readline()
        while self.ready_line and not self.ready_line.startswith("ready in "):
            self.said += self.ready_line
            self.ready_line = self.process.stderr.readline()
        found = re.search(r"https?://127\.0\.0\.1:(\d+)", self.ready_line)
        if not found:
            raise AssertionError(f"no ready line: {self.said}{self.ready_line}")
        self.port = int(found.group(1))

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)

    def ask(self, method, path, body=None, headers=None):
        """Status, headers and body of one request on a connection of its own."""
        connection = self.connect()
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def post(self, path, body):
        status, _, data = self.ask("POST", path, body)
        return status, json.loads(data)

    def events(self, path, body):
        status, headers, data = self.ask("POST", path, {**body, "stream": True})
        assert status == 200, data
        assert headers["Content-Type"].startswith("text/event-stream"), headers
        parts = data.decode().split("\n\n")
        assert parts[-2:] == ["data: [DONE]", ""], parts[-2:]
        return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]

    def cpu_seconds(self, seconds):
        """The processor time that the process uses in this many seconds."""
        def used():
            with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        before = used()
        time.sleep(seconds)
        return used() - before

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(TIMEOUT)
        finally:
            self.process.stderr.close()


class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def refuse(self, status, param, needle, path, body):
        got, answer = self.server.post(path, body)
        self.assertEqual(got, status, answer)
        self.assertLessEqual({"message", "type", "param", "code"}, set(answer["error"]))
        self.assertEqual(answer["error"]["code"], status)
        self.assertEqual(answer["error"]["param"], param)
        self.assertIn(needle, answer["error"]["message"])

    def test_it_says_when_it_is_ready(self):
        self.assertRegex(self.server.said, r"(?m)^kv cache +[\d.]+ MiB .* blocks of 16 tokens")
        self.assertRegex(self.server.said, rf"(?m)^settings +--model {MODEL} \(flag\), --max-model-len 2048 \(flag\)$")
        self.assertRegex(self.server.ready_line, rf"^ready in \d+ ms: http://127\.0\.0\.1:\d+ serves {MODEL}\n$")

    def test_small_endpoints(self):
        for path in ("/health", "/ping", "/livez", "/readyz", "/health/"):
            self.assertEqual(self.server.ask("GET", path)[::2], (200, b""))
        self.assertRegex(json.loads(self.server.ask("GET", "/version")[2])["version"], r"^\d+\.\d+\.\d+$")
        models = json.loads(self.server.ask("GET", "/v1/models")[2])
        self.assertEqual(models["object"], "list")
        self.assertEqual(models["data"][0]["id"], MODEL)
        self.assertEqual(models["data"][0]["max_model_len"], 2048)

    def test_the_dashboard_knows_the_metrics(self):
        self.server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2})
        self.server.ask("GET", "/version")
        metrics = self.server.ask("GET", "/metrics")[2].decode()
        has = {line.split("{")[0].split(" ")[0] for line in metrics.splitlines() if not line.startswith("#")}
        dashboard = json.loads((Path(__file__).parents[2] / "packaging" / "grafana" / "warprow.json").read_text(encoding="utf-8"))
        asked = {name for panel in dashboard["panels"] for target in panel["targets"]
                 for name in re.findall(r"(?:vllm|warprow):\w+", target["expr"])}
        self.assertGreater(len(asked), 15)
        self.assertLessEqual(asked, has)

    def test_a_completion_is_what_generate_prints(self):
        cli = subprocess.run([BIN, "generate", MODEL, "-p", PROMPT, "--temperature", "0", "--max-tokens", "24",
                              "--output", "json"], capture_output=True, timeout=TIMEOUT, env=clean_environment(), check=True)
        choice = json.loads(cli.stdout)["choices"][0]
        body = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 24}
        status, answer = self.server.post("/v1/completions", body)
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["object"], "text_completion")
        self.assertEqual(answer["choices"][0]["text"], choice["text"])
        self.assertEqual(answer["choices"][0]["finish_reason"], choice["finish_reason"])
        self.assertEqual(answer["usage"]["completion_tokens"], len(choice["token_ids"]))
        ids = json.loads(cli.stdout)["prompt_token_ids"]
        _, by_ids = self.server.post("/v1/completions", {**body, "prompt": ids})
        self.assertEqual(by_ids["choices"][0]["text"], choice["text"])
        chunks = self.server.events("/v1/completions", body)
        self.assertEqual("".join(chunk["choices"][0]["text"] for chunk in chunks), choice["text"])

    def test_chunks_have_the_usage_so_far_if_asked(self):
        options = {"max_tokens": 8, "temperature": 0, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        for path, prompt in (("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": CHAT})):
            *chunks, last = self.server.events(path, {**prompt, **options})
            self.assertEqual({chunk["usage"]["prompt_tokens"] for chunk in chunks}, {last["usage"]["prompt_tokens"]})
            counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
            self.assertEqual(counts, sorted(counts))
            self.assertEqual(counts[-1], last["usage"]["completion_tokens"])

    def test_a_chat_stream_is_the_whole_answer(self):
        body = {"messages": CHAT, "temperature": 0, "max_completion_tokens": 24, "logprobs": True, "top_logprobs": 2}
        _, whole = self.server.post("/v1/chat/completions", body)
        chunks = self.server.events("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
        usage = chunks.pop()
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        self.assertEqual(deltas[0], {"role": "assistant", "content": ""})
        message = whole["choices"][0]["message"]
        self.assertEqual(message["role"], "assistant")
        self.assertTrue(message["content"])
        self.assertEqual("".join(delta.get("content", "") for delta in deltas), message["content"])
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"])
        self.assertEqual(usage["choices"], [])
        self.assertEqual(usage["usage"]["completion_tokens"], 24)
        self.assertEqual(len({chunk["id"] for chunk in chunks}), 1)
        logprobs = whole["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(logprobs), 24)
        self.assertEqual(len(logprobs[0]["top_logprobs"]), 2)
        streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
        self.assertEqual([entry["token"] for entry in streamed], [entry["token"] for entry in logprobs])

    def test_several_choices_and_a_stop_string(self):
        body = {"prompt": PROMPT, "n": 3, "seed": 5, "max_tokens": 8, "logprobs": 1}
        _, answer = self.server.post("/v1/completions", body)
        self.assertEqual([choice["index"] for choice in answer["choices"]], [0, 1, 2])
        self.assertEqual(len({choice["text"] for choice in answer["choices"]}), 3)
        for choice in answer["choices"]:
            self.assertEqual("".join(choice["logprobs"]["tokens"]), choice["text"])
        texts = ["", "", ""]
        for chunk in self.server.events("/v1/completions", body):
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        self.assertEqual(texts, [choice["text"] for choice in answer["choices"]])
        greedy = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8}
        text = self.server.post("/v1/completions", greedy)[1]["choices"][0]["text"]
        _, stopped = self.server.post("/v1/completions", {**greedy, "stop": ["<none>", text[5:9]]})
        self.assertEqual(stopped["choices"][0]["finish_reason"], "stop")
        self.assertEqual(stopped["choices"][0]["stop_reason"], text[5:9])
        self.assertEqual(stopped["choices"][0]["text"], text[:text.index(text[5:9])])

    def test_errors_name_field_value_and_limit(self):
        self.refuse(400, "temperature", "9 is outside [0, 2]", "/v1/completions", {"prompt": "x", "temperature": 9})
        self.refuse(400, "top_k", "must be a whole number", "/v1/completions", {"prompt": "x", "top_k": "all"})
        self.refuse(400, "suffix", "not supported", "/v1/completions", {"prompt": "x", "suffix": "y"})
        self.refuse(400, "prompt", "maximum context length is 2048 tokens", "/v1/completions", {"prompt": [1] * 3000})
        self.refuse(400, "max_tokens", "prompt: 1 tokens and max_tokens 2048 are too many", "/v1/completions",
                    {"prompt": [1], "max_tokens": 2048})
        _, answer = self.server.post("/v1/completions", {"prompt": [1] * 3000})
        self.assertEqual({key: answer["error"][key] for key in ("type", "n_prompt_tokens", "n_ctx")},
                         {"type": "context_length_exceeded", "n_prompt_tokens": 3000, "n_ctx": 2048})
        rules = {"prompt": "x", "allowed_token_ids": [5], "logit_bias": {"5": -100}, "bad_words": []}
        self.assertEqual(self.server.post("/v1/completions", rules)[0], 200)  # -100 is a bias, not a ban
        rules = {"prompt": "x", "allowed_token_ids": [1], "min_tokens": 2, "stop_token_ids": [1]}
        self.refuse(400, None, "exclude every token", "/v1/completions", rules)
        self.refuse(400, "messages[0].role", "must be text", "/v1/chat/completions", {"messages": [{}]})
        self.refuse(400, None, "not JSON", "/v1/completions", "{")
        self.refuse(404, "model", "'other'", "/v1/completions", {"prompt": "x", "model": "other"})
        self.refuse(404, None, "there is no /v2", "/v2", {})
        status, headers, _ = self.server.ask("GET", "/v1/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST"))
        status, _, data = self.server.ask("POST", "/v1/completions", b" " * (33 << 20))
        self.assertEqual(status, 413)
        self.assertIn("33554432", json.loads(data)["error"]["message"])
        status, _, _ = self.server.ask("POST", "/v1/completions", b"[" * 1_000_000)
        self.assertEqual(status, 400)

    def test_what_is_no_http(self):
        with socket.create_connection(("127.0.0.1", self.server.port), TIMEOUT) as raw:
            raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
            self.assertTrue(raw.recv(100).startswith(b"HTTP/1.1 400"))

    def answered(self, path, body):
        status, answer = self.server.post(path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def test_what_a_request_would_run(self):
        chat = {"messages": [{"role": "user", "content": "Say a word."}], "temperature": 0, "max_tokens": 4}
        rendered = self.answered("/v1/chat/completions/render", {**chat, "tool_choice": "required", "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]})
        self.assertEqual(rendered["sampling_params"]["max_tokens"], 4)
        plain = self.answered("/v1/chat/completions/render", chat)
        told = self.answered("/v1/chat/completions", {**chat, "return_token_ids": True})
        self.assertEqual(plain["token_ids"], told["prompt_token_ids"])
        again = self.answered("/v1/completions", {"prompt": plain["token_ids"], **plain["sampling_params"]})
        self.assertEqual(again["choices"][0]["text"], told["choices"][0]["message"]["content"])

    def test_prompts_are_truncated(self):
        ids = self.answered("/tokenize", {"prompt": PROMPT})["tokens"]
        body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "return_token_ids": True}
        for fields, left in (({}, ids[-3:]), ({"truncation_side": "right"}, ids[:3])):
            choice = self.answered("/v1/completions", {**body, "truncate_prompt_tokens": 3, **fields})["choices"][0]
            self.assertEqual(choice["prompt_token_ids"], left)
            self.assertEqual(choice, self.answered("/v1/completions", {**body, "prompt": left})["choices"][0])
        whole = self.answered("/v1/completions", {**body, "truncate_prompt_tokens": len(ids)})
        self.assertEqual(whole["choices"][0]["prompt_token_ids"], ids)
        limit = self.answered("/tokenize", {"prompt": PROMPT})["max_model_len"]
        long = {"prompt": [ids[0]] * (limit + 5), "max_tokens": 2}
        self.assertEqual(self.server.post("/v1/completions", long)[0], 400)
        fitted = self.answered("/v1/completions", {**long, "truncate_prompt_tokens": -1})
        self.assertEqual(fitted["usage"]["prompt_tokens"], limit - 2)
        status, answer = self.server.post("/v1/completions", {**body, "truncate_prompt_tokens": limit + 1})
        self.assertEqual(status, 400)
        self.assertIn(f"truncate_prompt_tokens: {limit + 1} is above", answer["error"]["message"])

    def test_token_ids_are_returned(self):
        body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
        choice = self.answered("/v1/completions", body)["choices"][0]
        self.assertEqual(self.answered("/detokenize", {"tokens": choice["token_ids"]})["prompt"], choice["text"])
        named = self.answered("/v1/completions", {**body, "logprobs": 1, "return_tokens_as_token_ids": True})
        self.assertEqual(named["choices"][0]["logprobs"]["tokens"], [f"token_id:{id}" for id in choice["token_ids"]])
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0,
                "return_token_ids": True}
        whole = self.answered("/v1/chat/completions", chat)
        events = self.server.events("/v1/chat/completions", chat)
        self.assertEqual(events[0]["prompt_token_ids"], whole["prompt_token_ids"])
        streamed = [id for event in events for id in event["choices"][0]["token_ids"]]
        self.assertEqual(streamed, whole["choices"][0]["token_ids"])

    def test_a_chat_echoes_what_it_goes_on_with(self):
        chat = {"messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}],
                "max_tokens": 4, "temperature": 0, "add_generation_prompt": False, "continue_final_message": True}
        plain = self.answered("/v1/chat/completions", chat)["choices"][0]["message"]["content"]
        echoed = self.answered("/v1/chat/completions", {**chat, "echo": True})["choices"][0]["message"]["content"]
        self.assertEqual(echoed, "One, two," + plain)
        asked = {"messages": chat["messages"][:1], "max_tokens": 4, "temperature": 0}
        self.assertEqual(self.answered("/v1/chat/completions", asked)["choices"],
                         self.answered("/v1/chat/completions", {**asked, "echo": True})["choices"])

    def test_ignored_fields_are_named(self):
        body = {"prompt": "x", "max_tokens": 1, "user": "me", "odd\r\nX-Evil: 1": 2}
        for stream in (False, True):
            status, headers, _ = self.server.ask("POST", "/v1/completions", {**body, "stream": stream})
            self.assertEqual(status, 200)
            self.assertEqual(headers["X-Ignored-Params"], "user, odd??X-Evil: 1")
            self.assertNotIn("X-Evil", headers)

    def test_a_connection_serves_many_requests(self):
        connection = self.server.connect()
        self.addCleanup(connection.close)
        for stream in (True, False, True, False):
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 2, "stream": stream}))
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200)
            answer.read()
            self.assertFalse(answer.will_close)

    def test_pipelined_requests_are_answered_in_turn(self):
        body = json.dumps({"prompt": "x", "max_tokens": 3})
        one = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        last = one.replace("Host: localhost", "Host: localhost\r\nConnection: close")
        # The server must close before the timeout.
        with socket.create_connection(("127.0.0.1", self.server.port), 20) as raw:
            raw.sendall((one + last).encode())
            data = b"".join(iter(lambda: raw.recv(65536), b""))
        self.assertEqual(data.count(b"HTTP/1.1 200"), 2)

    def test_a_client_that_leaves_frees_its_request(self):
        body = {"prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True, "temperature": 0}
        for stream in (True, False):
            connection = self.server.connect()
            connection.request("POST", "/v1/completions", json.dumps({**body, "stream": stream}))
            if stream:
                connection.getresponse().read(100)
            else:
                time.sleep(0.3)
            connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()
        time.sleep(0.5)
        # Nothing runs, and idling takes no processor time. A busy machine may need a second try.
        self.assertTrue(any(self.server.cpu_seconds(1.0) < 0.1 for _ in range(2)))


class Fields(unittest.TestCase):
    """Fields that need flags of the server."""

    @classmethod
    def setUpClass(cls):
        cls.profiles = tempfile.TemporaryDirectory()
        cls.server = Server("--max-logprobs", "-1", "--trust-request-chat-template", "--max-num-seqs", "4", "--server-dev-mode",
                            "--enable-tokenizer-info-endpoint", "--profile-dir", cls.profiles.name)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.profiles.cleanup()

    def get(self, path):
        status, _, data = self.server.ask("GET", path)
        self.assertEqual(status, 200, data)
        return json.loads(data)

    def test_pages_and_facts(self):
        status, headers, page = self.server.ask("GET", "/docs")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn(b"openapi.json", page)
        info = self.get("/tokenizer_info")
        self.assertEqual((info["eos_token"], info["vocab_size"]), ("<|im_end|>", 49152))
        self.assertIn("<|im_start|>", info["chat_template"])
        self.assertEqual(self.get("/server_info")["settings"]["max-logprobs"], -1)

    def test_a_paused_engine_keeps_its_requests(self):
        connection = self.server.connect()
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": PROMPT, "stream": True, "max_tokens": 200, "ignore_eos": True, "temperature": 0}))
        answer = connection.getresponse()
        self.assertTrue(answer.readline().startswith(b"data: "))
        self.assertEqual(self.server.ask("POST", "/pause?mode=keep")[0], 200)
        self.assertTrue(self.get("/is_paused")["is_paused"])
        steps = self.get("/v1/engine/state")["engine"]["steps"]
        self.assertEqual(self.server.ask("GET", "/readyz")[0], 503)
        self.assertEqual(self.get("/v1/engine/state")["engine"]["steps"], steps)
        self.assertEqual(self.server.ask("POST", "/resume")[0], 200)
        self.assertIn(b'"finish_reason":"length"', answer.read())
        connection.close()

    def test_a_profile(self):
        self.assertEqual(self.server.ask("POST", "/start_profile")[0], 200)
        self.server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True})
        status, _, data = self.server.ask("POST", "/stop_profile")
        self.assertEqual(status, 200, data)
        with open(json.loads(data)["file"], encoding="utf-8") as file:
            names = [event["name"] for event in json.load(file)["traceEvents"]]
        self.assertIn("decode", names)
        self.assertEqual(os.stat(json.loads(data)["file"]).st_mode & 0o777, 0o600)

    def test_logprobs_of_the_whole_vocabulary(self):
        body = {"messages": CHAT, "temperature": 0, "max_tokens": 2, "logprobs": True, "return_tokens_as_token_ids": True}
        tops = {}
        for wanted in (20, 200, -1):
            status, answer = self.server.post("/v1/chat/completions", {**body, "top_logprobs": wanted})
            self.assertEqual(status, 200, answer)
            tops[wanted] = [entry["top_logprobs"] for entry in answer["choices"][0]["logprobs"]["content"]]
        for wanted in (20, 200):
            self.assertEqual([list_[:wanted] for list_ in tops[-1]], tops[wanted])
        for top in tops[-1]:
            self.assertGreater(len(top), 49000)
            self.assertEqual(len({entry["token"] for entry in top}), len(top))
            self.assertAlmostEqual(sum(math.exp(entry["logprob"]) for entry in top), 1, places=3)
            self.assertEqual(top, sorted(top, key=lambda entry: -entry["logprob"]))
        status, answer = self.server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "logprobs": -1})
        self.assertGreater(len(answer["choices"][0]["logprobs"]["top_logprobs"][0]), 40000)
        status, answer = self.server.post("/v1/completions", {"prompt": PROMPT, "logprobs": 1 << 30})
        self.assertEqual((status, answer["error"]["param"]), (400, "logprobs"))

    def test_a_request_brings_its_template(self):
        body = {"messages": CHAT, "chat_template": "{{ bos_token }}{{ messages[0].content }} {{ mood }}",
                "chat_template_kwargs": {"mood": "Good"}}
        _, own = self.server.post("/tokenize", body)
        _, text = self.server.post("/tokenize", {"prompt": f"<|im_start|>{CHAT[0]['content']} Good"})
        self.assertEqual(own["tokens"], text["tokens"])
        status, answer = self.server.post("/v1/chat/completions", {**body, "max_tokens": 1})
        self.assertEqual((status, answer["usage"]["prompt_tokens"]), (200, own["count"]))
        endless = "{% for i in range(20000) %}{% for j in range(20000) %}{% endfor %}{% endfor %}"
        status, answer = self.server.post("/v1/chat/completions", {**body, "chat_template": endless})
        self.assertEqual((status, answer["error"]["param"]), (400, "chat_template"), answer)

    def test_a_structural_tag(self):
        tag = {"type": "tag", "begin": "<n>", "content": {"type": "json_schema", "json_schema": {"type": "integer"}}, "end": "</n>"}
        format_ = {"type": "structural_tag", "format": {"type": "sequence", "elements": [
            {"type": "const_string", "value": "Number: "}, tag]}}
        body = {"messages": CHAT, "max_tokens": 60, "seed": 3}
        for fields in ({"response_format": format_}, {"structured_outputs": {"structural_tag": json.dumps(format_)}}):
            status, answer = self.server.post("/v1/chat/completions", {**body, **fields})
            self.assertEqual(status, 200, answer)
            self.assertRegex(answer["choices"][0]["message"]["content"], r"^Number: <n>-?\d+(</n>$|$)")
        triggered = {"type": "structural_tag", "triggers": ["<n"], "structures": [
            {"begin": "<n>", "schema": {"type": "boolean"}, "end": "</n>"}]}
        status, answer = self.server.post("/v1/chat/completions", {**body, "response_format": triggered, "ignore_eos": False})
        self.assertEqual(status, 200, answer)
        for found in re.findall("<n>(.*?)</n>", answer["choices"][0]["message"]["content"]):
            self.assertIn(found, ("true", "false"))
        status, answer = self.server.post("/v1/chat/completions", {**body, "response_format": {"type": "structural_tag"}})
        self.assertEqual((status, answer["error"]["param"]), (400, "response_format"), answer)


class Weights(unittest.TestCase):
    """Vectors in prompts, and other weights, with a tiny model."""

    @classmethod
    def setUpClass(cls):
        cls.model = TinyModel()
        cls.other = TinyModel(change=7)
        cls.server = Server("--enable-prompt-embeds", "--server-dev-mode", "--dtype", "float32", "--kv-cache-memory-bytes", "4MiB",
                            "--served-model-name", "tiny", model=cls.model.path, max_model_len=200)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.model.folder.cleanup()
        cls.other.folder.cleanup()

    def complete(self, **fields):
        body = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": 1, **fields}
        status, answer = self.server.post("/v1/completions", body)
        self.assertEqual(status, 200, answer)
        return answer["choices"]

    def file(self, ids):
        return base64.b64encode(self.model.safetensors(ids)).decode()

    def test_vectors_give_what_their_ids_give(self):
        ids = [5 + 3 * i % 100 for i in range(40)]
        [expected] = self.complete(prompt=ids)
        places = [token if i % 2 else -1 for i, token in enumerate(ids)]
        first, second = self.complete(prompt_embeds=[self.file(ids), self.file(ids)])
        [alone] = self.complete(prompt_embeds=self.file(ids), prompt=None)
        [mixed] = self.complete(prompt=places, prompt_embeds=self.file(ids[::2]))
        of_both = self.complete(prompt="abc", prompt_embeds=self.file(ids))
        several = self.complete(prompt=[[5, 6], places], prompt_embeds=[self.file(ids[::2])])
        for choice in (first, second, alone, mixed, of_both[0], several[1]):
            self.assertEqual((choice["token_ids"], choice["logprobs"]), (expected["token_ids"], expected["logprobs"]))
        self.assertEqual(len(of_both), 2)
        self.assertEqual(mixed["prompt_token_ids"], places)
        chunks = self.server.events("/v1/completions", {"prompt_embeds": self.file(ids), "max_tokens": 8, "temperature": 0, "ignore_eos": True})
        self.assertEqual("".join(chunk["choices"][0]["text"] for chunk in chunks), expected["text"])

    def test_vectors_that_are_refused(self):
        good = self.file([5, 6])
        cases = [
            ({"prompt_embeds": "###"}, "prompt_embeds: is no base64"),
            ({"prompt_embeds": "QUJD"}, "prompt_embeds: 'safetensors': not a safetensors file"),
            ({"prompt_embeds": [good, 5]}, "prompt_embeds: must be"),
            ({"prompt_embeds": good, "prompt": [[-1, -1], [-1, -1]]}, "1 entries for 2 prompts with places"),
            ({"prompt_embeds": good, "prompt": [-1]}, "2 vectors for 1 places"),
            ({"prompt_embeds": good, "echo": True}, "echo: not supported with prompt_embeds"),
            ({"prompt_embeds": good, "prompt_logprobs": 1}, "prompt_logprobs: a prompt with prompt_embeds"),
            ({"prompt_embeds": good, "truncate_prompt_tokens": 1}, "truncate_prompt_tokens: not supported"),
            ({"prompt_embeds": self.file(list(range(3, 99)) * 3)}, "maximum context length"),
            ({"prompt_embeds": base64.b64encode(self.model.safetensors([5])[:-4]).decode()}, "prompt_embeds: 'safetensors': the file ends early"),
        ]
        for fields, text in cases:
            with self.subTest(text):
                status, answer = self.server.post("/v1/completions", fields)
                self.assertEqual(status, 400, answer)
                self.assertIn(text, answer["error"]["message"])
        status, answer = self.server.post("/v1/chat/completions", {"messages": CHAT, "prompt_embeds": good})
        self.assertEqual((status, answer["error"]["message"]), (400, "prompt_embeds: not supported yet"))

    def test_weights_are_replaced_while_a_request_is_kept(self):
        command = lambda path, body=None: self.server.ask("POST", path, body)  # noqa: E731
        prompt = list(range(3, 40))
        [of_one] = self.complete(prompt=prompt)
        status, _, answer = command("/update_weights", {"update_info": {"weights_path": self.other.path}})
        self.assertEqual((status, b"pause it first" in answer), (400, True))
        self.assertEqual(command("/pause?mode=keep")[0], 200)
        threads = []
        kept = []
        threads.append(threading.Thread(target=lambda: kept.extend(self.complete(prompt=prompt))))
        threads[0].start()
        try:
            for path in ("/nonesuch", str(Path(self.model.path) / "config.json")):
                self.assertIn(command("/update_weights", {"update_info": {"weights_path": path}})[0], (400, 404))
            status, _, answer = command("/update_weights", {"update_info": {"weights_path": self.other.path}})
            self.assertEqual((status, json.loads(answer)), (200, {"message": "Weights updated"}))
        finally:
            self.assertEqual(command("/resume")[0], 200)
            threads[0].join()
        [of_two] = self.complete(prompt=prompt)
        self.assertEqual(kept[0]["token_ids"], of_two["token_ids"])
        self.assertNotEqual(of_two["token_ids"], of_one["token_ids"])
        for path in ("/pause", "/resume"):  # and back
            if path == "/resume":
                self.assertEqual(command("/update_weights", {"update_info": {"weights_path": self.model.path}})[0], 200)
            self.assertEqual(command(path)[0], 200)
        self.assertEqual(self.complete(prompt=prompt)[0]["token_ids"], of_one["token_ids"])


class Collector(http.server.ThreadingHTTPServer):
    """An OpenTelemetry collector that is busy at first and then keeps the spans."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.spans, self.headers, self.refusals = [], None, 1
        self.changed = threading.Condition()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.spans) >= count, TIMEOUT), self.spans
            return list(self.spans)


class CollectorHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.changed:
            self.server.refusals -= 1
            busy = self.server.refusals >= 0
            if not busy:
                self.server.headers = (self.path, dict(self.headers))
                for resource in body["resourceSpans"]:
                    self.server.spans += [span for scope in resource["scopeSpans"] for span in scope["spans"]]
                self.server.changed.notify_all()
        self.send_response(503 if busy else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Traces(unittest.TestCase):
    def test_spans_reach_a_collector(self):
        collector = Collector()
        os.environ["OTEL_EXPORTER_OTLP_HEADERS"] = "x-team=a%20b,x-key=1"
        try:
            server = Server("--otlp-traces-endpoint", f"http://127.0.0.1:{collector.server_port}")
        finally:
            del os.environ["OTEL_EXPORTER_OTLP_HEADERS"]
        body = {"prompt": PROMPT, "max_tokens": 3, "ignore_eos": True, "temperature": 0.5, "request_id": "r1"}
        ids = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        for flags in ("00", "01"):  # not sampled, sampled
            status, _, data = server.ask("POST", "/v1/completions", body, {"traceparent": f"00-{ids[0]}-{ids[1]}-{flags}"})
            self.assertEqual(status, 200, data)
        (span,) = collector.wait_for(1)
        self.assertEqual((span["traceId"], span["parentSpanId"], span["name"]), (*ids, "llm_request"))
        found = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
        self.assertEqual((found["gen_ai.request.id"], found["gen_ai.usage.completion_tokens"]), ("cmpl-r1", "3"))
        self.assertEqual(found["gen_ai.request.temperature"], 0.5)
        self.assertGreater(found["gen_ai.latency.e2e"], found["gen_ai.latency.time_to_first_token"])
        path, headers = collector.headers
        self.assertEqual((path, headers["x-team"], headers["x-key"]), ("/v1/traces", "a b", "1"))
        server.post("/v1/completions", {**body, "n": 2})
        self.assertEqual(server.stop(), 0)  # which sends what waits
        spans = collector.wait_for(3)
        self.assertEqual(len(spans), 3)
        self.assertEqual(len({each["spanId"] for each in spans}), 3)
        collector.shutdown()
        collector.server_close()

    def test_a_url_that_is_none(self):
        done = subprocess.run([BIN, "serve", MODEL, "--otlp-traces-endpoint", "localhost:4317"], capture_output=True,
                              timeout=TIMEOUT, env=clean_environment())
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"no URL of http", done.stderr)


class Lifetime(unittest.TestCase):
    def test_api_key_and_names(self):
        server = Server("--api-key", "secret", "--served-model-name", "one", "--served-model-name", "two")
        self.addCleanup(server.stop)
        self.assertEqual(server.ask("GET", "/health")[0], 200)
        for headers in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "secret"}):
            status, answer, data = server.ask("GET", "/v1/models", headers=headers)
            self.assertEqual((status, answer["WWW-Authenticate"]), (401, "Bearer"))
            self.assertEqual(json.loads(data)["error"]["type"], "authentication_error")
        headers = {"Authorization": "Bearer secret"}
        models = json.loads(server.ask("GET", "/v1/models", headers=headers)[2])
        self.assertEqual([model["id"] for model in models["data"]], ["one", "two"])
        body = {"model": "two", "prompt": "x", "max_tokens": 1}
        status, _, data = server.ask("POST", "/v1/completions", body, headers)
        self.assertEqual((status, json.loads(data)["model"]), (200, "one"))

    def test_a_signal_lets_answers_end(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = Server()
            idle = server.connect()
            idle.request("GET", "/health")
            idle.getresponse().read()
            busy = server.connect()
            busy.request("POST", "/v1/completions", json.dumps(
                {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "stream": True}))
            answer = busy.getresponse()
            server.process.send_signal(number)
            data = answer.read()
            self.assertTrue(data.endswith(b"data: [DONE]\n\n"), data[-100:])
            self.assertEqual(server.process.wait(TIMEOUT), 0)
            server.process.stderr.close()
            idle.close()
            busy.close()

    def test_a_second_signal_forces_the_end(self):
        server = Server()
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True, "stream": True}))
        connection.getresponse()  # the head has arrived, so the request runs
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        self.assertIsNone(server.process.poll())
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(10), 128 + signal.SIGTERM)
        server.process.stderr.close()
        connection.close()

    def test_what_cannot_start_says_why(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            for flags, code, needle in ((("--port", port), 2, "in use"), (("--port", "x"), 2, "--port: 'x'"),
                                        (("--host", "no.such.host.invalid"), 2, "--host")):
                done = subprocess.run([BIN, "serve", MODEL, *flags], capture_output=True, timeout=TIMEOUT,
                                      env=clean_environment())
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(needle, done.stderr.decode())


def main():
    plan = subprocess.run([BIN, "plan", MODEL], capture_output=True, timeout=TIMEOUT, env=clean_environment())
    if plan.returncode == 3:
        print(f"skipped: the model {MODEL} is not here; ./dev test fetches it")
        return 77
    result = unittest.main(exit=False).result
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
