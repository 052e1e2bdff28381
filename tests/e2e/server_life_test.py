#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Black-box tests of `warprow serve`: overload, shutdown, slow and broken clients, metrics and state.

Usage and environment as server_test.py.
"""

import collections
import fcntl
import http.client
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest
from concurrent import futures

import server_test
from server_test import BIN, CHAT, MODEL, PROMPT, TIMEOUT, Server, clean_environment

LONG = {"prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True, "temperature": 0, "stream": True}


def stream(server, body=None):
    """Opens a connection and returns it when its stream has begun."""
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps(body or LONG))
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    return connection, answer


def post(body, path="/v1/completions"):
    """The bytes of a request."""
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data)


def num_unread(connection):
    return struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))[0]


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


class UnixServer:
    """Starts a server on a Unix socket."""

    def __init__(self, path, *flags):
        self.path = path
        self.process = subprocess.Popen([BIN, "serve", MODEL, "--uds", path, "--max-model-len", "2048", *flags],
                                        stderr=subprocess.PIPE, text=True, env=clean_environment())
        self.ready_line = next(line for line in self.process.stderr if line.startswith("ready in "))

    def open(self):
        out = socket.socket(socket.AF_UNIX)
        out.settimeout(TIMEOUT)
        out.connect(self.path)
        return out

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(TIMEOUT)
        finally:
            self.process.stderr.close()


class Case(unittest.TestCase):
    def serve(self, *flags):
        server = Server(*flags)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server

    def check_slow_readers(self, connect, streams):
        """Needs a server with --write-timeout 2. The answer, all logprobs of a long prompt at once, far exceeds the socket
        buffers."""
        body = {"prompt": "one two three four five " * 300, "max_tokens": 1, "echo": True, "logprobs": 20,
                "return_tokens_as_token_ids": True, "stream": streams}
        request = post(body).replace(b"HTTP/1.1", b"HTTP/1.0")

        def read(connection, pause):
            data = b""
            while piece := connection.recv(16 * 1024):
                data += piece
                time.sleep(pause)
            return data

        with connect() as connection:
            connection.sendall(request)
            data = read(connection, 0.06)
        self.assertTrue(data.endswith(b"data: [DONE]\n\n" if streams else b"}"), data[-100:])
        with connect() as connection:
            connection.sendall(request)
            self.assertTrue(wait_until(lambda: num_unread(connection) > 100_000, TIMEOUT))
            time.sleep(4)
            try:
                cut = read(connection, 0)
            except OSError:  # TLS reports the missing close
                return
        self.assertLess(len(cut), len(data) / 2)

    def state(self, server):
        return json.loads(server.ask("GET", "/v1/engine/state")[2])


class Overload(Case):
    def test_more_than_may_wait_is_answered_with_429(self):
        server = self.serve("--max-num-seqs", "1", "--max-queued-requests", "1", "--sse-keep-alive", "1")
        running, answer = stream(server)
        self.addCleanup(running.close)
        answer.read(10)  # the request runs
        waiting, silent = stream(server)
        self.addCleanup(waiting.close)
        status, headers, data = server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})
        self.assertEqual((status, headers["Retry-After"]), (429, "1"), data)
        self.assertEqual(json.loads(data)["error"]["type"], "rate_limit_error")
        status, _, data = server.ask("POST", "/v1/completions", {"prompt": ["x"] * 3, "max_tokens": 1})
        self.assertEqual((status, json.loads(data)["error"]["param"]), (400, "n"))
        self.assertTrue(wait_until(lambda: self.state(server)["scheduler"]["waiting"] == 1))
        states = sorted(request["state"] for request in self.state(server)["requests"])
        self.assertEqual(states, ["running", "waiting"])
        self.assertEqual(silent.read(14), b": keep-alive\n\n")  # while the request waits
        running.sock.shutdown(socket.SHUT_RDWR)
        self.assertTrue(wait_until(lambda: self.state(server)["scheduler"]["waiting"] == 0))
        waiting.sock.shutdown(socket.SHUT_RDWR)
        self.assertTrue(wait_until(lambda: self.state(server)["requests"] == []))
        self.assertEqual(server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0], 200)

    def test_a_slow_reader_holds_nobody_up(self):
        server = self.serve("--write-timeout", "2")
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            body = json.dumps({**LONG, "logprobs": 20})
            slow.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            for _ in range(3):
                self.assertEqual(server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})[0], 200)
            self.assertTrue(wait_until(lambda: self.state(server)["requests"] == [], 60))

    def test_a_client_that_left_is_noticed_whatever_it_sent_ahead(self):
        server = self.serve()
        for ahead in (b"\r\n", post({"prompt": "x"}), b"x" * 10_000):
            with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as client:
                client.sendall(post({**LONG, "stream": False}))
                self.assertTrue(wait_until(lambda: len(self.state(server)["requests"]) == 1))
                client.sendall(ahead)
                time.sleep(0.1)  # so that the server reads it before the end
            self.assertTrue(wait_until(lambda: self.state(server)["requests"] == [], 5), ahead[:10])

    def test_requests_sent_ahead_are_answered_in_order(self):
        server = self.serve()
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as client:
            client.sendall(post({"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True}))
            self.assertTrue(wait_until(lambda: len(self.state(server)["requests"]) == 1))
            # The first is too long for the model and exceeds the server's read-ahead.
            for piece in (post({"prompt": "x " * 50_000}), post({"prompt": PROMPT, "max_tokens": 1}), b"GET /version HTTP/1.0\r\n\r\n"):
                client.sendall(piece)
            data = b""
            while piece := client.recv(4096):
                data += piece
        self.assertEqual(re.findall(rb"HTTP/1\.[01] (\d+)", data), [b"200", b"400", b"200", b"200"])
        self.assertIn(b'"version"', data[data.rindex(b"HTTP/1."):])

    def test_a_slow_reader_gets_all_and_one_that_takes_nothing_is_cut(self):
        with tempfile.TemporaryDirectory() as folder:
            server = UnixServer(os.path.join(folder, "s"), "--write-timeout", "2")
            self.addCleanup(lambda: server.process.poll() is None and server.stop())
            for streams in (False, True):
                self.check_slow_readers(server.open, streams)

    def test_requests_that_never_arrive(self):
        server = self.serve("--read-timeout", "1", "--idle-timeout", "2", "--max-body-bytes", "2048")
        half = socket.create_connection(("127.0.0.1", server.port), TIMEOUT)
        idle = socket.create_connection(("127.0.0.1", server.port), TIMEOUT)
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        begin = time.monotonic()
        self.assertEqual(half.recv(100), b"")
        self.assertLess(time.monotonic() - begin, 1.9)
        self.assertEqual(idle.recv(100), b"")
        self.assertLess(time.monotonic() - begin, 10)
        half.close()
        idle.close()
        status, _, data = server.ask("POST", "/v1/completions", {"prompt": "x" * 4096})
        self.assertEqual(status, 413, data)

    def test_many_idle_connections(self):
        server = self.serve("--max-num-seqs", "4")
        wanted = min(3000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - 100)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted + 200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        idle = [socket.create_connection(("127.0.0.1", server.port), TIMEOUT) for _ in range(wanted)]
        try:
            self.assertTrue(wait_until(lambda: self.state(server)["connections"] > wanted))
            self.assertTrue(any(server.cpu_seconds(1.0) < 0.05 for _ in range(3)))
            self.assertEqual(server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})[0], 200)
        finally:
            for connection in idle:
                connection.close()
        self.assertTrue(wait_until(lambda: self.state(server)["connections"] < 10))


class Shutdown(Case):
    def test_answers_that_take_too_long_are_given_up(self):
        server = self.serve("--shutdown-timeout", "2")
        streaming, answer = stream(server)
        self.addCleanup(streaming.close)
        probe = server.connect()
        self.addCleanup(probe.close)
        answer.read(10)
        server.process.send_signal(signal.SIGTERM)
        self.assertTrue(wait_until(lambda: server.ask("GET", "/readyz")[0] == 503, 1))
        self.assertEqual(server.ask("GET", "/livez")[0], 200)
        self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": "x"})[0], 503)
        begin = time.monotonic()
        data = answer.read()
        self.assertTrue(data.endswith(b"data: [DONE]\n\n"), data[-200:])
        self.assertIn(b"the server shut down before the answer's end", data[-400:])
        self.assertEqual(server.process.wait(TIMEOUT), 0)
        self.assertLess(time.monotonic() - begin, 10)
        server.process.stderr.close()

    def test_under_load_what_has_begun_is_answered(self):
        server = self.serve()
        streams = [stream(server, {**LONG, "max_tokens": 100}) for _ in range(4)]
        body = json.dumps({"prompt": PROMPT, "max_tokens": 12, "temperature": 0})
        seen, ended = collections.Counter(), threading.Event()

        def knock():
            while not ended.is_set():
                try:
                    status, _, data = server.ask("POST", "/v1/completions", body)
                except OSError:  # the server has ended
                    return
                if status == 200:
                    self.assertEqual(json.loads(data)["choices"][0]["finish_reason"], "length")
                seen[status] += 1

        with futures.ThreadPoolExecutor(8) as pool:
            knocking = [pool.submit(knock) for _ in range(8)]
            self.assertTrue(wait_until(lambda: seen[200] > 16))
            server.process.send_signal(signal.SIGTERM)
            begin = time.monotonic()
            while server.ask("GET", "/readyz")[0] != 503:
                self.assertLess(time.monotonic() - begin, 2)
            for connection, answer in streams:
                data = answer.read()
                self.assertIn(b'"finish_reason":"length"', data)
                self.assertTrue(data.endswith(b"data: [DONE]\n\n"), data[-200:])
                connection.close()
            self.assertEqual(server.process.wait(TIMEOUT), 0)
            ended.set()
            for result in knocking:
                result.result()
        self.assertGreater(seen[503], 0)
        self.assertEqual(set(seen), {200, 503})
        server.process.stderr.close()

    def test_killed_clients_leave_nothing(self):
        server = self.serve()
        script = ("import sys, http.client; c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1])); "
                  "c.request('POST', '/v1/completions', sys.argv[2]); r = c.getresponse(); r.read(10); print('on', flush=True); r.read()")
        client = subprocess.Popen([sys.executable, "-c", script, str(server.port), json.dumps(LONG)], stdout=subprocess.PIPE)
        client.stdout.readline()
        client.kill()
        client.wait()
        client.stdout.close()
        before = self.state(server)["engine"]["steps"]
        self.assertTrue(wait_until(lambda: self.state(server)["requests"] == [], 5))
        after = self.state(server)
        self.assertEqual((after["kv"]["blocks_used"], after["scheduler"]["running"]), (0, 0))
        # Tokens of the current step, and of further steps until the server notices. LONG has 1900.
        self.assertLessEqual(after["engine"]["steps"] - before, 10)

    def test_what_cannot_start(self):
        done = subprocess.run([BIN, "serve", "/no/such.gguf"], capture_output=True, timeout=TIMEOUT, env=clean_environment())
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("/no/such.gguf", done.stderr.decode())
        for flags in (["--max-queued-requests", "-1"], ["--access-log", "xml"], ["--api-key-file", "/no/such"],
                      ["--tool-call-parser", "mine"], ["--reasoning-parser", "mine"]):
            done = subprocess.run([BIN, "serve", "/no/such.gguf", "--port", "0", *flags], capture_output=True, timeout=TIMEOUT,
                                  env=clean_environment())
            self.assertIn(done.returncode, (2, 3), done.stderr)
            self.assertIn(flags[0], done.stderr.decode())


class Doors(Case):
    def test_unix_socket_key_file_and_strict(self):
        with tempfile.TemporaryDirectory() as folder:
            path, keys = os.path.join(folder, "s"), os.path.join(folder, "keys")
            with open(keys, "w", encoding="ascii") as file:
                file.write("# two\none\ntwo\n")
            server = UnixServer(path, "--api-key-file", keys, "--strict")
            self.addCleanup(server.process.kill)
            self.assertIn(f"unix:{path}", server.ready_line)

            def ask(body, key):
                connection = http.client.HTTPConnection("x", timeout=TIMEOUT)
                connection.sock = server.open()
                connection.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {key}"})
                answer = connection.getresponse()
                return answer.status, answer.read(), connection.close()

            self.assertEqual(ask({"prompt": "x", "max_tokens": 1}, "two")[0], 200)
            self.assertEqual(ask({"prompt": "x", "max_tokens": 1}, "three")[0], 401)
            status, data, _ = ask({"prompt": "x", "temprature": 1}, "one")
            self.assertEqual((status, json.loads(data)["error"]["param"]), (400, "temprature"))
            self.assertEqual(server.stop(), 0)
            self.assertFalse(os.path.exists(path))

    def test_cors_request_ids_and_access_log(self):
        server = self.serve("--allowed-origins", '["https://a.example"]', "--access-log", "json", "--api-key", "k")
        wanted = "authorization,content-type,x-stainless-os"  # sent by openai-node in a preflight without the key
        status, headers, _ = server.ask("OPTIONS", "/v1/completions", headers={
            "Origin": "https://a.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted})
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, "https://a.example"))
        self.assertIn("POST", headers["Access-Control-Allow-Methods"])
        self.assertEqual(headers["Access-Control-Allow-Headers"], wanted)
        good = {"Origin": "https://a.example", "X-Request-Id": "mine-7", "Authorization": "Bearer k"}
        status, headers, data = server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}, good)
        self.assertEqual(headers["X-Request-Id"], "mine-7")
        self.assertEqual(json.loads(data)["id"], "cmpl-mine-7")
        self.assertEqual(headers["Access-Control-Allow-Origin"], "https://a.example")
        _, headers, _ = server.ask("GET", "/health", headers={"Origin": "https://b.example", "X-Request-Id": "bad id"})
        self.assertNotIn("Access-Control-Allow-Origin", headers)
        self.assertRegex(headers["X-Request-Id"], "^[0-9a-f]{32}$")
        lines = [json.loads(server.process.stderr.readline()) for _ in range(3)]
        self.assertEqual([(line["method"], line["target"], line["status"]) for line in lines],
                         [("OPTIONS", "/v1/completions", 204), ("POST", "/v1/completions", 200), ("GET", "/health", 200)])
        self.assertEqual(lines[1]["request_id"], "mine-7")
        self.assertGreater(lines[1]["bytes"], 100)

    def test_a_log_that_cannot_be_written_stops_nothing(self):
        server = Server("--access-log", "text")
        self.addCleanup(server.process.wait)
        server.process.stderr.close()  # like a full disk: every write to the log fails
        for _ in range(3):
            self.assertEqual(server.ask("GET", "/health")[0], 200)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(TIMEOUT), 0)

    def test_a_full_disk_for_the_log_stops_nothing(self):
        for form in ("text", "json"):
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = taken.getsockname()[1]
            with open("/dev/full", "wb") as full:
                process = subprocess.Popen([BIN, "serve", MODEL, "--port", str(port), "--max-model-len", "512", "--access-log", form],
                                           stdout=full, stderr=full, env=clean_environment())
            self.addCleanup(lambda process=process: process.poll() is None and process.kill())

            def ask(path, body=None):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
                try:
                    connection.request("POST" if body else "GET", path, body and json.dumps(body))
                    return connection.getresponse().status
                except OSError:
                    return 0
                finally:
                    connection.close()

            self.assertTrue(wait_until(lambda: ask("/health") == 200))
            for number in range(5):  # an unknown field is logged too
                self.assertEqual(ask("/v1/completions", {"prompt": "x", "max_tokens": 2, f"unheard_of_{number}": 1}), 200)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(TIMEOUT), 0)

    def test_call_ids_are_as_mistrals_templates_want_them(self):
        server = self.serve("--tool-call-parser", "mistral")
        named = {"type": "function", "function": {"name": "now"}}
        body = {"messages": CHAT, "tools": [named], "tool_choice": named, "max_tokens": 60, "n": 2}
        status, answer = server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        ids = [choice["message"]["tool_calls"][0]["id"] for choice in answer["choices"]]
        self.assertNotEqual(*ids)
        for call_id in ids:
            self.assertRegex(call_id, "^[0-9a-z]{9}$")

    def test_small_print_of_http(self):
        server = self.serve()
        status, headers, data = server.ask("HEAD", "/v1/models")
        self.assertEqual((status, data), (200, b""))
        self.assertGreater(int(headers["Content-Length"]), 10)
        status, _, _ = server.ask("POST", "/v1/completions", b"x", {"Content-Encoding": "gzip"})
        self.assertEqual(status, 415)
        self.assertEqual(server.ask("POST", "/sleep")[0], 404)
        self.assertEqual(server.ask("GET", "/trace?seconds=x")[0], 400)

    def test_sleep_and_cache(self):
        server = self.serve("--server-dev-mode")
        self.assertEqual(json.loads(server.ask("GET", "/is_sleeping")[2]), {"is_sleeping": False})
        self.assertEqual(server.ask("POST", "/reset_prefix_cache")[0], 200)
        self.assertEqual(server.ask("POST", "/sleep?level=1")[0], 200)
        self.assertEqual(json.loads(server.ask("GET", "/is_sleeping")[2]), {"is_sleeping": True})
        self.assertEqual((server.ask("GET", "/readyz")[0], server.ask("GET", "/livez")[0]), (503, 200))
        self.assertIn('sleep_state="weights_offloaded"} 1', server.ask("GET", "/metrics")[2].decode())
        self.assertEqual(server.ask("POST", "/wake_up")[0], 200)
        self.assertIn('sleep_state="awake"} 1', server.ask("GET", "/metrics")[2].decode())
        self.assertEqual(server.ask("POST", "/sleep?level=1")[0], 200)
        self.assertEqual(server.ask("POST", "/wake_up?tags=weights&tags=kv_cache")[0], 200)
        self.assertEqual(server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0], 200)
        self.assertEqual(server.ask("POST", "/sleep?level=7")[0], 400)


class Answers(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_several_prompts(self):
        body = {"prompt": [PROMPT, "One two three"], "max_tokens": 6, "temperature": 0}
        _, both = self.server.post("/v1/completions", body)
        alone = [self.server.post("/v1/completions", {**body, "prompt": prompt})[1] for prompt in body["prompt"]]
        self.assertEqual([choice["text"] for choice in both["choices"]], [answer["choices"][0]["text"] for answer in alone])
        self.assertEqual([choice["index"] for choice in both["choices"]], [0, 1])
        self.assertEqual(both["usage"]["prompt_tokens"], sum(answer["usage"]["prompt_tokens"] for answer in alone))
        self.assertGreater(both["timings"]["predicted_per_second"], 0)

    def test_echo_scores_a_prompt(self):
        body = {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1}
        _, answer = self.server.post("/v1/completions", body)
        choice = answer["choices"][0]
        self.assertEqual(choice["text"], PROMPT)
        logprobs = choice["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]), PROMPT)
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertTrue(all(value < 0 for value in logprobs["token_logprobs"][1:]))
        self.assertEqual(answer["usage"]["completion_tokens"], 0)
        _, more = self.server.post("/v1/completions", {**body, "max_tokens": 3, "temperature": 0})
        self.assertEqual(more["choices"][0]["logprobs"]["token_logprobs"][:len(logprobs["tokens"])], logprobs["token_logprobs"])
        self.assertEqual(len(more["choices"][0]["logprobs"]["tokens"]), len(logprobs["tokens"]) + 3)
        two = {**body, "max_tokens": 3, "n": 2, "seed": 7}
        _, whole = self.server.post("/v1/completions", two)
        streamed = [[], []]
        for event in self.server.events("/v1/completions", two):
            streamed[event["choices"][0]["index"]] += event["choices"][0]["logprobs"]["tokens"]
        self.assertEqual(streamed, [choice["logprobs"]["tokens"] for choice in whole["choices"]])
        _, listed = self.server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 0})
        listed = listed["choices"][0]["prompt_logprobs"]
        self.assertIsNone(listed[0])
        self.assertEqual([list(entry.values())[0]["logprob"] for entry in listed[1:]], logprobs["token_logprobs"][1:])

    def test_a_chat_goes_on_with_its_last_message(self):
        messages = CHAT + [{"role": "assistant", "content": "Gravity is the force that"}]
        body = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
        _, tokens = self.server.post("/tokenize", body)
        _, text = self.server.post("/detokenize", {"tokens": tokens["tokens"]})
        self.assertTrue(text["prompt"].endswith("Gravity is the force that"), text)
        status, answer = self.server.post("/v1/chat/completions", {**body, "temperature": 0, "max_tokens": 8})
        self.assertEqual(status, 200, answer)

    def test_tools_are_forced_by_a_grammar(self):
        parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
                      "required": ["city", "unit"], "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}},
                 {"type": "function", "function": {"name": "get_time"}}]
        named = {"type": "function", "function": {"name": "get_weather"}}
        body = {"messages": CHAT, "tools": tools, "max_tokens": 300, "seed": 3, "parallel_tool_calls": False}
        for choice in ("required", named):
            _, answer = self.server.post("/v1/chat/completions", {**body, "tool_choice": choice})
            chosen = answer["choices"][0]
            calls = chosen["message"]["tool_calls"]
            self.assertEqual(len(calls), 1, answer)
            self.assertIsNone(chosen["message"]["content"])
            streamed = [chunk["choices"][0] for chunk in
                        self.server.events("/v1/chat/completions", {**body, "tool_choice": choice})]
            pieces = [call for chunk in streamed for call in chunk["delta"].get("tool_calls", [])]
            self.assertEqual(pieces[0]["function"]["name"], calls[0]["function"]["name"])
            self.assertTrue(all(piece["index"] == 0 for piece in pieces))
            self.assertEqual("".join(piece["function"]["arguments"] for piece in pieces), calls[0]["function"]["arguments"])
            if chosen["finish_reason"] == "tool_calls":
                arguments = json.loads(calls[0]["function"]["arguments"])
                if calls[0]["function"]["name"] == "get_weather":
                    self.assertEqual(set(arguments), {"city", "unit"})
                self.assertEqual(streamed[-1]["finish_reason"], "tool_calls")

    def test_response_format(self):
        schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"],
                  "additionalProperties": False}
        wish = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
        _, answer = self.server.post("/v1/chat/completions", {"messages": CHAT, "response_format": wish, "max_tokens": 100})
        self.assertIsInstance(json.loads(answer["choices"][0]["message"]["content"])["age"], int)

    def test_what_it_tells_of_itself(self):
        self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "ignore_eos": True})
        _, headers, data = self.server.ask("GET", "/metrics")
        self.assertTrue(headers["Content-Type"].startswith("text/plain"))
        values = dict(line.rsplit(" ", 1) for line in data.decode().splitlines() if not line.startswith("#"))
        labels = f'{{model_name="{MODEL}",engine="0"'
        self.assertGreaterEqual(float(values[f"vllm:generation_tokens_total{labels}}}"]), 3)
        self.assertGreaterEqual(float(values[f"vllm:time_to_first_token_seconds_count{labels}}}"]), 1)
        trace = json.loads(self.server.ask("GET", "/trace?seconds=30")[2])["traceEvents"]
        self.assertTrue({"step", "schedule", "decode"} <= {event["name"] for event in trace})
        self.assertEqual(json.loads(self.server.ask("GET", "/openapi.json")[2])["openapi"], "3.1.0")

    def test_responses(self):
        body = {"input": "What is gravity?", "temperature": 0, "max_output_tokens": 12}
        status, whole = self.server.post("/v1/responses", body)
        self.assertEqual((status, whole["status"]), (200, "incomplete"), whole)
        text = whole["output"][0]["content"][0]["text"]
        status, headers, data = self.server.ask("POST", "/v1/responses", {**body, "stream": True})
        self.assertEqual((status, headers["Content-Type"].split(";")[0]), (200, "text/event-stream"))
        events = [json.loads(part.split("data: ", 1)[1]) for part in data.decode().split("\n\n") if part]
        self.assertEqual("".join(event["delta"] for event in events if event["type"] == "response.output_text.delta"), text)
        self.assertEqual(events[-1]["type"], "response.incomplete")
        status, headers, _ = self.server.ask("POST", "/v1/responses", {**body, "user": "me", "text": {"verbosity": "low"}})
        self.assertEqual((status, headers["X-Ignored-Params"]), (200, "user, text.verbosity"))
        status, answer = self.server.post("/v1/responses", {**body, "n": 2})
        self.assertEqual((status, answer["error"]["param"]), (400, "n"))
        deep = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":' * 100_000}
        status, answer = self.server.post("/v1/responses", {**body, "input": [deep]})
        self.assertEqual((status, answer["error"]["param"]), (400, "input[0].arguments"))


if __name__ == "__main__":
    sys.exit(server_test.main())
