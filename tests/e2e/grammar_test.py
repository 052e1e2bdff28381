#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Structured output from the `warprow` binary with the default model.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/grammar_test.py [-k NAME]

Environment: WARPROW_BIN, the binary; WARPROW_E2E_MODEL, the model (smollm2); WARPROW_E2E_SCHEMAS, how many random schemas
(60); WARPROW_E2E_FIRST_SCHEMA, the first one's seed (0). Exits 77, which ctest shows as skipped, if the model is not on this
machine. tools/fetch_jsonschema.sh installs the validator.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from random_schemas import random_schema, read_beginning, relaxed

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warprow"
VALIDATOR = CACHE / "deps" / "jsonschema-4.17.3"
sys.path.insert(0, str(VALIDATOR))
try:
    import jsonschema
except ImportError:
    jsonschema = None

BIN = os.environ.get("WARPROW_BIN", "build/cpu-release/warprow")
MODEL = os.environ.get("WARPROW_E2E_MODEL", "smollm2")
NUM_SCHEMAS = int(os.environ.get("WARPROW_E2E_SCHEMAS", "60"))
FIRST_SCHEMA = int(os.environ.get("WARPROW_E2E_FIRST_SCHEMA", "0"))
USAGE = 2


def clean_environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("WARPROW_")}


def generate(*args, stdin=b"", timeout=600):
    return subprocess.run([BIN, "generate", "-m", MODEL, *map(str, args)], input=stdin, capture_output=True, timeout=timeout,
                          env=clean_environment())


def generate_lines(lines, *args):
    """The answers to lines of --prompts-file."""
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    done = generate("--prompts-file", "-", *args, stdin=text, timeout=3600)
    return [json.loads(line) for line in done.stdout.splitlines()], done


def chat(text, **fields):
    return {"messages": [{"role": "user", "content": text}], **fields}


@unittest.skipIf(jsonschema is None, "the validator is absent: tools/fetch_jsonschema.sh brings it")
class RandomSchemas(unittest.TestCase):
    def check_beginning(self, schema, text):
        begun = read_beginning(text)
        if begun is not None:
            jsonschema.Draft202012Validator(relaxed(schema)).validate(begun)

    def test_answers_are_what_their_schemas_say(self):
        schemas = [random_schema(seed) for seed in range(FIRST_SCHEMA, FIRST_SCHEMA + NUM_SCHEMAS)]
        lines = [chat(f"Write JSON with {', '.join(schema['properties'])}.", max_tokens=512, temperature=1, seed=i,
                      structured_outputs={"json": schema}) for i, schema in enumerate(schemas)]
        start = time.monotonic()
        answers, done = generate_lines(lines, "--stats")
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertEqual(len(answers), len(lines))
        num_finished = 0
        num_tokens = 0
        for seed, (schema, answer) in enumerate(zip(schemas, answers), FIRST_SCHEMA):
            with self.subTest(seed=seed):
                choice = answer["choices"][0]
                text = choice["text"]
                num_tokens += len(choice["token_ids"])
                self.assertIn(choice["finish_reason"], ("stop", "length"), answer)
                if choice["finish_reason"] == "stop":
                    num_finished += 1
                    jsonschema.Draft202012Validator(schema).validate(json.loads(text))
                else:
                    self.check_beginning(schema, text)
        print(f"{len(lines)} schemas: {num_finished} finished, {num_tokens} tokens, {time.monotonic() - start:.1f} s",
              file=sys.stderr)
        self.assertGreaterEqual(num_finished, 0.6 * len(lines))


    def test_answers_that_were_cut_begin_like_whole_ones(self):
        schemas = [random_schema(seed) for seed in range(10000, 10040)]
        lines = [chat(f"Write JSON with {', '.join(schema['properties'])}.", max_tokens=3 + i, temperature=1, seed=i,
                      response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
                 for i, schema in enumerate(schemas)]
        answers, done = generate_lines(lines)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        num_cut = 0
        for seed, (schema, answer) in enumerate(zip(schemas, answers), 10000):
            with self.subTest(seed=seed):
                if answer["choices"][0]["finish_reason"] == "length":
                    num_cut += 1
                    self.check_beginning(schema, answer["choices"][0]["text"])
        self.assertGreater(num_cut, 10)


def suite_schemas():
    """The schemas of the JSON Schema Test Suite, draft 2020-12, without remote references, by name."""
    schemas = {}
    for path in sorted((VALIDATOR / "suite" / "draft2020-12").glob("*.json")):
        for group in json.loads(path.read_text()):
            text = json.dumps(group["schema"])
            if "http://localhost" not in text and path.stem not in ("refRemote", "vocabulary"):
                schemas[f"{path.stem}: {group['description']}"] = group["schema"]
    return schemas


@unittest.skipIf(not suite_schemas(), "the public suite is absent: tools/fetch_jsonschema.sh brings it")
class PublicSuite(unittest.TestCase):
    def test_answers_are_valid_or_the_schema_is_refused(self):
        schemas = suite_schemas()
        self.assertGreater(len(schemas), 250)
        lines = [chat("Write a short JSON value.", max_tokens=96, temperature=1, seed=i,
                      structured_outputs={"json": json.dumps(schema)}) for i, schema in enumerate(schemas.values())]
        answers, done = generate_lines(lines)
        self.assertEqual(len(answers), len(lines), done.stderr.decode()[-2000:])
        counts = {"refused": 0, "stop": 0, "length": 0}
        for (name, schema), answer in zip(schemas.items(), answers):
            with self.subTest(name):
                if "error" in answer:
                    counts["refused"] += 1
                    self.assertIn("structured_outputs", answer["error"]["message"])
                    continue
                choice = answer["choices"][0]
                counts[choice["finish_reason"]] += 1
                if choice["finish_reason"] == "stop":
                    jsonschema.Draft202012Validator(schema).validate(json.loads(choice["text"]))
                else:
                    read_beginning(choice["text"])
        print(f"{len(schemas)} schemas of the suite: {counts}", file=sys.stderr)
        self.assertGreater(counts["stop"], counts["length"])
        self.assertGreater(counts["stop"], 0.2 * len(schemas))


class Forms(unittest.TestCase):
    def answer(self, *args):
        done = generate(*args, "--output", "json", "--temperature", 1, "--seed", 5)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return json.loads(done.stdout)["choices"][0]

    def file(self, content):
        path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "given"
        path.write_text(content)
        return path

    def test_each_flag(self):
        choice = self.answer("--chat", "Is the sky blue?", "--choice", "yes,no", "--choice", "perhaps, perhaps not")
        self.assertIn(choice["text"], ["yes", "no", "perhaps", " perhaps not"])
        self.assertEqual(choice["finish_reason"], "stop")
        choice = self.answer("--chat", "A date?", "--regex", r"20\d\d-(0[1-9]|1[0-2])-[0-3]\d")
        self.assertRegex(choice["text"], r"^20\d\d-(0[1-9]|1[0-2])-[0-3]\d$")
        grammar = self.file('start: sum\nsum: NUM ("+" NUM)+ "=" NUM\nNUM: /[1-9][0-9]{0,2}/\n')
        choice = self.answer("--chat", "Add numbers.", "--grammar", grammar, "--max-tokens", 200)
        if choice["finish_reason"] == "stop":
            self.assertRegex(choice["text"], r"^[1-9]\d{0,2}(\+[1-9]\d{0,2})+=[1-9]\d{0,2}$")
        grammar = self.file('root ::= sum\nsum ::= num ("+" num)+ | "(" sum ")"\nnum ::= [1-9] [0-9]{0,2}\n')
        choice = self.answer("--chat", "Add numbers.", "--grammar", grammar, "--max-tokens", 200)
        if choice["finish_reason"] == "stop":
            self.assertRegex(choice["text"], r"^\(*[1-9]\d{0,2}(\+[1-9]\d{0,2})+\)*$")
        schema = self.file('{"type":"object","properties":{"b":{"type":"boolean"},"a":{"type":"null"}},'
                           '"required":["b","a"],"additionalProperties":false}')
        choice = self.answer("--chat", "JSON?", "--json-schema", schema)
        self.assertEqual(list(json.loads(choice["text"])), ["b", "a"], "in the schema's order")
        choice = self.answer("--chat", "A small JSON object?", "--json-object", "--max-tokens", 300)
        if choice["finish_reason"] == "stop":
            self.assertIsInstance(json.loads(choice["text"]), dict)
        else:
            read_beginning(choice["text"])

    def test_every_choice_of_n_has_its_own_place(self):
        done = generate("--chat", "A word?", "--regex", "[a-z]{4,9}[.]", "--n", 8, "--temperature", 1, "--seed", 3, "--output",
                        "json")
        texts = [choice["text"] for choice in json.loads(done.stdout)["choices"]]
        self.assertEqual(len(texts), 8)
        self.assertGreater(len(set(texts)), 1)
        for text in texts:
            self.assertRegex(text, r"^[a-z]{4,9}\.$")

    def test_a_bad_grammar_is_named_with_its_position(self):
        for args, needle in ((("--regex", "a(b"), "at 1(2): unclosed group"), (("--choice", ""), "a choice is empty"),
                             (("--regex", "a", "--json-object"), "exclude each other"),
                             (("--json-schema", "/no/such"), "cannot read the file")):
            done = generate("--chat", "x", *args)
            message = done.stderr.decode()
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(needle, message)
            self.assertEqual(message.count("\n"), 1, message)


class Hostile(unittest.TestCase):
    def test_hostile_grammars_end_alone_and_in_time(self):
        """Each schema is refused or generates within limits. A request running beside them gets the same answer as alone."""
        deep = {}
        for _ in range(40):
            deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
        wide = {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(25000)}}
        hostile = [{"regex": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"}, {"regex": "(.*a.{40}|.*b.{41}|.*c.{42})x"},
                   {"regex": "((a|aa){1,100}b){1,100}c"}, {"regex": "(" * 10000 + "a" + ")" * 10000}, {"json": deep},
                   {"json": wide}, {"json": '{"const":"' + "ab" * 500000 + '"}'}, {"json": "[" * 500000}, {"json": {"$ref": "#"}},
                   {"json": {"type": "array", "minItems": 1000000000}}, {"grammar": "start: start start | start | \"a\""},
                   {"grammar": "start: A\nA: B{1000}\nB: C{1000}\nC: \"a\"{1000}"}, {"choice": ["a" * i for i in range(1, 300)]}]
        plain = [chat(f"Say something about the number {i}.", max_tokens=24, temperature=0) for i in range(4)]
        alone, _ = generate_lines(plain)
        lines = list(plain[:2])
        for entry in hostile:
            lines.append(chat("x", max_tokens=8, temperature=1, seed=1, structured_outputs=entry))
        lines += plain[2:]
        start = time.monotonic()
        answers, done = generate_lines(lines)
        seconds = time.monotonic() - start
        self.assertEqual(len(answers), len(lines), done.stderr.decode()[-2000:])
        self.assertLess(seconds, 90)
        for answer, expected in zip(answers[:2] + answers[-2:], alone):
            self.assertEqual(answer["choices"], expected["choices"])
        for entry, answer in zip(hostile, answers[2:-2]):
            if "error" in answer:
                self.assertRegex(answer["error"]["message"], "structured_outputs|nests deeper", str(entry)[:60])
            else:
                self.assertIn(answer["choices"][0]["finish_reason"], ("stop", "length"), str(entry)[:60])


    def test_rules_against_the_grammar_end_their_request_alone(self):
        plain = chat("Say something about the number 7.", max_tokens=24, temperature=0)
        [alone], _ = generate_lines([plain])
        against = [{"structured_outputs": {"regex": "[0-9]{4}"}, "allowed_token_ids": [0, 1]},  # special tokens
                   {"structured_outputs": {"choice": ["yes"]}, "bad_words": ["yes", "y", "ye"]}]
        answers, done = generate_lines([plain] + [chat("x", max_tokens=8, temperature=1, **entry) for entry in against] + [plain])
        self.assertEqual(len(answers), 4, done.stderr.decode()[-2000:])
        for answer in (answers[0], answers[3]):
            self.assertEqual(answer["choices"], alone["choices"])
        for answer in answers[1:3]:
            self.assertIn("exclude every token", answer["error"]["message"])


class TheTestsOwn(unittest.TestCase):
    def test_beginnings(self):
        for text, value in (("", None), ("{", {}), ('{"a', {}), ('{"a":1', {}), ('{"a":1,', {"a": 1}), ('{"a":[1,{"b":2', {"a": [1, {}]}),
                            ('{"a":tr', {}), ('[1.5e', []), ('["x\\u00', []), ('{"a":1}', {"a": 1}), ("[-", [])):
            self.assertEqual(read_beginning(text), value, text)
        for text in ("}", '{"a"1', "[1 2", "[tru3", "[01", '{"a":1,}', '["\\x', "[,"):
            self.assertRaises(ValueError, read_beginning, text)

    def test_schemas_repeat(self):
        self.assertEqual(random_schema(3), random_schema(3))
        self.assertNotEqual(random_schema(3), random_schema(4))


if __name__ == "__main__":
    if MODEL == "smollm2" and not (CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf").exists():
        print("skipped: the default model is not there: tools/fetch.py smollm2 brings it", file=sys.stderr)
        sys.exit(77)
    unittest.main()
