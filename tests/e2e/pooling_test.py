#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pooling models behind `warprow serve` and `warprow embed`: the tiny ones of tests/golden/tiny, against their golden files.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/pooling_test.py [-k NAME]
"""

import array
import ast
import base64
import json
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from server_test import BIN, TIMEOUT, Server, clean_environment  # noqa: E402

TINY = HERE.parent / "golden" / "tiny"
SETTINGS = ("--dtype", "float32", "--kv-cache-memory-bytes", "1MiB", "--threads", "1", "--max-model-len", "128")
CHARACTERS = ["\u0120", *(chr(code) for code in range(0x21, 0x7F))]


def tokens(text):
    """The tiny tokenizer: a token for each printable ASCII character."""
    return [5 + CHARACTERS.index("\u0120" if character == " " else character) for character in text]


def golden(model):
    return json.loads((TINY / model / "golden.json").read_text())["prompts"]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def cosine(a, b):
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


class Tiny(unittest.TestCase):
    model = ""
    flags = ()

    @classmethod
    def setUpClass(cls):
        if not cls.model:
            raise unittest.SkipTest("the base of the others")
        cls.server = Server(*SETTINGS, *cls.flags, model=str(TINY / cls.model))
        cls.golden = golden(cls.model)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ok(self, path, body):
        status, answer = self.server.post(path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def refused(self, path, body, *words):
        status, answer = self.server.post(path, body)
        self.assertEqual(status, 400, answer)
        for word in words:
            self.assertIn(word, answer["error"]["message"])
        return answer["error"]

    def near(self, got, wanted, places=4):
        self.assertEqual(len(got), len(wanted))
        for a, b in zip(got, wanted):
            self.assertAlmostEqual(a, b, places)


class Embedder(Tiny):
    model = "embed_qwen3"

    def vectors(self, given, **fields):
        answer = self.ok("/v1/embeddings", {"input": given, **fields})
        self.assertEqual([item["index"] for item in answer["data"]], list(range(len(answer["data"]))))
        self.assertEqual({item["object"] for item in answer["data"]}, {"embedding"})
        return [item["embedding"] for item in answer["data"]]

    def test_ids_are_as_in_transformers(self):
        ids = [prompt["ids"] for prompt in self.golden]
        together = self.vectors(ids)
        for prompt, vector in zip(self.golden, together):
            self.near(vector, prompt["vector"])
            self.assertEqual(self.vectors(prompt["ids"]), [vector])

    def test_an_answer_is_as_in_openais_api(self):
        answer = self.ok("/v1/embeddings", {"input": ["ab", "a"], "model": str(TINY / self.model), "user": "u"})
        self.assertEqual(answer["object"], "list")
        self.assertTrue(answer["id"].startswith("embd-"))
        self.assertEqual(answer["usage"], {"prompt_tokens": 5, "total_tokens": 5, "completion_tokens": 0})
        self.assertEqual(self.vectors("ab"), [answer["data"][0]["embedding"]])
        self.assertEqual(self.vectors([*tokens("ab"), 2]), self.vectors("ab"))  # the tokenizer ends a text with <eos>
        self.assertEqual(self.vectors(tokens("ab")), self.vectors("ab", add_special_tokens=False))

    def test_base64_has_the_same_bits(self):
        numbers, = self.vectors("some text")
        text, = self.vectors("some text", encoding_format="base64")
        self.assertEqual(array.array("f", base64.b64decode(text)), array.array("f", numbers))

    def test_dimensions_are_cut_before_the_norm(self):
        whole, = self.vectors("some text")
        half, = self.vectors("some text", dimensions=16)
        length = math.sqrt(dot(whole[:16], whole[:16]))
        self.near(half, [value / length for value in whole[:16]], 6)

    def test_long_texts(self):
        error = self.refused("/v1/embeddings", {"input": "a" * 128}, "129 tokens", "128 tokens")
        self.assertEqual(error["type"], "context_length_exceeded")
        self.assertEqual(len(self.vectors("a" * 127)), 1)
        right, = self.vectors("b" * 100 + "a" * 200, truncate_prompt_tokens=-1)
        self.assertEqual([right], self.vectors([*tokens("b" * 100 + "a" * 27), 2]))
        left, = self.vectors("b" * 100 + "a" * 200, truncate_prompt_tokens=9, truncation_side="left")
        self.assertEqual([left], self.vectors("a" * 8))

    def test_what_is_wrong_is_named(self):
        for body, word in (({}, "input"), ({"input": 5}, "input"), ({"input": [[1], "a"]}, "input"), ({"input": []}, "prompt"),
                           ({"input": [[200]]}, "200"), ({"input": "a", "dimensions": 33}, "dimensions: 33"),
                           ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
                           ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
                           ({"input": "a", "truncate_prompt_tokens": 129}, "129")):
            self.refused("/v1/embeddings", body, word)
        status, answer = self.server.post("/v1/embeddings", {"input": "a", "model": "other"})
        self.assertEqual(status, 404, answer)

    def test_text_is_refused(self):
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "a"}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                           ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "a"}]})):
            self.refused(path, body, "embeddings and no text", "/v1/embeddings")
        self.refused("/classify", {"input": "a"}, "/v1/embeddings")

    def test_scores_are_cosines(self):
        query, *documents = self.vectors(["query", "one", "two", "query"])
        wanted = [cosine(query, document) for document in documents]
        answer = self.ok("/score", {"text_1": "query", "text_2": ["one", "two", "query"]})
        self.near([item["score"] for item in answer["data"]], wanted, 5)
        pairs = self.ok("/score", {"text_1": ["one", "two"], "text_2": ["two", "two"]})
        self.near([item["score"] for item in pairs["data"]], [cosine(documents[0], documents[1]), 1.0], 5)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            ranked = self.ok(path, {"query": "query", "documents": ["one", {"text": "two"}, "query"]})["results"]
            self.assertEqual(ranked[0]["index"], 2)
            self.assertEqual(ranked[0]["document"], {"text": "query"})
            self.assertEqual([r["relevance_score"] for r in ranked], sorted((r["relevance_score"] for r in ranked), reverse=True))
        self.assertEqual(len(self.ok("/rerank", {"query": "q", "documents": ["a", "b", "c"], "top_n": 2})["results"]), 2)
        self.refused("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1: 2")

    def test_token_vectors(self):
        prompt = self.golden[1]
        item, = self.ok("/pooling", {"input": prompt["ids"], "task": "token_embed", "normalize": False})["data"]
        self.assertEqual(len(item["data"]), len(prompt["ids"]))
        for got, wanted in zip(item["data"], prompt["hidden"]):
            self.near(got, wanted)
        whole, = self.ok("/pooling", {"input": prompt["ids"]})["data"]
        self.near(whole["data"], prompt["vector"])
        self.refused("/pooling", {"input": "a", "task": "classify"}, "embeddings")


class Classifier(Tiny):
    model = "classify_llama"

    def test_classes(self):
        answer = self.ok("/classify", {"input": [prompt["ids"] for prompt in self.golden]})
        for prompt, item in zip(self.golden, answer["data"]):
            self.near(item["probs"], prompt["vector"])
            self.assertEqual(item["num_classes"], 3)
            self.assertEqual(item["label"], ["bad", "fair", "good"][item["probs"].index(max(item["probs"]))])
        logits, = self.ok("/classify", {"input": self.golden[1]["ids"], "use_activation": False})["data"]
        total = sum(math.exp(value) for value in logits["probs"])
        self.near([math.exp(value) / total for value in logits["probs"]], self.golden[1]["vector"])

    def test_what_it_does_not_have(self):
        self.refused("/v1/embeddings", {"input": "a"}, "scores of labels")
        self.refused("/score", {"text_1": "a", "text_2": "b"}, "3 labels")
        self.refused("/v1/completions", {"prompt": "a"}, "no text")


class Judge(Tiny):
    model = "judge_qwen3"
    flags = ("--max-model-len", "512")

    def test_scores_are_probabilities_of_yes(self):
        for prompt in self.golden:
            item, = self.ok("/pooling", {"input": prompt["ids"]})["data"]
            self.near(item["data"], prompt["vector"])

    def test_the_pair_is_in_its_chat(self):
        text = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. '
                'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: find\n<Query>: a'
                '\n<Document>: b<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n')
        wanted, = self.ok("/pooling", {"input": text, "add_special_tokens": False})["data"]
        item, = self.ok("/score", {"text_1": "a", "text_2": "b", "instruction": "find"})["data"]
        self.assertEqual(item["score"], wanted["data"][0])
        ranked = self.ok("/rerank", {"query": "a", "documents": ["b", "c"], "instruction": "find", "return_documents": False})["results"]
        self.assertIn({"index": 0, "relevance_score": item["score"]}, ranked)
        self.refused("/score", {"text_1": "a", "text_2": "b" * 500}, "tokens")
        cut = self.ok("/score", {"text_1": "a", "text_2": "b" * 500, "truncate_prompt_tokens": -1})
        self.assertEqual(cut["usage"]["prompt_tokens"], 512)
        self.refused("/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 50}, "truncate_prompt_tokens: 50")


class Bert(Tiny):
    model = "embed_bert"
    flags = ("--max-model-len", "64")

    def test_texts_and_ids_are_as_in_transformers(self):
        for prompt in self.golden:
            if "types" in prompt:
                continue
            for given in [prompt["ids"], *([prompt["text"]] if "text" in prompt else [])]:
                item, = self.ok("/v1/embeddings", {"input": given})["data"]
                self.near(item["embedding"], prompt["vector"])

    def test_a_text_is_whole(self):
        self.refused("/v1/embeddings", {"input": [9] * 65}, "65 tokens", "64 tokens")
        self.refused("/v1/embeddings", {"input": "a " * 63}, "65 tokens")
        cut = self.ok("/v1/embeddings", {"input": "a " * 63, "truncate_prompt_tokens": -1})
        self.assertEqual(cut["usage"]["prompt_tokens"], 64)

    def test_what_it_does_not_have(self):
        self.refused("/v1/completions", {"prompt": "a"}, "embeddings and no text")
        self.refused("/classify", {"input": "a"}, "/v1/embeddings")


class CrossEncoder(Tiny):
    model = "rank_xlmr"
    flags = ("--max-model-len", "64")

    def test_a_pair_is_as_in_transformers(self):
        pair = next(prompt for prompt in self.golden if isinstance(prompt.get("text"), list))
        query, document = pair["text"]
        item, = self.ok("/score", {"text_1": query, "text_2": document})["data"]
        self.near([item["score"]], pair["vector"])
        ranked = self.ok("/rerank", {"query": query, "documents": ["zebra", document]})
        self.assertIn(item["score"], [result["relevance_score"] for result in ranked["results"]])
        self.assertEqual(ranked["results"][0]["relevance_score"], max(r["relevance_score"] for r in ranked["results"]))

    def test_long_documents(self):
        error = self.refused("/rerank", {"query": "a", "documents": ["b" * 100]}, "tokens are too many", "64 tokens")
        self.assertEqual(error["param"], "documents")
        cut = self.ok("/score", {"text_1": "a", "text_2": "b" * 100, "truncate_prompt_tokens": -1})
        self.assertEqual(cut["usage"]["prompt_tokens"], 64)
        self.refused("/score", {"text_1": "a" * 100, "text_2": "b", "truncate_prompt_tokens": -1}, "truncate_prompt_tokens: 64")


class BertClassifier(Tiny):
    model = "classify_bert"
    flags = ("--max-model-len", "80")

    def test_classes(self):
        texts = [prompt for prompt in self.golden if isinstance(prompt.get("text"), str)]
        answer = self.ok("/classify", {"input": [prompt["text"] for prompt in texts]})
        for prompt, item in zip(texts, answer["data"], strict=True):
            self.near(item["probs"], prompt["vector"])
        self.refused("/score", {"text_1": "a", "text_2": "b"}, "3 labels")


class Generator(Tiny):
    model = "judge_qwen3"
    flags = ("--runner", "generate")

    def test_it_has_no_vectors(self):
        self.refused("/v1/embeddings", {"input": "a"}, "--runner pooling")
        self.refused("/rerank", {"query": "a", "documents": ["b"]}, "--runner pooling")
        self.assertEqual(len(self.ok("/v1/completions", {"prompt": "a", "max_tokens": 3, "ignore_eos": True})["choices"]), 1)


class Command(unittest.TestCase):
    def run_embed(self, model, *flags, code=0, given=None):
        done = subprocess.run([BIN, "embed", str(TINY / model), *SETTINGS, *flags], input=given, capture_output=True, text=True,
                              timeout=TIMEOUT, env=clean_environment())
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_a_file(self):
        lines = ["plain text", '"in quotes"', json.dumps({"text": "an object"}), "", json.dumps({"token_ids": [7, 8]}),
                 '{"neither": 1}', "a" * 300]
        with tempfile.TemporaryDirectory() as folder:
            path, out = Path(folder) / "in.txt", Path(folder) / "out.jsonl"
            path.write_text("\n".join(lines) + "\n")
            done = self.run_embed("embed_qwen3", "-i", str(path), "-o", str(out), code=1)
            self.assertIn("2 of 6 texts failed", done.stderr)
            results = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual([result["index"] for result in results], list(range(6)))
        self.assertEqual(["error" in result for result in results], [False] * 4 + [True] * 2)
        self.assertEqual([result["num_tokens"] for result in results[:4]], [11, 10, 10, 2])
        given = self.run_embed("embed_qwen3", "-p", "plain text", "-p", "in quotes").stdout
        self.assertEqual([json.loads(line) for line in given.splitlines()], results[:2])
        piped = self.run_embed("embed_qwen3", "-i", "-", "--dimensions", "8", given="plain text\n").stdout
        self.assertEqual(len(json.loads(piped)["embedding"]), 8)

    def test_an_array_of_numpy(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "out.npy"
            done = self.run_embed("embed_qwen3", "-o", str(path), "-p", "one", "-p", "a" * 300, "-p", "two", code=1)
            data = path.read_bytes()
        self.assertIn("text 1: ", done.stderr)
        self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
        size = int.from_bytes(data[8:10], "little")
        head = ast.literal_eval(data[10 : 10 + size].decode())
        self.assertEqual(head, {"descr": "<f4", "fortran_order": False, "shape": (3, 32)})
        self.assertEqual((10 + size) % 64, 0)
        values = array.array("f", data[10 + size :])
        lines = self.run_embed("embed_qwen3", "-p", "one", "-p", "two").stdout.splitlines()
        self.assertEqual([list(values[:32]), list(values[64:])],
                         [list(array.array("f", json.loads(line)["embedding"])) for line in lines])
        self.assertTrue(all(math.isnan(value) for value in values[32:64]))

    def test_labels(self):
        prompt = golden("classify_llama")[1]
        line = self.run_embed("classify_llama", "-i", "-", given=json.dumps({"token_ids": prompt["ids"]})).stdout
        for got, wanted in zip(json.loads(line)["probs"], prompt["vector"]):
            self.assertAlmostEqual(got, wanted, 4)

    def test_two_ranks(self):
        prompts = golden("embed_qwen3")
        given = "\n".join(json.dumps({"token_ids": prompt["ids"]}) for prompt in prompts)
        lines = self.run_embed("embed_qwen3", "-tp", "2", "-i", "-", given=given).stdout.splitlines()
        for prompt, line in zip(prompts, lines, strict=True):
            for got, wanted in zip(json.loads(line)["embedding"], prompt["vector"], strict=True):
                self.assertAlmostEqual(got, wanted, 4)
        self.assertIn("pipeline", self.run_embed("embed_qwen3", "-pp", "2", "-p", "a", code=3).stderr)

    def test_usage(self):
        self.run_embed("embed_qwen3", code=2)
        self.run_embed("embed_qwen3", "-p", "a", "-i", "-", code=2)
        self.assertIn("no head", self.run_embed("embed_qwen3", "-p", "a", "--runner", "generate", code=3).stderr)


if __name__ == "__main__":
    unittest.main()
