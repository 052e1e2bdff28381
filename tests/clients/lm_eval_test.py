#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness, unmodified: three local tasks through warprow.vllm_compat and over HTTP must have equal scores.

Environment: WARPROW_BIN, the binary, beside which the library is; others as tests/e2e/server_test.py. The harness comes from
tools/fetch_clients.sh lm_eval; without it the exit status is 77. It wants a Hugging Face directory, so the test makes one: the default
model's GGUF file, with a tokenizer and a configuration out of its metadata.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import client_env

client_env.need("lm_eval", "lm_eval", "gguf")

from gguf import GGUFReader  # noqa: E402

from cli_test import default_model_file  # noqa: E402
from server_test import BIN, TIMEOUT, Server, clean_environment  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
TASKS = ["capitals", "capitals_answer", "capitals_perplexity"]
LENGTH = 512


def write_model(folder, gguf):
    """A directory that transformers and the engine read."""
    reader = GGUFReader(gguf)

    def value(name):
        return reader.get_field(name).contents()

    tokens, merges, types = (value(f"tokenizer.ggml.{name}") for name in ("tokens", "merges", "token_type"))
    special = [i for i, kind in enumerate(types) if kind == 3]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i in special]
    tokenizer = {"version": "1.0", "added_tokens": added, "decoder": byte_level,
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
                 "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}}
    end = tokens[value("tokenizer.ggml.eos_token_id")]
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(tokens),
              "hidden_size": value("llama.embedding_length"), "num_hidden_layers": value("llama.block_count"),
              "num_attention_heads": value("llama.attention.head_count"), "max_position_embeddings": value("llama.context_length")}
    files = {"config.json": config, "tokenizer.json": tokenizer,
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "bos_token": tokens[1]}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "model.gguf").symlink_to(os.path.abspath(gguf))


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.model = cls.folder / "smollm2"
        cls.model.mkdir()
        write_model(cls.model, default_model_file())

    def run_harness(self, name, command, **arguments):
        """Scores and samples of a run."""
        output = self.folder / name
        home = str(self.folder / "home")
        environment = {**clean_environment(), "HF_HOME": home, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1",
                       "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT / "python"),
                       "WARPROW_LIBRARY": str(Path(BIN).resolve().parent / "libwarprow.so.1")}
        flags = ["--model_args", ",".join(f"{key}={value}" for key, value in arguments.items()), "--tasks", ",".join(TASKS),
                 "--include_path", "tests/clients/lm_eval", "--output_path", str(output), "--log_samples"]
        done = subprocess.run([sys.executable, "-m", *command, *flags], cwd=ROOT, env=environment, capture_output=True, text=True,
                              timeout=TIMEOUT * 3)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        [results] = output.rglob("results_*.json")
        samples = {}
        for task in TASKS:
            [file] = output.rglob(f"samples_{task}_2*.jsonl")
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            samples[task] = [row["resps"] for row in sorted(rows, key=lambda row: row["doc_id"])]
        return json.loads(results.read_text(encoding="utf-8"))["results"], samples

    def test_both_ways_score_alike(self):
        here, here_samples = self.run_harness(
            "here", ["warprow.vllm_compat", "lm_eval", "--model", "vllm", "--batch_size", "auto"],
            pretrained=self.model, max_model_len=LENGTH, kv_cache_memory_bytes="64MiB", gpu_memory_utilization=0.8)
        server = Server("--kv-cache-memory-bytes", "64MiB", "--served-model-name", "smollm2", model=str(self.model))
        try:
            there, there_samples = self.run_harness(
                "there", ["lm_eval", "--model", "local-completions"], model="smollm2", tokenizer=self.model,
                base_url=f"http://127.0.0.1:{server.port}/v1/completions", num_concurrent=4, max_length=LENGTH)
        finally:
            server.stop()
        print(json.dumps(here, indent=1))
        for task in TASKS:
            for metric, value in here[task].items():
                if not isinstance(value, (int, float)):
                    self.assertEqual(value, there[task][metric])
                    continue
                with self.subTest(task=task, metric=metric):
                    self.assertAlmostEqual(value, there[task][metric], delta=abs(value) * 1e-6)
        self.assertEqual(here_samples["capitals_answer"], there_samples["capitals_answer"])
        for mine, theirs in zip(here_samples["capitals"], there_samples["capitals"], strict=True):
            self.assertEqual(len(mine), 4)
            for [[logprob, is_greedy]], [[other, other_greedy]] in zip(mine, theirs, strict=True):
                self.assertAlmostEqual(float(logprob), float(other), places=4)
                self.assertEqual(is_greedy, other_greedy)
        self.assertGreater(here["capitals"]["acc,none"], 0.6)  # chance is 0.25


if __name__ == "__main__":
    if not os.path.exists(default_model_file()):
        client_env.skip("the default model")
    unittest.main(verbosity=2)
