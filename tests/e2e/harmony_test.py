#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpt-oss's format from `warprow serve`: a tiny model with random weights, harmony's special tokens, and a template.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/harmony_test.py [-k NAME]

The weights are random, so only a grammar makes an answer; the markers come by it, or by logit_bias.
"""

import json
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from server_test import Server  # noqa: E402

SPECIAL = ["<|return|>", "<|call|>", "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|endoftext|>"]
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["sum"],
          "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "other", "parameters": SCHEMA}}
MESSAGES = [{"role": "user", "content": "What is 4+3?"}]


def alphabet():
    """GPT-2's characters for the 256 bytes, in order of the characters."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(code) for code in (*printed, *range(0x100, 0x144))]


def write_model(folder):
    """A model directory without weights. Printable ASCII alone makes text that is easy to read in a failure."""
    vocab = {text: i for i, text in enumerate([*SPECIAL, *alphabet()])}
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, text in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level,
                 "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
              "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(vocab),
              "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
              "hidden_act": "silu", "eos_token_id": 0}
    files = {"config.json": config, "tokenizer.json": tokenizer, "tokenizer_config.json": {"eos_token": "<|return|>"},
             "generation_config.json": {"eos_token_id": [0, 1, 7]}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    template = HERE.parent / "text" / "templates" / "harmony.jinja"
    (folder / "chat_template.jinja").write_text(template.read_text())


class Harmony(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        write_model(Path(cls.folder.name))
        cls.server = Server("--load-format", "dummy", model=cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def body(self, **fields):
        # Thoughts end soon, and what they hold is text.
        bias = {str(SPECIAL.index("<|end|>")): 4} | fields.pop("more_bias", {})
        return {"messages": MESSAGES, "max_tokens": 1500, "temperature": 1, "seed": 3, "logit_bias": bias, **fields}

    def choices(self, **fields):
        status, answer = self.server.post("/v1/chat/completions", self.body(n=6, **fields))
        self.assertEqual(status, 200, answer)
        return answer["choices"]

    def check_sum(self, text):
        value = json.loads(text)
        self.assertEqual(list(value), ["sum"])
        self.assertIn(value["sum"], range(100))

    def check_clean(self, text):
        self.assertFalse([token for token in SPECIAL if token in (text or "")], text)

    def test_a_format_holds_in_the_final_message(self):
        thoughts = 0
        to_analysis = {str(len(SPECIAL) + alphabet().index("a")): 4}  # the first letter of that channel
        for choice in self.choices(response_format=FORMAT, more_bias=to_analysis):
            self.assertEqual(choice["finish_reason"], "stop", choice)
            self.check_sum(choice["message"]["content"])
            thoughts += "reasoning_content" in choice["message"]
            self.check_clean(choice["message"].get("reasoning_content"))
        self.assertGreater(thoughts, 0)

    def test_a_call_is_forced(self):
        named = {"type": "function", "function": {"name": "add"}}
        for tools, choice_of_tool in (([TOOL], "required"), ([TOOL, OTHER], "required"), ([OTHER, TOOL], named)):
            for choice in self.choices(tools=tools, tool_choice=choice_of_tool):
                self.assertEqual(choice["finish_reason"], "tool_calls", choice)
                [call] = choice["message"]["tool_calls"]
                self.assertIn(call["function"]["name"], ["add"] if choice_of_tool == named else ["add", "other"])
                self.check_sum(call["function"]["arguments"])
                self.check_clean(choice["message"]["content"])

    def test_a_stream_is_the_same(self):
        for fields in ({"response_format": FORMAT}, {"tools": [TOOL], "tool_choice": "required"}):
            status, answer = self.server.post("/v1/chat/completions", self.body(**fields))
            self.assertEqual(status, 200, answer)
            message = answer["choices"][0]["message"]
            got = {"reasoning_content": "", "content": "", "name": "", "arguments": ""}
            for event in self.server.events("/v1/chat/completions", self.body(**fields)):
                delta = event["choices"][0]["delta"]
                for name in ("reasoning_content", "content"):
                    got[name] += delta.get(name) or ""
                for call in delta.get("tool_calls", []):
                    got["name"] += call["function"].get("name", "")
                    got["arguments"] += call["function"]["arguments"]
            calls = [call["function"] for call in message.get("tool_calls", [])]
            self.assertEqual(got, {"reasoning_content": message.get("reasoning_content", ""), "content": message["content"] or "",
                                   "name": "".join(call["name"] for call in calls),
                                   "arguments": "".join(call["arguments"] for call in calls)})

    def test_responses(self):
        body = {"input": "What is 4+3?", "max_output_tokens": 1500, "temperature": 1, "seed": 3, "logit_bias": self.body()["logit_bias"]}
        status, answer = self.server.post("/v1/responses", {**body, "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}})
        self.assertEqual((status, answer["status"]), (200, "completed"), answer)
        self.check_sum(answer["output"][-1]["content"][0]["text"])
        tool = {"type": "function", **TOOL["function"]}
        status, answer = self.server.post("/v1/responses", {**body, "tools": [tool], "tool_choice": "required"})
        self.assertEqual((status, answer["status"]), (200, "completed"), answer)
        self.assertEqual(answer["output"][-1]["type"], "function_call")
        self.check_sum(answer["output"][-1]["arguments"])

    def rendered(self, path, body):
        """The prompt of a request, from the count of its tokens: each byte and each marker is one."""
        status, answer = self.server.post(path, {**body, "logit_bias": {}})
        self.assertEqual(status, 200, answer)
        usage = answer["usage"]
        return usage.get("prompt_tokens", usage.get("input_tokens"))

    def test_reasoning_goes_back_until_an_answer(self):
        """The reasoning before a call is a part of the prompt, in both APIs, until an answer follows it."""
        thought, tool = "I add them.", {"type": "function", **TOOL["function"]}
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{\"sum\": 7}"}}
        def chat(reasoning, *later):
            said = {"role": "assistant", "content": None, "tool_calls": [call], **reasoning}
            result = {"role": "tool", "tool_call_id": "c", "content": "7"}
            return self.rendered("/v1/chat/completions", {"messages": [*MESSAGES, said, result, *later], "tools": [TOOL], "max_tokens": 1})
        added = len("<|start|>assistant<|channel|>analysis<|message|><|end|>")
        for token in SPECIAL:
            added -= "<|start|>assistant<|channel|>analysis<|message|><|end|>".count(token) * (len(token) - 1)
        plain = chat({})
        self.assertEqual(chat({"reasoning_content": thought}) - plain, added + len(thought))
        answer = {"role": "assistant", "content": "7"}
        self.assertEqual(chat({"reasoning_content": thought}, answer, *MESSAGES), chat({}, answer, *MESSAGES))
        def response(*reasoning):
            items = [{"role": "user", "content": MESSAGES[0]["content"]}, *reasoning,
                     {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{\"sum\": 7}"},
                     {"type": "function_call_output", "call_id": "c", "output": "7"}]
            return self.rendered("/v1/responses", {"input": items, "tools": [tool], "max_output_tokens": 1})
        item = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]}
        self.assertEqual((response(), response(item)), (plain, plain + added + len(thought)))

    def test_a_name_that_is_no_word_is_refused(self):
        tool = {"type": "function", "function": {"name": "a\" | /.*/"}}
        status, answer = self.server.post("/v1/chat/completions", self.body(tools=[tool, TOOL], tool_choice="required"))
        self.assertEqual(status, 400, answer)
        self.assertIn("tools: the name", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
