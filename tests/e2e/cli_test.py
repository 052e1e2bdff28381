#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Black-box tests of the `warprow` binary with the default model, as a user and a script would drive it.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/cli_test.py [-k NAME]

Environment: WARPROW_BIN, the binary; WARPROW_E2E_MODEL, the model (smollm2); WARPROW_E2E_PROMPTS, the size of the batch
that is compared with single runs (8). Exits 77, which ctest shows as skipped, if the model is not on this machine.
"""

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gguf_parts import split_gguf  # noqa: E402

BIN = os.environ.get("WARPROW_BIN", "build/cpu-release/warprow")
MODEL = os.environ.get("WARPROW_E2E_MODEL", "smollm2")
NUM_PROMPTS = int(os.environ.get("WARPROW_E2E_PROMPTS", "8"))
TIMEOUT = 240

OK, FAILED, USAGE, NO_MODEL, NO_MEMORY, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


def clean_environment(**more):
    """The environment without the tester's own WARPROW_* settings."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPROW_")}
    return {**env, "HF_HUB_OFFLINE": "1", **more}


def run(*args, stdin=b"", env=None):
    if isinstance(stdin, str):
        stdin = stdin.encode()
    return subprocess.run([BIN, *map(str, args)], input=stdin, capture_output=True, timeout=TIMEOUT,
                          env=env or clean_environment())


def last_line(data):
    lines = data.decode().strip().splitlines()
    return lines[-1] if lines else ""


class CliTest(unittest.TestCase):
    def setUp(self):
        self._dir = tempfile.TemporaryDirectory(prefix="warprow-e2e-")
        self.addCleanup(self._dir.cleanup)
        self.dir = Path(self._dir.name)

    def file(self, name, content):
        path = self.dir / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def succeed(self, *args, **kwargs):
        done = run(*args, **kwargs)
        self.assertEqual(done.returncode, OK, done.stderr.decode())
        return done

    def answer(self, *args, **kwargs):
        """Expects success and returns the run's JSON."""
        return json.loads(self.succeed(*args, "--output", "json", **kwargs).stdout)

    def refuse(self, code, needle, *args, **kwargs):
        """Expects this exit code, an empty stdout, and one line with needle on stderr."""
        done = run(*args, **kwargs)
        message = done.stderr.decode()
        self.assertEqual(done.returncode, code, message)
        self.assertEqual(done.stdout, b"")
        self.assertIn(needle, message)
        self.assertEqual(message.count("\n"), 1, message)
        self.assertTrue(message.startswith("warprow: "), message)


class Usage(CliTest):
    def test_help_and_version(self):
        self.assertRegex(self.succeed("--version").stdout.decode(),
                         r"^warprow \d+\.\d+\.\d+ \(cpu(, cuda [^)]+)?; CPU kernels: \w+\)\n$")
        overview = self.succeed("--help").stdout.decode()
        for word in ("generate", "chat", "tokenize", "detokenize", "plan", "Exit codes"):
            self.assertIn(word, overview)
        for command in ("generate", "chat", "tokenize", "detokenize", "plan"):
            brief = self.succeed(command, "--help").stdout.decode()
            full = self.succeed(command, "--help=all").stdout.decode()
            self.assertIn("--max-model-len", brief)
            self.assertNotIn("--log-format", brief)
            self.assertIn("--log-format", full)
            self.assertLess(len(brief.splitlines()), 60)
        self.assertIn("--block-size", self.succeed("generate", "--help=kv-cache").stdout.decode())
        self.assertNotIn("--prompt", self.succeed("generate", "--help=top_k").stdout.decode())

    def test_instruction_set_can_be_forced(self):
        def forced(name):
            return {"env": clean_environment(WARPROW_CPU_ISA=name)}

        self.assertIn("; CPU kernels: generic)", self.succeed("--version", **forced("generic")).stdout.decode())
        self.assertEqual(self.succeed("--version", **forced("")).stdout, self.succeed("--version", **forced("auto")).stdout)
        self.succeed("generate", MODEL, "-p", "x", "--max-tokens", "1", **forced("generic"))
        names = "none of auto|generic|avx2|avx_vnni|avx512|avx512_bf16|amx"
        self.refuse(USAGE, f"WARPROW_CPU_ISA: 'sse' is {names}", "--version", **forced("sse"))
        self.refuse(USAGE, f"WARPROW_CPU_ISA: 'sse' is {names}", "generate", MODEL, "-p", "x", "--device", "cpu", **forced("sse"))

    def test_no_command_shows_the_overview_as_an_error(self):
        done = run()
        self.assertEqual(done.returncode, USAGE)
        self.assertIn("usage:", done.stderr.decode())

    def test_mistakes_are_named(self):
        self.refuse(USAGE, "did you mean generate?", "genrate")
        self.refuse(USAGE, "did you mean --max-tokens?", "generate", MODEL, "-p", "x", "--max-token", "3")
        self.refuse(USAGE, "--max-tokens: needs a value", "generate", MODEL, "-p", "x", "--max-tokens")
        self.refuse(USAGE, "--temperature: 'hot' is not a number", "generate", MODEL, "-p", "x", "--temperature", "hot")
        self.refuse(USAGE, "temperature: 9", "generate", MODEL, "-p", "x", "--temperature", "9")
        self.refuse(USAGE, "--block-size: 17 is not a multiple of 16", "generate", MODEL, "-p", "x", "--block-size=17")
        self.refuse(USAGE, "--output: 'xml'", "generate", MODEL, "-p", "x", "--output", "xml")
        self.refuse(USAGE, "no model", "generate", "-p", "x")
        self.refuse(USAGE, "no prompt", "generate", MODEL)
        self.refuse(USAGE, "several prompts", "generate", MODEL, "-p", "x", "--chat", "y")
        self.refuse(USAGE, "unexpected argument 'Hello'", "generate", MODEL, "Hello")
        self.refuse(USAGE, "--prompts-file", "generate", MODEL, "-p", "x", "--prompts-file", "y")
        self.refuse(USAGE, "prompt: 0 tokens", "generate", MODEL, "-p", "")

    def test_a_prompt_longer_than_the_context(self):
        self.refuse(USAGE, "max_model_len", "generate", MODEL, "-p", "word " * 100, "--max-model-len", "64")

    def test_missing_files(self):
        self.refuse(NO_MODEL, "/no/such/file", "generate", MODEL, "--prompt-file", "/no/such/file")
        self.refuse(NO_MODEL, "/no/such/file", "generate", MODEL, "--prompts-file", "/no/such/file")
        self.refuse(NO_MODEL, "cannot read", "generate", MODEL, "--prompts-file", self.dir)
        self.refuse(NO_MODEL, "/no/such.yaml", "generate", MODEL, "-p", "x", "--config", "/no/such.yaml")


class Models(CliTest):
    def test_what_is_no_model(self):
        self.refuse(NO_MODEL, "nonesuch", "generate", "nonesuch", "-p", "x")
        self.refuse(NO_MODEL, "some/thing", "generate", "some/thing", "-p", "x")
        self.refuse(NO_MODEL, str(self.dir), "generate", self.dir, "-p", "x")
        self.refuse(NO_MODEL, "empty.gguf", "generate", self.file("empty.gguf", ""), "-p", "x")
        self.refuse(NO_MODEL, "not a GGUF file", "generate", self.file("notes.txt", "hello"), "-p", "x")
        self.refuse(NO_MODEL, "noise.gguf", "generate", self.file("noise.gguf", os.urandom(4096)), "-p", "x")

    def test_a_truncated_file(self):
        whole = Path(default_model_file())
        with whole.open("rb") as source:
            for name, size in (("header.gguf", 1000), ("body.gguf", 8 << 20)):
                source.seek(0)
                cut = self.file(name, source.read(size))
                self.refuse(NO_MODEL, name, "generate", cut, "-p", "x")
                self.refuse(NO_MODEL, name, "plan", cut)

    def test_a_file_in_parts(self):
        for number, data in enumerate(split_gguf(Path(default_model_file()).read_bytes()), 1):
            last = self.file(f"m-{number:05}-of-00003.gguf", data)
        flags = ("-p", "The capital of France is", "--max-tokens", "12", "--temperature", "0", "--max-model-len", "512")
        whole, parts = (self.answer("generate", model, *flags)["choices"][0]["token_ids"] for model in (MODEL, self.dir))
        self.assertEqual(parts, whole)
        self.refuse(USAGE, "name the first one", "plan", last)

    def test_an_unknown_architecture(self):
        def text(value):
            return struct.pack("<Q", len(value)) + value.encode()

        head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
        pair = text("general.architecture") + struct.pack("<I", 8) + text("nonesuch")
        path = self.file("arch.gguf", head + pair + b"\0" * 64)
        self.refuse(NO_MODEL, "nonesuch", "plan", path)

    def test_too_little_memory(self):
        self.refuse(NO_MEMORY, "", "plan", MODEL, "--kv-cache-memory-bytes", "900TiB")
        self.refuse(NO_MEMORY, "", "generate", MODEL, "-p", "x", "--kv-cache-memory-bytes", "1KiB")

    def test_cuda_is_refused_where_there_is_none(self):
        env = clean_environment(CUDA_VISIBLE_DEVICES="")
        self.refuse(NO_MODEL, "--device: cuda is not available here", "generate", MODEL, "-p", "x", "--device", "cuda",
                    env=env)

    def test_a_known_gpu_is_planned_without_one(self):
        plan = self.answer("plan", MODEL, "--device", "h200")
        self.assertIn("H200", plan["device"])
        self.assertLessEqual(plan["planned_bytes"], 0.9 * plan["total_bytes"])
        self.assertGreater(plan["planned_bytes"], 0.899 * plan["total_bytes"])
        self.assertEqual((plan["foreign_estimated_bytes"], plan["foreign_measured_bytes"]), (32 << 20, 0))
        self.assertIn("pinned_bytes", plan["figures"]["planned"])
        self.assertGreater(plan["pinned_bytes"], 0)
        # Hopper keeps GGUF types small; the embedding, which the head uses too, is bf16.
        self.assertLess(plan["weights_bytes"], 1.5 * plan["checkpoint_bytes"])
        text = self.succeed("plan", MODEL, "--device", "h200").stdout.decode()
        self.assertRegex(text, r"driver +32\.0 MiB estimated")
        self.assertRegex(text, r"host memory +[0-9.]+ MiB planned +pinned")
        self.refuse(USAGE, "h200 is for plans", "generate", MODEL, "-p", "x", "--device", "h200")
        self.refuse(NO_MEMORY, "do not fit in", "plan", MODEL, "--device", "h200", "--kv-cache-memory-bytes", "200GiB")

    def test_sleep_changes_no_answers(self):
        rounds = self.succeed("selftest", "sleep", MODEL, "--max-model-len", "256", "--kv-cache-memory-bytes", "32MiB",
                              "--output", "json").stdout
        rounds = [json.loads(line) for line in rounds.splitlines()]
        self.assertEqual([r["sleep"]["level"] for r in rounds], [1, 2, 1, 2])
        self.assertTrue(all(r["answers_equal"] for r in rounds))


class Configuration(CliTest):
    def settings(self, *args, env=None):
        return json.loads(self.succeed("generate", *args, "--print-config", "--output", "json", env=env).stdout)

    def test_precedence(self):
        config = self.file("c.yaml", "max_num_seqs: 1\nblock-size: 32\nthreads: 1\nmax-model-len: 32k\n")
        env = clean_environment(WARPROW_MAX_NUM_SEQS="2", WARPROW_THREADS="2")
        got = self.settings("--config", config, "--max-num-seqs", "3", env=env)
        self.assertEqual(got["max-num-seqs"], {"value": 3, "source": "flag"})
        self.assertEqual(got["threads"], {"value": 2, "source": "env"})
        self.assertEqual(got["block-size"], {"value": 32, "source": "file"})
        self.assertEqual(got["max-model-len"], {"value": 32000, "source": "file"})
        self.assertEqual(got["max-num-batched-tokens"], {"value": 0, "source": "default", "resolved": 512})

    def test_sizes_and_switches(self):
        got = self.settings("--kv_cache_memory_bytes=24MiB", "--no-async-scheduling", "--max-model-len", "32K",
                            env=clean_environment(WARPROW_ENABLE_PREFIX_CACHING="off"))
        self.assertEqual(got["kv-cache-memory-bytes"]["value"], 24 << 20)
        self.assertEqual(got["max-model-len"]["value"], 32768)
        self.assertEqual(got["async-scheduling"], {"value": False, "source": "flag"})
        self.assertEqual(got["enable-prefix-caching"], {"value": False, "source": "env"})

    def test_the_printed_text_is_a_config_file(self):
        printed = self.succeed("generate", "a model#1", "--print-config", "--max-num-seqs", "7").stdout
        got = self.settings("--config", self.file("again.yaml", printed))
        self.assertEqual(got["model"], {"value": "a model#1", "source": "file"})
        self.assertEqual(got["max-num-seqs"]["value"], 7)

    def test_mistakes_are_named(self):
        self.refuse(USAGE, "unknown key 'max-modle-len'", "generate", "--config", self.file("c.yaml", "max-modle-len: 1"))
        self.refuse(USAGE, "WARPROW_BLOCK_SIZE: 8", "generate", env=clean_environment(WARPROW_BLOCK_SIZE="8"))
        self.refuse(USAGE, "--max-num-batched-tokens: 4 is below --max-num-seqs 8", "generate", MODEL, "-p", "x",
                    "--max-num-seqs", "8", "--max-num-batched-tokens", "4")

    def test_graph_settings(self):
        def refused(code, needle, *flags):
            self.refuse(code, needle, "generate", MODEL, "-p", "x", *flags)

        refused(USAGE, "--cudagraph-mode: 'fulll' is none of", "--cudagraph-mode", "fulll")
        for sizes in ("4,2", "1,x", "0,1", "1,,2"):
            refused(USAGE, f"--cudagraph-capture-sizes: '{sizes}' is not a list", "--cudagraph-capture-sizes", sizes)
        refused(USAGE, "--cudagraph-capture-sizes: 1024 is above --max-num-batched-tokens 512", "--cudagraph-mode",
                "full", "--cudagraph-capture-sizes", "1,1024")

    def test_attention_backends_are_named(self):
        for name in ("nonesuch", "flashinfer", "native"):  # the last two need a GPU
            done = run("generate", MODEL, "-p", "x", "--device", "cpu", "--attention-backend", name)
            self.assertIn(done.returncode, (USAGE, NO_MODEL))
            self.assertIn(name, done.stderr.decode())
            self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)

    def test_an_unknown_variable_is_named(self):
        done = self.succeed("tokenize", MODEL, "-p", "x", env=clean_environment(WARPROW_BLOCKSIZE="16"))
        self.assertIn("WARPROW_BLOCKSIZE", done.stderr.decode())
        self.assertIn("did you mean WARPROW_BLOCK_SIZE?", done.stderr.decode())

    def test_the_model_may_come_from_the_environment(self):
        self.succeed("tokenize", "-p", "x", env=clean_environment(WARPROW_MODEL=MODEL))


class Tokens(CliTest):
    def test_round_trip(self):
        for text in ("Hello, world!", "  two\n\nlines\t", "1234567890", "naïve 中文 🙂", "<|im_start|>user\nhi<|im_end|>\n"):
            got = json.loads(self.succeed("tokenize", MODEL, "--prompt-file", "-", "--output", "json", stdin=text).stdout)
            self.assertEqual(len(got["token_ids"]), len(got["tokens"]))
            for ids in (json.dumps(got), json.dumps(got["token_ids"]), " ".join(map(str, got["token_ids"]))):
                self.assertEqual(self.succeed("detokenize", MODEL, stdin=ids).stdout.decode(), text)
        self.assertEqual(self.succeed("detokenize", "-m", MODEL, "19556", "905").stdout, b"Hello world")
        self.assertEqual(self.succeed("detokenize", MODEL, "19556", "905").stdout, b"Hello world")
        got = json.loads(self.succeed("detokenize", MODEL, "1", "--output", "json").stdout)
        self.assertEqual(got, {"text": "<|im_start|>"})

    def test_chat_template(self):
        ids = self.succeed("tokenize", MODEL, "--chat", "Hi").stdout
        text = self.succeed("detokenize", MODEL, stdin=ids).stdout.decode()
        self.assertIn("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", text)

    def test_mistakes_are_named(self):
        self.refuse(USAGE, "999999 is outside the vocabulary", "detokenize", MODEL, "999999")
        self.refuse(USAGE, "'x' is not a whole number", "detokenize", MODEL, stdin="1 x")


class Generate(CliTest):
    PROMPT = "The capital of France is"

    def greedy(self, *args, **kwargs):
        return self.answer("generate", MODEL, "--temperature", "0", *args, **kwargs)

    def test_json_has_the_documented_shape(self):
        got = self.greedy("-p", self.PROMPT, "--max-tokens", "4", "--logprobs", "2", "--stats")
        self.assertEqual(list(got), ["prompt_token_ids", "choices", "usage", "timings", "stats"])
        self.assertEqual(got["prompt_token_ids"], [504, 3575, 282, 4649, 314])
        (choice,) = got["choices"]
        self.assertEqual(list(choice), ["index", "token_ids", "text", "finish_reason", "stop_reason", "logprobs"])
        self.assertEqual(choice["token_ids"], [7042, 30, 198, 198])
        self.assertEqual(choice["text"], " Paris.\n\n")
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("length", None))
        self.assertEqual(len(choice["logprobs"]), 4)
        for entry, token in zip(choice["logprobs"], choice["token_ids"]):
            self.assertEqual((entry["token_id"], entry["rank"], len(entry["top"])), (token, 1, 2))
            self.assertAlmostEqual(entry["logprob"], entry["top"][0]["logprob"], places=5)
        self.assertEqual(got["usage"], {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9,
                                        "prompt_tokens_details": {"cached_tokens": 0}})
        self.assertGreater(got["timings"]["predicted_per_second"], 0)
        self.assertGreaterEqual(got["stats"]["steps"], 4)
        for name in ("mixed_steps", "partial_prefill_steps", "preemptions", "prefix_hit_tokens", "max_steps_in_flight",
                     "block_size", "step_allocations"):
            self.assertIn(name, got["stats"])

    def test_text_goes_to_stdout_and_nothing_else(self):
        done = self.succeed("generate", MODEL, "-p", self.PROMPT, "--temperature", "0", "--max-tokens", "2")
        self.assertEqual((done.stdout, done.stderr), (b" Paris.\n", b""))

    def test_stats_go_to_stderr(self):
        done = self.succeed("generate", MODEL, "-p", self.PROMPT, "--temperature", "0", "--max-tokens", "2", "--stats")
        self.assertEqual(done.stdout, b" Paris.\n")
        self.assertRegex(done.stderr.decode(), r"2 tokens in [\d.]+ s, [\d.]+ tokens/s\nsteps \d+, ")

    def test_prompt_files_are_raw_bytes(self):
        prompt = "<|im_start|>user\r\nna\u00efve"
        want = self.greedy("-p", prompt, "--max-tokens", "3")
        for args, stdin in (((self.file("p", prompt),), b""), (("-",), prompt)):
            got = self.greedy("--prompt-file", *args, "--max-tokens", "3", stdin=stdin)
            self.assertEqual(got["prompt_token_ids"], want["prompt_token_ids"])
            self.assertEqual(got["choices"], want["choices"])
        self.assertEqual(want["prompt_token_ids"][0], 1)
        self.greedy("--prompt-file", "-", "--max-tokens", "2", stdin=b"\xff\xfe not text \x00\x80")

    def test_stops(self):
        got = self.greedy("-p", self.PROMPT, "--max-tokens", "12", "--stop", "\nThe")
        self.assertEqual(got["choices"][0]["text"], " Paris.\n")
        self.assertEqual(got["choices"][0]["finish_reason"], "stop")
        self.assertEqual(got["choices"][0]["stop_reason"], "\nThe")
        got = self.greedy("-p", self.PROMPT, "--max-tokens", "12", "--stop-token-ids", "5,30")
        self.assertEqual(got["choices"][0]["stop_reason"], 30)

    def test_eos(self):
        chat = ("--chat", "Say hi.", "--max-tokens", "60")
        stopped = self.greedy(*chat)["choices"][0]
        self.assertEqual((stopped["finish_reason"], stopped["stop_reason"]), ("stop", None))
        ignored = self.greedy(*chat, "--ignore-eos")["choices"][0]
        self.assertEqual((ignored["finish_reason"], len(ignored["token_ids"])), ("length", 60))
        self.assertEqual(ignored["token_ids"][: len(stopped["token_ids"])], stopped["token_ids"])

    def test_seeds(self):
        def tokens(seed):
            got = self.answer("generate", MODEL, "-p", self.PROMPT, "--max-tokens", "8", "--seed", seed)
            return got["choices"][0]["token_ids"]

        self.assertEqual(tokens(1), tokens(1))
        self.assertGreater(len({tuple(tokens(seed)) for seed in range(1, 5)}), 1)

    def test_choices(self):
        got = self.answer("generate", MODEL, "-p", self.PROMPT, "--max-tokens", "6", "--seed", 5, "--n", 3)
        self.assertEqual([choice["index"] for choice in got["choices"]], [0, 1, 2])
        single = self.answer("generate", MODEL, "-p", self.PROMPT, "--max-tokens", "6", "--seed", 6)
        self.assertEqual(got["choices"][1]["text"], single["choices"][0]["text"])
        self.assertGreater(len({tuple(choice["token_ids"]) for choice in got["choices"]}), 1)
        self.assertEqual(got["usage"]["prompt_tokens"], 5)
        self.assertEqual(got["usage"]["completion_tokens"], sum(len(c["token_ids"]) for c in got["choices"]))
        self.refuse(USAGE, "n: 2 must be 1", "generate", "nonesuch", "-p", "x", "--n", "2", "--temperature", "0")
        self.refuse(USAGE, "n: 129 is outside [1, 128]", "generate", "nonesuch", "-p", "x", "--n", "129")

    def test_drafts_change_nothing_but_the_steps(self):
        text = ('The committee wrote: "The bridge over the river must be repaired before the winter, because the ice will '
                'damage the pillars that were built in the last century." The mayor answered: "There is no money for the '
                'bridge this year, but the council will ask the province for help in the spring."\n\nSummary with quotes: '
                'The committee wrote: "The bridge over')
        ngram = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
        args = ("-p", text, "--max-tokens", "96", "--ignore-eos", "--logprobs", "2", "--stats")
        for sampling in ((), ("--temperature", "0.3", "--seed", "5")):
            plain = self.greedy(*args, *sampling)
            drafted = self.greedy(*args, *sampling, *ngram)
            self.assertEqual(drafted["choices"], plain["choices"])
            suffix = self.greedy(*args, *sampling, "--spec-method", "suffix")
            self.assertEqual(suffix["choices"], plain["choices"])
            if not sampling:
                self.assertLessEqual(drafted["stats"]["steps"], plain["stats"]["steps"] / 2)
                self.assertLessEqual(suffix["stats"]["steps"], plain["stats"]["steps"] / 2)
        stats = drafted["stats"]
        self.assertEqual(sum(stats["spec_decode_num_accepted_tokens_per_pos"]), stats["spec_decode_num_accepted_tokens"])
        self.assertLessEqual(stats["spec_decode_num_accepted_tokens"], stats["spec_decode_num_draft_tokens"])
        self.assertEqual(len(stats["spec_decode_num_accepted_tokens_per_pos"]), 4)
        refused = self.greedy(*args, *ngram, "--no-speculate")
        self.assertEqual(refused["stats"]["spec_decode_num_drafts"], 0)

    def test_a_models_own_layer_drafts(self):
        """With random weights: of GLM-4-MoE's layout, and of Qwen's beside layers that keep a state."""
        for name in ("glm4_moe", "qwen3_next"):
            model = Path(__file__).resolve().parents[1] / "golden/tiny" / name
            args = ("generate", model, "--load-format", "dummy", "--max-model-len", "256", "-p", "a few words", "--max-tokens", "40",
                    "--ignore-eos", "--logprobs", "2", "--stats")
            plain = self.answer(*args)
            drafted = self.answer(*args, "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3, "adaptive": false}')
            self.assertEqual(drafted["choices"], plain["choices"])
            self.assertGreater(drafted["stats"]["spec_decode_num_draft_tokens"], 39)
            self.assertEqual(len(drafted["stats"]["spec_decode_num_accepted_tokens_per_pos"]), 3)

    def test_unknown_ways_to_draft_are_named(self):
        self.refuse(2, "method 'medusa' is not supported; the methods are ngram", "generate", MODEL, "-p", "x",
                    "--spec-method", "medusa")
        self.refuse(2, "draft_tensor_parallel_size: 2 is neither 1 nor the --tensor-parallel-size of 1", "generate", MODEL, "-p", "x",
                    "--speculative-config", '{"method": "ngram", "draft_tensor_parallel_size": 2}')
        self.refuse(NO_MODEL, "method: mtp: no layer that predicts further tokens is known of LlamaForCausalLM", "generate", MODEL,
                    "-p", "x", "--speculative-config", '{"method": "mtp"}')

    def test_beams(self):
        flags = ("generate", MODEL, "-p", self.PROMPT, "--max-tokens", "5")
        for penalty in (1, 0):
            got = self.answer(*flags, "--beam-width", "3", "--length-penalty", penalty)
            scores = []
            for choice in got["choices"]:
                own = sum(entry["logprob"] for entry in choice["logprobs"])
                self.assertAlmostEqual(choice["cumulative_logprob"], own, places=4)
                length = 5 + len(choice["token_ids"]) - (choice["finish_reason"] == "stop")  # with the prompt
                scores.append(choice["cumulative_logprob"] / length**penalty)
            self.assertEqual(len(scores), 3)
            self.assertEqual(scores, sorted(scores, reverse=True))
        text = self.succeed(*flags, "--beam-width", "2").stdout.decode()
        first = self.answer(*flags, "--beam-width", "2")["choices"][0]["text"]
        self.assertTrue(text.startswith(f"== 1 of 2 ==\n{first}"), text)
        self.assertIn("\n== 2 of 2 ==\n", text)
        self.refuse(USAGE, "beam_width: 1000000 is outside [1, ", *flags, "--beam-width", "1000000")
        self.refuse(USAGE, "top_p: a beam search has none", *flags, "--beam-width", "2", "--top-p", "0.5")
        self.refuse(USAGE, "--beam-width: not with", "generate", MODEL, "--prompts-file", "nonesuch", "--beam-width", "2")

    def test_a_reader_that_goes_away_ends_the_run_quietly(self):
        child = subprocess.Popen([BIN, "generate", MODEL, "-p", self.PROMPT, "--max-tokens", "2000", "--ignore-eos"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
        child.stdout.read(1)
        child.stdout.close()
        self.assertEqual((child.wait(TIMEOUT), child.stderr.read()), (OK, b""))
        child.stderr.close()

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([BIN, "generate", MODEL, "-p", "x", "--max-tokens", "2"], stdout=full,
                                  stderr=subprocess.PIPE, timeout=TIMEOUT, env=clean_environment(), check=False)
        self.assertEqual(done.returncode, INTERNAL)
        self.assertIn(b"cannot write", done.stderr)

    def test_ctrl_c(self):
        child = subprocess.Popen([BIN, "generate", MODEL, "-p", self.PROMPT, "--max-tokens", "4000", "--ignore-eos"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
        child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=TIMEOUT)
        self.assertEqual((child.returncode, err), (INTERRUPTED, b""))
        self.assertTrue(out.endswith(b"\n"))


class PromptsFile(CliTest):
    def lines(self, code, text, *args, env=None):
        done = run("generate", MODEL, "--temperature", "0", "--prompts-file", self.file("p.jsonl", text), *args, env=env)
        self.assertEqual(done.returncode, code, done.stderr.decode())
        return [json.loads(line) for line in done.stdout.decode().splitlines()]

    def test_bad_lines_get_errors_in_their_place(self):
        got = self.lines(FAILED, "\n".join([
            '{"prompt":"The capital of France is"}', '{"prompt":"x","wrong":1}', "", "nonsense",
            '{"prompt":[504,3575],"max_tokens":2}', '{"prompt":"x","temperature":-1}',
            '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":2,"top_p":0.5,"logprobs":1}']))
        self.assertEqual([list(line)[0] for line in got],
                         ["prompt_token_ids", "error", "error", "prompt_token_ids", "error", "prompt_token_ids"])
        self.assertEqual(got[0]["usage"]["completion_tokens"], 16)
        self.assertEqual(got[1]["error"]["message"], "line 2: unknown field 'wrong'")
        self.assertIn("line 4", got[2]["error"]["message"])
        self.assertIn("line 6: temperature", got[4]["error"]["message"])
        self.assertEqual(got[3]["usage"]["completion_tokens"], 2)
        self.assertEqual(len(got[5]["choices"][0]["logprobs"]), 2)

    def test_a_batch_gives_what_single_runs_give(self):
        topics = ["the sea", "Rome", "prime numbers", "a cat", "rain", "the moon", "tea", "history"]
        prompts = [f"{i}. " + "Once upon a time, " * (i % 5) + "here is a text about " + topics[i % len(topics)]
                   for i in range(NUM_PROMPTS)]
        text = "\n".join(json.dumps({"prompt": p, "max_tokens": 4 + i % 7}) for i, p in enumerate(prompts))
        got = self.lines(OK, text, "--max-num-seqs", "4", "--stats")
        self.assertEqual(len(got), len(prompts))
        for i, (prompt, line) in enumerate(zip(prompts, got)):
            single = self.answer("generate", MODEL, "-p", prompt, "--max-tokens", 4 + i % 7, "--temperature", "0")
            self.assertEqual(line["prompt_token_ids"], single["prompt_token_ids"])
            self.assertEqual(line["choices"], single["choices"], prompt)
        num_tokens = sum(line["usage"]["completion_tokens"] for line in got)
        self.assertEqual(got[-1]["stats"]["output_tokens"], num_tokens)
        self.assertLess(got[-1]["stats"]["steps"], num_tokens)

    def test_prompt_logprobs_are_those_of_generating_it(self):
        (said,) = self.lines(OK, '{"prompt":"The capital of France is","max_tokens":4,"logprobs":1}')
        tokens = said["prompt_token_ids"] + said["choices"][0]["token_ids"]
        line = json.dumps({"prompt": tokens, "max_tokens": 1, "prompt_logprobs": 1})
        for got in self.lines(OK, f"{line}\n{line}\n", "--max-num-batched-tokens", "7", "--max-num-seqs", "2"):
            self.assertIsNone(got["prompt_logprobs"][0])
            self.assertEqual([entry["token_id"] for entry in got["prompt_logprobs"][1:]], tokens[1:])
            self.assertEqual(got["prompt_logprobs"][5:], said["choices"][0]["logprobs"])
        self.assertNotIn("prompt_logprobs", said)

    def test_logprobs_of_named_tokens_and_modes(self):
        line = '{"prompt":"The capital of France is","max_tokens":2,"logprob_token_ids":[198,7042]}'
        raw, logits = (self.lines(OK, line, "--logprobs-mode", mode)[0]["choices"][0]["logprobs"][0]
                       for mode in ("raw_logprobs", "raw_logits"))
        for first in (raw, logits):
            self.assertEqual([entry["token_id"] for entry in first["top"]], [198, 7042])
            self.assertEqual(first["top"][1]["logprob"], first["logprob"])
        self.assertAlmostEqual(raw["logprob"] - raw["top"][0]["logprob"],
                               logits["logprob"] - logits["top"][0]["logprob"], places=4)
        self.assertGreater(logits["logprob"], 0)

    def test_hidden_states_need_an_engine_that_keeps_them(self):
        line = '{"prompt":[504,3575,282],"max_tokens":2,"hidden_states":"all"}'
        (got,) = self.lines(OK, line, "--enable-hidden-states")
        self.assertEqual([len(vector) for vector in got["choices"][0]["hidden_states"]], [576] * 4)
        (refused,) = self.lines(FAILED, line)
        self.assertIn("--enable-hidden-states", refused["error"]["message"])

    def test_standard_input(self):
        done = self.succeed("generate", MODEL, "--prompts-file", "-", stdin='{"prompt":"Hi","max_tokens":1}\n' * 3)
        self.assertEqual(len(done.stdout.splitlines()), 3)

    def test_an_empty_file(self):
        self.assertEqual(self.lines(OK, ""), [])


class Terminal:
    """Runs the binary on a pseudo-terminal."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(BIN, [BIN, *args], clean_environment(TERM="dumb", LC_ALL="C.UTF-8"))
        self.seen = ""

    def type(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern, timeout=TIMEOUT):
        """Reads until the pattern matches. Returns and discards everything up to the end of the match."""
        end = time.monotonic() + timeout
        while not (match := re.search(pattern, self.seen)):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise AssertionError(f"no {pattern!r} in {self.seen!r}")
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                raise AssertionError(f"ended without {pattern!r}: {self.seen!r}")
            self.seen += data.decode(errors="replace")
        before, self.seen = self.seen[: match.end()], self.seen[match.end():]
        return before

    def wait(self, poke=None):
        """Reads to the end and returns the exit code. `poke` is typed each second without output: a key pressed
        after the prompt but before the editor starts is lost."""
        end = time.monotonic() + TIMEOUT
        try:
            while True:
                if select.select([self.fd], [], [], 1)[0]:
                    if not os.read(self.fd, 65536):
                        break
                elif time.monotonic() > end:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, 0)
                    raise AssertionError("still there")
                elif poke is not None:
                    self.type(poke)
        except OSError:
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Chat(CliTest):
    def test_in_a_pipe(self):
        done = self.succeed("chat", MODEL, "--temperature", "0", "--max-tokens", "12", "--system", "Be brief.",
                            stdin="My name is Ada.\n\nWhat is my name?\n/stats\n/exit\nnever read\n")
        self.assertEqual(len([line for line in done.stdout.decode().splitlines() if line]) >= 2, True)
        self.assertIn("steps ", done.stderr.decode())
        hits = int(re.search(r"prefix_hit_tokens (\d+)", done.stderr.decode()).group(1))
        self.assertGreater(hits, 0, "the second turn starts as the first did")

    def test_reset_forgets(self):
        first = self.succeed("chat", MODEL, "--temperature", "0", "--max-tokens", "8", stdin="Say hello.\n").stdout
        both = self.succeed("chat", MODEL, "--temperature", "0", "--max-tokens", "8",
                            stdin="Say hello.\n/reset\nSay hello.\n").stdout
        self.assertEqual(both, first * 2)

    def test_on_a_terminal(self):
        chat = Terminal("chat", MODEL, "--temperature", "0", "--ignore-eos")
        chat.expect("> ")
        chat.type("Tell me a long story.\r")
        chat.expect(r"story\.\r\n")
        chat.expect(r"\w+ \w+ \w+")
        # The terminal drops pending output when Ctrl-C is typed. Sent directly, the signal is the same and no output is
        # lost.
        os.kill(chat.pid, signal.SIGINT)
        chat.expect(r"\(stopped\)\r\n")
        chat.expect("> ")
        time.sleep(0.5)  # the prompt appears a moment before the editor starts to read
        chat.type("half a line\x03")
        chat.expect(r"Ctrl-D leaves\)")
        chat.expect("> ")
        chat.type("/reset\r")
        chat.expect("afresh")
        chat.type("/nonsense\r")
        chat.expect("unknown command /nonsense")
        chat.type("/stats\r")
        self.assertIn("tokens/s", chat.expect("row_state_bytes"))
        chat.type("/exit\r")
        self.assertEqual(chat.wait(), OK)

    def test_ctrl_d_leaves(self):
        chat = Terminal("chat", MODEL)
        chat.expect("> ")
        self.assertEqual(chat.wait(poke="\x04"), OK)


class Plan(CliTest):
    def test_the_worked_example(self):
        plan = json.loads(self.succeed("plan", MODEL, "--kv-cache-memory-bytes", "24MiB", "--output", "json").stdout)
        self.assertEqual((plan["kv_block_bytes"], plan["num_blocks"]), (368640, 68))
        self.assertIn("weights", self.succeed("plan", MODEL).stdout.decode())


class Bench(CliTest):
    def test_latency(self):
        path = self.file("latency.json", "")
        done = self.succeed("bench", "latency", MODEL, "--input-len", "8", "--output-len", "4", "--batch-size", "2",
                            "--num-iters", "2", "--num-iters-warmup", "1", "--output", "json", "--output-json", path)
        result = json.loads(done.stdout)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(result, json.load(file))
        self.assertEqual(len(result["latencies"]), 2)
        self.assertAlmostEqual(result["avg_latency"], sum(result["latencies"]) / 2)
        self.assertEqual(set(result["percentiles"]), {"10", "25", "50", "75", "90", "99"})
        self.assertEqual(done.stderr, b"")
        decode = (result["percentiles"]["50"] - result["first_token_latency"]) / 3
        self.assertAlmostEqual(result["decode_ms_per_step"], 1e3 * decode)

    def test_latency_of_several_batches(self):
        result = self.answer("bench", "latency", MODEL, "--input-len", "8", "--output-len", "4", "--batch-size", "1,3",
                             "--num-iters", "1", "--num-iters-warmup", "0", "--temperature", "0.8", "--seed", "1",
                             "--n", "2")
        self.assertEqual([one["batch_size"] for one in result["results"]], [1, 3])
        for one in result["results"]:
            self.assertAlmostEqual(one["output_tokens_per_second"], one["batch_size"] * 2 * 4 / one["avg_latency"])

    def test_throughput(self):
        result = json.loads(self.succeed("bench", "throughput", MODEL, "--input-len", "8", "--output-len", "4",
                                         "--num-prompts", "5", "--output", "json").stdout)
        self.assertEqual((result["num_requests"], result["total_num_tokens"]), (5, 60))
        self.assertAlmostEqual(result["tokens_per_second"], 60 / result["elapsed_time"])

    def test_startup(self):
        result = self.answer("bench", "startup", MODEL, "--num-iters-cold", "1", "--num-iters-warmup", "0",
                             "--num-iters-warm", "2")
        self.assertEqual((len(result["cold_startup_times"]), len(result["warm_startup_times"])), (1, 2))
        for ready, first in zip(result["warm_startup_times"], result["warm_first_token_times"]):
            self.assertLess(0, ready)
            self.assertLess(ready, first)

    def test_step(self):
        result = self.answer("bench", "step", MODEL, "--batch-size", "3", "--input-len", "8", "--num-steps", "4",
                             "--num-steps-warmup", "2")
        self.assertEqual((result["batch_size"], result["num_steps"]), (3, 4))
        # Contexts are those of the third to the sixth step after the last prefill; earlier prompts may be a few steps
        # ahead.
        self.assertGreaterEqual(result["mean_context_len"], 8 + (3 + 4 + 5 + 6) / 4)
        self.assertLess(result["mean_context_len"], 20)
        parts = ("execute_model_us", "sample_tokens_us", "take_output_us", "schedule_us")
        self.assertAlmostEqual(result["host_us"]["mean"], sum(result[part]["mean"] for part in parts))
        self.assertAlmostEqual(result["wall_us"]["mean"], result["host_us"]["mean"] + result["wait_us"]["mean"])

    def test_usage(self):
        self.refuse(USAGE, "none of latency|throughput|startup|step", "bench", "speed")
        self.refuse(USAGE, "--batch-size: 'x'", "bench", "latency", MODEL, "--batch-size", "1,x")
        self.refuse(USAGE, "is not random", "bench", "throughput", MODEL, "--dataset-name", "sharegpt")
        self.refuse(USAGE, "leave out --max-tokens", "bench", "latency", MODEL, "--max-tokens", "4")
        self.refuse(USAGE, "above max-num-seqs", "bench", "step", MODEL, "--batch-size", "9", "--max-num-seqs", "8")
        self.refuse(USAGE, "must be at least 1", "bench", "latency", MODEL, "--output-len", "0")
        self.refuse(USAGE, "8192", "bench", "latency", MODEL, "--input-len", "9000")


def default_model_file():
    """The path of the model's .gguf file."""
    if MODEL.endswith(".gguf"):
        return MODEL
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "warprow", "SmolLM2-135M-Instruct.Q4_1.gguf")


if __name__ == "__main__":
    if not os.path.exists(default_model_file()):
        print(f"skipped: {default_model_file()} is not there", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
