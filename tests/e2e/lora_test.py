#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters behind `warprow serve`, `generate` and `run-batch`: random ones of the tiny Qwen3 of tests/golden/tiny.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/lora_test.py [-k NAME]
"""

import json
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from server_test import BIN, TIMEOUT, Server, clean_environment  # noqa: E402

TINY = HERE.parent / "golden" / "tiny"
SETTINGS = ("--dtype", "float32", "--kv-cache-memory-bytes", "1MiB", "--threads", "1", "--max-model-len", "128")
PROMPT = "What comes next?"


def write_adapter(folder, seed, rank=4, **config):
    """A random adapter of all linear layers of tiny/qwen3."""
    spec = json.loads((TINY / "qwen3" / "config.json").read_text())
    hidden, inner, dim = spec["hidden_size"], spec["intermediate_size"], spec["head_dim"]
    q, kv = spec["num_attention_heads"] * dim, spec["num_key_value_heads"] * dim
    sizes = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
             "self_attn.o_proj": (hidden, q), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
             "mlp.down_proj": (hidden, inner)}  # fmt: skip
    draw = random.Random(seed)
    header, data = {}, b""
    for layer in range(spec["num_hidden_layers"]):
        for module, (rows, cols) in sizes.items():
            for half, shape in (("A", (rank, cols)), ("B", (rows, rank))):
                values = [draw.gauss(0, 0.5) for _ in range(shape[0] * shape[1])]
                header[f"base_model.model.model.layers.{layer}.{module}.lora_{half}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}  # fmt: skip
                data += struct.pack(f"<{len(values)}f", *values)
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 8, **config}))
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


class Lora(unittest.TestCase):
    RANKS = ()

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = Path(folder.name)
        cls.model = cls.path / "model"
        shutil.copytree(TINY / "qwen3", cls.model)
        shutil.copy(TINY / "embed_qwen3" / "tokenizer.json", cls.model)
        for seed in range(4):
            write_adapter(cls.path / f"a{seed}", seed)
        write_adapter(cls.path / "big", 9, rank=9)
        write_adapter(cls.path / "dora", 9, use_dora=True)
        write_adapter(cls.path / "cut", 9)
        file = cls.path / "cut" / "adapter_model.safetensors"
        file.write_bytes(file.read_bytes()[:-5])
        cls.server = Server(*SETTINGS, *cls.RANKS, "--enable-lora", "--lora-modules", f"a0={cls.path}/a0,a1={cls.path}/a1",
                            "--max-loras", "2", "--max-cpu-loras", "4", "--max-lora-rank", "8", "--allow-lora-updates",
                            "--served-model-name", "base", model=str(cls.model))  # fmt: skip

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def answer(self, model, prompt=PROMPT, tokens=12, **more):
        body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": tokens, "ignore_eos": True, **more}
        status, answer = self.server.post("/v1/completions", body)
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["model"], model)
        return answer["choices"][0]["text"]

    def update(self, verb, name, path=None):
        body = {"lora_name": name, **({"lora_path": str(path)} if path else {})}
        status, _, data = self.server.ask("POST", f"/v1/{verb}_lora_adapter", body)
        return status, data.decode()

    def refuse(self, status, param, needle, verb, name, path=None):
        got, data = self.update(verb, name, path)
        error = json.loads(data)["error"]
        self.assertEqual((got, error["param"]), (status, param), data)
        self.assertIn(needle, error["message"])
        self.assertNotIn("\n", error["message"])

    def models(self):
        return {card["id"]: card for card in json.loads(self.server.ask("GET", "/v1/models")[2])["data"]}

    def test_the_name_is_the_model(self):
        texts = [self.answer(model) for model in ("base", "a0", "a1")]
        self.assertEqual(len(set(texts)), 3)
        models = self.models()
        self.assertEqual(models["base"]["parent"], None)
        self.assertEqual((models["a0"]["parent"], models["a0"]["root"]), ("base", f"{self.path}/a0"))
        self.assertEqual(json.loads(self.server.ask("GET", "/v1/models/a1")[2])["id"], "a1")
        status, answer = self.server.post("/v1/completions", {"model": "other", "prompt": PROMPT})
        self.assertEqual((status, answer["error"]["param"]), (404, "model"))
        self.assertIn("base, a0, a1", answer["error"]["message"])
        chunks = self.server.events("/v1/completions", {"model": "a1", "prompt": PROMPT, "temperature": 0,
                                                        "max_tokens": 12, "ignore_eos": True})  # fmt: skip
        self.assertEqual("".join(chunk["choices"][0]["text"] for chunk in chunks), texts[2])

    def test_a_batch_of_several_answers_as_one_alone(self):
        cases = [(model, f"{PROMPT} {number}") for number in range(6) for model in ("base", "a0", "a1")]
        alone = [self.answer(*case) for case in cases]
        together = [None] * len(cases)

        def ask(at):
            together[at] = self.answer(*cases[at])

        threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(cases))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(together, alone)

    def test_generate_and_run_batch_answer_the_same(self):
        base = [BIN, "generate", str(self.model), *SETTINGS, *self.RANKS, "-p", PROMPT, "--temperature", "0", "--max-tokens", "12",
                "--ignore-eos", "--output", "json"]  # fmt: skip
        done = subprocess.run([*base, "--lora", str(self.path / "a1")], capture_output=True, timeout=TIMEOUT,
                              env=clean_environment(), check=True)  # fmt: skip
        self.assertEqual(json.loads(done.stdout)["choices"][0]["text"], self.answer("a1"))
        lines = [{"custom_id": name, "method": "POST", "url": "/v1/completions",
                  "body": {"model": name, "prompt": PROMPT, "temperature": 0, "max_tokens": 12, "ignore_eos": True}}
                 for name in ("base", "a0", "a1")]  # fmt: skip
        (self.path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        subprocess.run([BIN, "run-batch", str(self.model), *SETTINGS, *self.RANKS, "--enable-lora", "--max-loras", "2",
                        "--lora-modules", f"a0={self.path}/a0,a1={self.path}/a1", "--served-model-name", "base",
                        "-i", str(self.path / "in.jsonl"), "-o", str(self.path / "out.jsonl")],
                       capture_output=True, timeout=TIMEOUT, env=clean_environment(), check=True)  # fmt: skip
        for line in (self.path / "out.jsonl").read_text().splitlines():
            result = json.loads(line)
            text = result["response"]["body"]["choices"][0]["text"]
            self.assertEqual(text, self.answer(result["custom_id"]))

    def test_bad_adapters_are_refused_and_the_server_goes_on(self):
        want = self.answer("a0")
        self.refuse(400, "lora_name", "is loaded already", "load", "a0", self.path / "a0")
        self.refuse(400, "lora_name", "is the model's name", "load", "base", self.path / "a0")
        self.refuse(400, "lora_path", "must be given", "load", "x")
        self.refuse(404, "lora_name", "is not loaded", "unload", "x")
        for name, needle in (("none", "adapter_config.json"), ("big", "--max-lora-rank is 8"), ("dora", "DoRA"),
                             ("cut", "adapter_model.safetensors")):  # fmt: skip
            status, data = self.update("load", "x", self.path / name)
            self.assertIn(status, (400, 404), data)
            self.assertIn(needle, json.loads(data)["error"]["message"])
            self.assertNotIn("\n", json.loads(data)["error"]["message"])
        for body in ("[]", "{", '{"lora_name": 1, "lora_path": "x"}', '{"lora_name": "x", "path": "y"}'):
            self.assertEqual(self.server.ask("POST", "/v1/load_lora_adapter", body)[0], 400, body)
        self.assertEqual(self.answer("a0"), want)
        self.assertNotIn("x", self.models())

    def test_the_number_of_adapters_is_limited(self):
        for name in ("x", "y"):
            self.assertEqual(self.update("load", name, self.path / "a2")[0], 200)
        self.refuse(400, "lora_name", "--max-cpu-loras 4", "load", "z", self.path / "a2")
        for name in ("x", "y"):
            self.assertEqual(self.update("unload", name)[0], 200)

    def test_metrics_name_the_adapters(self):
        self.answer("a0")
        text = self.server.ask("GET", "/metrics")[2].decode()
        self.assertRegex(text, r'vllm:lora_requests_info\{max_lora="2",running_lora_adapters="[a-z0-9,]*",waiting_lora_adapters=""\} \d+')

    # While streams run, adapters come and go under one name; each answer is that of the files that were loaded last.
    def test_loads_and_unloads_under_load(self):
        want = {}
        for name in ("a2", "a3"):
            self.assertEqual(self.update("load", name, self.path / name)[0], 200)
            want[name] = self.answer(name)
            self.assertEqual(self.update("unload", name)[0], 200)
        alone = {model: self.answer(model, tokens=40) for model in ("base", "a0", "a1")}
        stop, wrong = threading.Event(), []

        def stream(model):
            while not stop.is_set():
                if self.answer(model, tokens=40) != alone[model]:
                    wrong.append(model)

        threads = [threading.Thread(target=stream, args=(model,)) for model in alone]
        for thread in threads:
            thread.start()
        try:
            for i in range(40):
                files = ("a2", "a3")[i % 2]
                self.assertEqual(self.update("load", "x", self.path / files)[0], 200)
                self.assertEqual(self.answer("x"), want[files])
                self.assertEqual(self.update("unload", "x")[0], 200)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(set(self.models()), {"base", "a0", "a1"})

    # An answer goes on to its end with an adapter that is unloaded meanwhile.
    def test_unloading_lets_answers_go_on(self):
        self.assertEqual(self.update("load", "x", self.path / "a3")[0], 200)
        want = self.answer("x", tokens=90)
        got = []
        thread = threading.Thread(target=lambda: got.append(self.answer("x", tokens=90)))
        thread.start()
        while 'running_lora_adapters="x"' not in self.server.ask("GET", "/metrics")[2].decode() and thread.is_alive():
            pass
        self.assertEqual(self.update("unload", "x")[0], 200)
        thread.join()
        self.assertEqual(got, [want])
        self.assertEqual(self.server.post("/v1/completions", {"model": "x", "prompt": PROMPT})[0], 404)


class TensorParallelLora(Lora):
    RANKS = ("--tensor-parallel-size", "2")


class PipelineLora(Lora):
    RANKS = ("--pipeline-parallel-size", "2")


class Flags(unittest.TestCase):
    def fails(self, needle, *flags):
        done = subprocess.run([BIN, *flags], capture_output=True, text=True, timeout=TIMEOUT, env=clean_environment())
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(needle, done.stderr)

    def test_refusals(self):
        model = str(TINY / "qwen3")
        self.fails("--lora-modules: x=y needs --enable-lora", "serve", model, "--lora-modules", "x=y")
        self.fails("'x' is not NAME=DIRECTORY", "serve", model, "--enable-lora", "--lora-modules", "x")
        self.fails("--max-cpu-loras: 1 is below --max-loras 2", "serve", model, "--enable-lora", "--max-loras", "2",
                   "--max-cpu-loras", "1")  # fmt: skip
        self.fails("--allow-lora-updates needs --enable-lora", "serve", model, "--port", "0", "--allow-lora-updates")
        self.fails("--allow-lora-updates needs --api-key", "serve", model, "--port", "0", "--allow-lora-updates",
                   "--enable-lora", "--host", "0.0.0.0")  # fmt: skip
        self.fails("--record-steps: not supported with --enable-lora", "serve", model, "--port", "0", "--enable-lora",
                   "--record-steps", "/nowhere/x")  # fmt: skip
        self.fails("the pooling runner", "serve", str(TINY / "embed_qwen3"), "--port", "0", "--enable-lora")



if __name__ == "__main__":
    unittest.main()
