#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`warprow explain` on requests that waited, shared a prefix and were preempted, and `warprow simulate`, over the binary.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/explain_test.py [-k NAME]

Environment as in cli_test.py. Exits 77, which ctest shows as skipped, without the model.
"""

import concurrent.futures
import json
import os
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cli_test import FAILED, MODEL, NO_MODEL, OK, USAGE, CliTest, default_model_file, last_line, run  # noqa: E402
from server_test import Server  # noqa: E402

BLOCK_BYTES = 368_640  # of SmolLM2: 30 layers, 3 heads of 64, 16 tokens, 2 bytes, keys and values


class Explain(unittest.TestCase):
    def serve(self, *flags, **more):
        server = Server(*flags, **more)
        self.addCleanup(server.stop)
        return server

    def complete(self, server, name, prompt, max_tokens, key=None):
        headers = {"X-Request-Id": name, **({"Authorization": "Bearer " + key} if key else {})}
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        status, _, data = server.ask("POST", "/v1/completions", body, headers)
        self.assertEqual(status, 200, data)
        return json.loads(data)

    def explain(self, server, name, *flags):
        done = run("explain", name, "--port", server.port, "--output", "json", *flags)
        self.assertEqual(done.returncode, OK, done.stderr.decode())
        return json.loads(done.stdout)["choices"][0]

    def together(self, server, names, *args):
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda name: self.complete(server, name, *args), names))

    def reasons(self, choice):
        return [reason["reason"] for event in choice["timeline"] if event["event"] == "waited" for reason in event["reasons"]]

    def test_one_that_waited_for_a_row(self):
        server = self.serve("--max-num-seqs", "1")
        self.together(server, ["a", "b", "c"], list(range(300, 320)), 300)
        choices = [self.explain(server, name) for name in "abc"]
        last = max(choices, key=lambda choice: choice["queue_ms"])
        self.assertIn("rows", self.reasons(last))
        self.assertIn("because 1 requests ran, as many as max_num_seqs allows", last["why"][0])
        first = min(choices, key=lambda choice: choice["queue_ms"])
        self.assertNotIn("rows", self.reasons(first))

    def test_one_that_shared_a_prefix(self):
        server = self.serve()
        self.complete(server, "new", list(range(300, 400)), 4)
        answer = self.complete(server, "again", list(range(300, 400)), 4)
        self.assertIn("None of its 100 prompt tokens were in the prefix cache.", self.explain(server, "new")["why"])
        choice = self.explain(server, answer["id"], "--steps")  # by the answer's id, too
        self.assertEqual(choice["cached_tokens"], 96)
        self.assertIn("96 of its 100 prompt tokens were in the prefix cache.", choice["why"])
        chunks = [event for event in choice["timeline"] if event["event"] == "chunk"]
        self.assertEqual([(chunk["tokens"], chunk["computed_before"]) for chunk in chunks], [(4, 96)])
        self.assertEqual([step["kind"] for step in choice["steps"]], ["chunk", "decode", "decode", "decode"])
        text = run("explain", "again", "--port", server.port).stdout.decode()
        self.assertIn("cmpl-again (completions)", text)
        self.assertIn("96 of 100 tokens from the prefix cache", text)

    def test_one_that_was_preempted(self):
        server = self.serve("--kv-cache-memory-bytes", str(25 * BLOCK_BYTES), "--no-enable-prefix-caching", max_model_len=256)
        self.together(server, ["a", "b"], list(range(300, 316)), 220)
        choices = {name: self.explain(server, name) for name in "ab"}
        preempted = [choice for choice in choices.values() if choice["preemptions"] > 0]
        self.assertEqual(len(preempted), 1, choices)
        choice = preempted[0]
        self.assertTrue(any("It was preempted" in why and "no block left" in why for why in choice["why"]), choice["why"])
        self.assertGreater(choice["preempted_ms"], 0)
        names = [event["event"] for event in choice["timeline"]]
        self.assertLess(names.index("preempted"), len(names) - 1 - names[::-1].index("admitted"))
        self.assertIn("blocks", self.reasons(choice))
        self.assertTrue(any("0 tokens were found in the cache" in why for why in choice["why"]), choice["why"])

    def test_only_its_key_sees_it(self):
        server = self.serve("--api-key", "one", "--api-key", "two")
        self.complete(server, "mine", [300, 301], 2, key="one")
        self.assertEqual(run("explain", "mine", "--port", server.port, "--api-key", "one").returncode, OK)
        other = run("explain", "mine", "--port", server.port, "--api-key", "two")
        self.assertEqual(other.returncode, NO_MODEL)
        self.assertIn("no request 'mine' of this key is among the newest 1024", last_line(other.stderr))
        self.assertEqual(run("explain", "--port", server.port).returncode, USAGE)


class Simulate(CliTest):
    def costs(self):
        return self.file("costs.json", json.dumps({
            "model": MODEL, "machine": "a test's", "prefill_us": [[1, 1000], [512, 50000]], "decode_us": [[1, 1000], [64, 8000]],
            "decode_context_ns": [[1, 100]]}))

    def simulate(self, *args):
        return json.loads(self.succeed("simulate", MODEL, "--costs", self.costs(), "--output", "json", *args).stdout)

    def test_a_load_of_bench_serve(self):
        load = ["--num-prompts", 100, "--request-rate", 20, "--random-input-len", 100, "--random-output-len", 10, "--random-prefix-len", 64]
        result = self.simulate(*load, "--max-num-seqs", 8)
        self.assertEqual(result["completed"], 100)
        self.assertEqual(result["total_input_tokens"], 164 * 100)
        self.assertEqual(result["total_output_tokens"], 1000)
        self.assertEqual(result["prefix_hit_tokens"] % 64, 0)
        self.assertGreater(result["prefix_hit_rate"], 0.2)
        self.assertGreater(result["mean_ttft_ms"], 3)
        self.assertEqual(self.simulate(*load, "--max-num-seqs", 8)["mean_itl_ms"], result["mean_itl_ms"])
        self.assertEqual(self.simulate(*load, "--no-enable-prefix-caching")["prefix_hit_tokens"], 0)
        limited, free = (self.simulate(*load, "--target-itl-ms", target)["p99_itl_ms"] for target in (5, 0))
        self.assertLess(limited, free)
        text = self.succeed("simulate", MODEL, "--costs", self.costs(), *load).stdout.decode()
        self.assertIn("100 requests done, 0 failed", text)
        self.assertIn("prompt tokens (", text)

    def test_a_trace_with_hashes(self):
        trace = self.file("trace.jsonl", "".join(json.dumps(
            {"timestamp": 100 * i, "input_length": 1100, "output_length": 20, "hash_ids": [1, 2 + i % 2, 10 + i]}) + "\n" for i in range(20)))
        result = self.simulate("--trace", trace, "--max-model-len", 2048)
        self.assertEqual(result["completed"], 20)
        self.assertGreaterEqual(result["prefix_hit_tokens"], 17 * 1024)
        self.assertEqual(self.simulate("--trace", trace, "--max-model-len", 2048, "--num-prompts", 3)["num_prompts"], 3)
        short = run("simulate", MODEL, "--costs", self.costs(), "--trace", trace, "--max-model-len", 1024)
        self.assertEqual(short.returncode, FAILED)
        self.assertIn("max_model_len 1024", last_line(short.stderr))

    def test_a_real_table_and_a_file_of_prompts(self):
        costs = self.dir / "measured.json"
        self.succeed("bench", "costs", MODEL, "--max-model-len", 512, "--max-num-batched-tokens", 64, "--max-num-seqs", 2, "--num-steps", 2,
                     "--context-len", 80, "--output-json", costs)
        table = json.loads(costs.read_text())
        self.assertEqual(table["prefill_us"][-1][0], 64)
        self.assertEqual([point[0] for point in table["decode_us"]], [1, 2])
        self.assertGreater(table["decode_us"][0][1], 0)
        prompts = self.file("prompts.jsonl", '{"prompt": "The capital of France is", "output_tokens": 5}\n'
                            '{"messages": [{"role": "user", "content": "Hi"}], "output_tokens": 3}\n')
        done = self.succeed("simulate", MODEL, "--costs", costs, "--dataset-name", "custom", "--dataset-path", prompts, "--num-prompts", 4,
                            "--output", "json")
        result = json.loads(done.stdout)
        self.assertEqual(result["total_output_tokens"], 16)
        self.assertEqual(done.stderr, b"")

    def test_the_built_in_h200(self):
        model = Path(__file__).resolve().parents[2] / "bench/models/Qwen3-8B"
        done = self.succeed("simulate", model, "--load-format", "dummy", "--device", "h200", "--costs", "h200-qwen3-8b", "--num-prompts", 512, "--random-output-len", 256, "--output", "json")
        result = json.loads(done.stdout)
        # docs/performance.md has 32.4 k tokens/s for this load.
        self.assertGreater(result["total_token_throughput"], 28_000)
        self.assertLess(result["total_token_throughput"], 37_000)

    def test_mistakes_are_named(self):
        for args, why in [
            ([], "--costs is missing"),
            (["--costs", "/no/such"], "neither a file nor one of h200-qwen3-0.6b"),
            (["--costs", self.costs(), "--trace", "/no/such"], "--trace: cannot read '/no/such'"),
            (["--costs", self.costs(), "--trace-format", "csv"], "--trace-format: 'csv' is none of auto|"),
            (["--costs", self.costs(), "--trace", self.file("bad.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,x,1\n")],
             "bad.csv:2: ContextTokens: \"x\" is not a whole number from 0 to 100000000"),
            (["--costs", self.costs(), "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}'], "--speculative-config"),
            (["--costs", self.costs(), "--request-rate", "0"], "--request-rate"),
        ]:
            done = run("simulate", MODEL, *args)
            self.assertNotEqual(done.returncode, OK, args)
            self.assertIn(why, last_line(done.stderr))


if __name__ == "__main__":
    if not os.path.exists(default_model_file()):
        print(f"skipped: {default_model_file()} is not there", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
