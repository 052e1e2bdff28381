#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""warprow.vllm_compat: what callers of vLLM import and call, and a likelihood as lm-evaluation-harness computes it, here and over HTTP.

Environment as llm_test.py. tests/clients/lm_eval_test.py runs the harness itself.
"""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import textwrap
import unittest
import warnings

os.environ.setdefault("WARPROW_BIN", os.environ["WARPROW_BUILD"] + "/warprow")
from llm_test import MODEL, PACKAGE, ROOT, SETTINGS  # noqa: E402

from cli_test import clean_environment, default_model_file  # noqa: E402
from server_test import Server  # noqa: E402

from warprow import UnsupportedError, WarprowError, vllm_compat  # noqa: E402

vllm_compat.install()
import vllm  # noqa: E402
from vllm import LLM, SamplingParams, TokensPrompt  # noqa: E402

# Arguments that a caller may spell out although they are vLLM's defaults, or concern nothing here.
SPELLED_OUT = {"revision": None, "dtype": "auto", "tokenizer": None, "tokenizer_mode": "auto", "tokenizer_revision": None,
               "trust_remote_code": False, "tensor_parallel_size": 1, "max_num_seqs": None, "quantization": None, "seed": 1234,
               "enable_lora": False, "max_lora_rank": 16, "swap_space": 4, "disable_log_stats": True, "enforce_eager": False,
               "gpu_memory_utilization": 0.8, "max_logprobs": 20}
CONTEXT, CONTINUATION = "The capital of France is", " Paris, and that of Germany is Berlin."


class Names(unittest.TestCase):
    def test_modules(self):
        from vllm.beam_search import BeamSearchSequence  # noqa: F401
        from vllm.entrypoints.chat_utils import resolve_chat_template
        from vllm.entrypoints.llm import LLM as same
        from vllm.inputs import TextPrompt
        from vllm.lora.request import LoRARequest  # noqa: F401
        from vllm.outputs import CompletionOutput, EmbeddingRequestOutput, RequestOutput  # noqa: F401
        from vllm.pooling_params import PoolingParams  # noqa: F401
        from vllm.renderers.hf import resolve_chat_template as again
        from vllm.sampling_params import BeamSearchParams, GuidedDecodingParams  # noqa: F401
        from vllm.tokenizers import get_tokenizer
        from vllm.transformers_utils.tokenizer import get_tokenizer as older
        self.assertIs(same, LLM)
        self.assertIs(again, resolve_chat_template)
        self.assertIs(older, get_tokenizer)
        self.assertEqual(TextPrompt(prompt="x"), {"prompt": "x"})
        self.assertEqual((CompletionOutput.__name__, RequestOutput.__name__), ("CompletionOutput", "RequestOutput"))
        with self.assertRaises(ImportError):
            importlib.import_module("vllm.distributed")

    def test_its_version_and_place_can_be_found(self):
        self.assertEqual(importlib.metadata.version("vllm"), vllm.__version__)
        self.assertEqual(vllm.__version__, vllm_compat.__version__)
        self.assertIsNotNone(importlib.util.find_spec("vllm"))
        self.assertIsNotNone(importlib.util.find_spec("vllm.lora.request"))
        self.assertIsNone(importlib.util.find_spec("vllm.nowhere"))
        self.assertNotIn("vllm", importlib.metadata.packages_distributions())
        vllm_compat.install()  # a second time changes nothing
        self.assertEqual(sum(type(finder).__module__ == "warprow.vllm_compat._modules" for finder in sys.meta_path), 1)

    def run_python(self, *arguments, script=None):
        return subprocess.run([sys.executable, *arguments], input=script and textwrap.dedent(script), env=clean_environment(**PACKAGE),
                              capture_output=True, text=True, timeout=120)

    def test_a_program_runs_unchanged(self):
        done = self.run_python("-m", "warprow.vllm_compat", "timeit", "-n", "1", "-r", "1", "-s", "import vllm", "print(vllm.LLM.__module__)")
        self.assertEqual((done.returncode, done.stdout.splitlines()[0]), (0, "warprow.vllm_compat._llm"), done.stderr)
        self.assertIn("usage", self.run_python("-m", "warprow.vllm_compat").stderr)

    def test_too_late(self):
        done = self.run_python("-", script="""
            import sys, types
            sys.modules["vllm"] = types.ModuleType("vllm")
            import warprow.vllm_compat
            warprow.vllm_compat.install()
        """)
        self.assertIn("ImportError: vllm was imported before", done.stderr)


class Calls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(MODEL, **SPELLED_OUT, **SETTINGS)
        cls.addClassCleanup(cls.llm.close)

    def test_facts(self):
        self.assertEqual(self.llm.llm_engine.model_config.max_model_len, 512)
        self.assertEqual(self.llm.llm_engine.get_tokenizer().encode("Hi"), self.llm.get_tokenizer().encode("Hi"))

    def test_ways_to_generate(self):
        greedy = SamplingParams(temperature=0, max_tokens=4, spaces_between_special_tokens=False, best_of=1)
        ids = self.llm.get_tokenizer().encode(CONTEXT)
        wanted = self.llm.generate(CONTEXT, greedy, use_tqdm=False)[0].outputs[0]
        self.assertEqual(wanted.text, " Paris.\n\n")
        for prompts in ([TokensPrompt(prompt_token_ids=ids)], [ids], [{"prompt": CONTEXT, "multi_modal_data": None}]):
            self.assertEqual(self.llm.generate(prompts, greedy, use_tqdm=False, lora_request=None)[0].outputs[0].token_ids, wanted.token_ids)
        output = self.llm.generate(prompt_token_ids=[ids], sampling_params=greedy.clone(), use_tqdm=False, lora_request=[None])[0]
        self.assertEqual(output.outputs[0].token_ids, wanted.token_ids)
        form = vllm_compat.GuidedDecodingParams(choice=["blue", "green"])
        output = self.llm.generate("The sky is", SamplingParams(guided_decoding=form), use_tqdm=False)[0]
        self.assertIn(output.outputs[0].text, ("blue", "green"))
        chat = self.llm.chat([{"role": "user", "content": "Hi"}], greedy, use_tqdm=False, chat_template_content_format="auto")
        self.assertEqual(len(chat[0].outputs[0].token_ids), 4)

    def test_what_would_change_an_answer_is_refused(self):
        for argument, value in (("hf_overrides", {"a": 1}), ("task", "reward"), ("tokenizer", "another")):
            with self.assertRaisesRegex(UnsupportedError, argument):
                LLM(MODEL, **{argument: value})
        for argument, value in (("quantization", "awq"), ("kv_cache_dtype", "fp4"), ("runner", "draft"), ("speculative_config", {"method": "mlp"})):  # named as the flag
            with self.assertRaisesRegex(WarprowError, argument.replace("_", ".")):
                LLM(MODEL, **{argument: value})
        with self.assertRaisesRegex(ValueError, "colour: is no setting"):
            LLM(MODEL, colour=1)
        for params, text in ((SamplingParams(logits_processors=[print]), "logits_processors"), (SamplingParams(best_of=2), "best_of")):
            with self.assertRaisesRegex(UnsupportedError, text):
                self.llm.generate("x", params, use_tqdm=False)
        with self.assertRaisesRegex(WarprowError, "enable-lora"):
            self.llm.generate("x", lora_request=vllm_compat.LoRARequest("a", 1, "b"), use_tqdm=False)

    def test_a_pooling_model(self):
        folder = ROOT / "tests/golden/tiny/embed_qwen3"
        for arguments in ({}, {"task": "embed"}, {"runner": "pooling", "convert": "none"}):
            with LLM(str(folder), dtype="float32", kv_cache_memory_bytes="1MiB", max_model_len=128, **arguments) as llm:
                [output] = llm.embed("some text", use_tqdm=False, pooling_params=vllm.PoolingParams(dimensions=16))
                self.assertIsInstance(output.outputs, vllm.EmbeddingOutput)
                self.assertEqual(len(output.outputs.embedding), 16)

    def test_drafts(self):
        greedy = SamplingParams(temperature=0, max_tokens=24)
        expected = self.llm.generate("1 2 3 1 2 3 1 2", greedy, use_tqdm=False)[0].outputs[0].token_ids
        with LLM(MODEL, speculative_config={"method": "ngram", "num_speculative_tokens": 3}, **SETTINGS) as llm:
            self.assertEqual(llm.generate("1 2 3 1 2 3 1 2", greedy, use_tqdm=False)[0].outputs[0].token_ids, expected)
            self.assertGreater(llm.state()["drafts"]["accepted"], 0)

    def test_dtypes(self):
        from warprow.vllm_compat._llm import _settings

        with self.assertWarnsRegex(UserWarning, "bfloat16"):
            self.assertEqual(_settings({"dtype": "torch.float16"}), {"dtype": "bfloat16"})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual(_settings({"dtype": "float", "max_model_len": 5}), {"dtype": "float32", "max_model_len": 5})

    def test_a_likelihood_here_and_over_http(self):
        """The calls of lm-evaluation-harness's models `vllm` and `local-completions`."""
        tokenizer = self.llm.get_tokenizer()
        context = tokenizer.encode(CONTEXT)
        ids = context + tokenizer.encode(CONTINUATION, add_special_tokens=False)
        params = SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=1, detokenize=False)
        [output] = self.llm.generate([TokensPrompt(prompt_token_ids=ids)], [params], use_tqdm=False, lora_request=None)
        here = [entries[token].logprob for token, entries in zip(ids, output.prompt_logprobs) if entries is not None]
        greedy_here = [max(entries, key=lambda token: entries[token].logprob) for entries in output.prompt_logprobs[len(context):]]
        server = Server("--kv-cache-memory-bytes", "64MiB")
        try:
            status, answer = server.post("/v1/completions", {"model": MODEL, "prompt": [ids], "temperature": 0, "max_tokens": 1,
                                                             "logprobs": 1, "seed": 1234, "echo": True})
        finally:
            server.stop()
        self.assertEqual(status, 200, answer)
        there = answer["choices"][0]["logprobs"]
        self.assertEqual(len(there["token_logprobs"]), len(ids) + 1)
        self.assertEqual(len(here), len(ids) - 1)
        for mine, theirs in zip(here, there["token_logprobs"][1:-1], strict=True):
            self.assertAlmostEqual(mine, theirs, places=5)
        best = [max(top.values()) for top in there["top_logprobs"][len(context):-1]]
        greedy_there = [own == top for own, top in zip(there["token_logprobs"][len(context):-1], best, strict=True)]
        self.assertEqual([best == token for best, token in zip(greedy_here, ids[len(context):], strict=True)], greedy_there)
        self.assertGreater(sum(greedy_there), 3)


if __name__ == "__main__":
    if not os.path.exists(default_model_file()):
        print(f"skipped: {default_model_file()} is not there", file=sys.stderr)
        sys.exit(77)
    unittest.main(verbosity=2)
