#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Black-box tests of `warprow run-batch` with the default model.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/run_batch_test.py [-k NAME]

Environment as in cli_test.py. Exits 77, which ctest shows as skipped, if the model is not on this machine.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cli_test import BIN, MODEL, NO_MODEL, TIMEOUT, USAGE, clean_environment, default_model_file  # noqa: E402

FLAGS = ("--max-model-len", "1024", "--max-num-seqs", "4")


def request(number, tokens=8, **changes):
    body = {"model": MODEL, "temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    if number % 2:
        url, body["prompt"] = "/v1/completions", f"The number {number} is"
    else:
        url, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": f"What is {number}?"}]
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": {**body, **changes}}


def text_of(result):
    choice = result["response"]["body"]["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


class RunBatch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.input = Path(folder.name) / "in.jsonl"
        self.output = Path(folder.name) / "out.jsonl"

    def write(self, lines):
        self.input.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))

    def command(self, output=None):
        return [BIN, "run-batch", MODEL, *FLAGS, "-i", str(self.input), "-o", str(output or self.output)]

    def run_batch(self, code=0, output=None, flags=()):
        done = subprocess.run([*self.command(output), *flags], capture_output=True, timeout=TIMEOUT, env=clean_environment())
        self.assertEqual(done.returncode, code, done.stderr.decode())
        return done

    def results(self, path=None):
        return [json.loads(line) for line in (path or self.output).read_text().splitlines()]

    def test_results_come_in_order_and_are_those_of_generate(self):
        self.write([request(i) for i in range(1, 7)] + [""])
        self.run_batch()
        results = self.results()
        self.assertEqual([result["custom_id"] for result in results], [f"r{i}" for i in range(1, 7)])
        self.assertEqual(len({result["id"] for result in results}), 6)
        for result in results:
            self.assertEqual(set(result), {"id", "custom_id", "response", "error"})
            self.assertIsNone(result["error"])
            self.assertEqual(result["response"]["status_code"], 200)
            self.assertEqual(result["response"]["body"]["usage"]["completion_tokens"], 8)
        alone = subprocess.run([BIN, "generate", MODEL, *FLAGS, "-p", "The number 3 is", "--temperature", "0", "--max-tokens", "8",
                                "--ignore-eos", "--output", "json"], capture_output=True, timeout=TIMEOUT, env=clean_environment())
        self.assertEqual(text_of(results[2]), json.loads(alone.stdout)["choices"][0]["text"])

    def test_what_goes_wrong_has_its_line(self):
        self.write([request(1), "{no json", {"custom_id": "a"}, request(3, stream=True), request(5, temperature=-1),
                    request(7, model="other"), {**request(9), "url": "/v1/audio/speech"}, {**request(11), "url": "/health"}, request(2)])
        self.run_batch(code=1)
        results = self.results()
        self.assertEqual([r["response"] and r["response"]["status_code"] for r in results],
                         [200, None, None, None, 400, 404, 404, None, 200])
        self.assertEqual([r["custom_id"] for r in results], ["r1", None, "a", "r3", "r5", "r7", "r9", "r11", "r2"])
        for index, needle in ((1, "line 2: "), (2, "method"), (3, "stream"), (7, "/health")):
            self.assertIn(needle, results[index]["error"]["message"])
        self.assertEqual(results[4]["response"]["body"]["error"]["param"], "temperature")

    def stop_half_way(self, number, least):
        process = subprocess.Popen(self.command(), stderr=subprocess.DEVNULL, env=clean_environment())
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end and process.poll() is None:
            if self.output.exists() and self.output.read_bytes().count(b"\n") >= least:
                break
            time.sleep(0.005)
        process.send_signal(number)
        return process.wait(TIMEOUT)

    def test_a_run_that_was_killed_goes_on_without_loss_or_repeat(self):
        lines = [request(i, tokens=20) for i in range(60)]
        self.write(lines)
        whole = self.output.with_name("whole.jsonl")
        self.run_batch(output=whole)
        counts = []
        for number, least, code in ((signal.SIGKILL, 5, -9), (signal.SIGINT, 20, 130), (signal.SIGKILL, 35, -9)):
            self.assertEqual(self.stop_half_way(number, least), code)
            counts.append(self.output.read_bytes().count(b"\n"))
        self.assertTrue(5 <= counts[0] < counts[1] < counts[2] < 60, counts)
        with self.output.open("ab") as file:
            file.write(b'{"id":"batch_req_99","custom_id":"cut of')  # a line cut as by a kill during the write
        self.assertIn(b"60 results, 0 of this run failed", self.run_batch().stderr)
        results = self.results()
        self.assertEqual([result["custom_id"] for result in results], [line["custom_id"] for line in lines])
        self.assertEqual([text_of(result) for result in results], [text_of(result) for result in self.results(whole)])
        before = self.output.read_bytes()
        self.run_batch()  # nothing remains to be done
        self.assertEqual(self.output.read_bytes(), before)

    def test_files_that_do_not_belong_together(self):
        self.write([request(1), request(2)])
        self.run_batch()
        self.write([request(2), request(1)])
        self.assertIn(b"no result of the input's line 1 ('r2')", self.run_batch(code=USAGE).stderr)
        self.write([request(1)])
        self.assertIn(b"its line 2 ('r2')", self.run_batch(code=USAGE).stderr)
        self.assertIn(b"/no/such/x", self.run_batch(code=NO_MODEL, output="/no/such/x").stderr)
        self.input.unlink()
        self.assertIn(b"cannot read", self.run_batch(code=NO_MODEL).stderr)

    def test_a_file_that_is_no_result_stays_as_it_is(self):
        self.write([request(1)])
        self.run_batch()
        self.input.write_text(json.dumps(request(1)))  # the last line needs no newline
        results, requests = self.output.read_bytes(), self.input.read_bytes()
        self.input, self.output = self.output, self.input
        self.assertIn(b"no result", self.run_batch(code=USAGE).stderr)
        self.input, self.output = self.output, self.input
        self.assertIn(b"same file", self.run_batch(code=USAGE, output=self.input).stderr)
        self.assertEqual((self.output.read_bytes(), self.input.read_bytes()), (results, requests))
        self.write([request(2), request(1)])
        self.output.write_bytes(results + results[:-9])
        self.run_batch(code=USAGE)
        self.assertEqual(self.output.read_bytes(), results + results[:-9])

    def test_calls_and_reasoning_are_told_apart(self):
        tools = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
        call = {"tools": tools, "structured_outputs": {"choice": ['<tool_call>{"name": "now", "arguments": {}}</tool_call>']}}
        thought = {"structured_outputs": {"choice": ["<think>hm</think>yes"]}}
        self.write([request(2, tokens=64, ignore_eos=False, **call), request(4, tokens=64, ignore_eos=False, **thought)])
        for flags, calls, contents in ((["--reasoning-parser", "qwen3"], ["now"], [None, "yes"]),
                                       (["--tool-call-parser", "none"], [], [call["structured_outputs"]["choice"][0],
                                                                            thought["structured_outputs"]["choice"][0]])):
            self.output.unlink(missing_ok=True)
            self.run_batch(flags=flags)
            messages = [result["response"]["body"]["choices"][0]["message"] for result in self.results()]
            self.assertEqual([call["function"]["name"] for call in messages[0].get("tool_calls") or []], calls)
            self.assertEqual([message["content"] for message in messages], contents)
            self.assertEqual(messages[1].get("reasoning_content"), "hm" if calls else None)
        self.assertIn(b"--reasoning-parser", self.run_batch(code=USAGE, flags=["--reasoning-parser", "x"]).stderr)

    def test_a_pipe_is_read_to_its_end(self):
        self.write([request(1), request(2)])
        fifo = self.input.with_name("fifo")
        os.mkfifo(fifo)
        writer = subprocess.Popen(["cp", self.input, fifo])
        self.addCleanup(writer.wait)
        self.input = fifo
        self.assertIn(b"2 results, 0 of this run failed", self.run_batch().stderr)
        self.assertEqual([result["custom_id"] for result in self.results()], ["r1", "r2"])

    def test_standard_streams(self):
        done = subprocess.run([BIN, "run-batch", MODEL, *FLAGS, "-i", "-", "-o", "-"], input=json.dumps(request(1)).encode(),
                              capture_output=True, timeout=TIMEOUT, env=clean_environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["custom_id"], "r1")
        done = subprocess.run([BIN, "run-batch", MODEL], capture_output=True, timeout=TIMEOUT, env=clean_environment())
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"-i FILE", done.stderr)


def main():
    if not os.path.exists(default_model_file()):
        print(f"skipped: {default_model_file()} is not there", file=sys.stderr)
        return 77
    return 0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
