#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Structured answers of a model that thinks, from `warprow serve`: the default model with a template that opens <think>.

  WARPROW_BIN=build/cpu-release/warprow tests/e2e/thinking_test.py [-k NAME]

Environment as in server_test.py. Exits 77, which ctest shows as skipped, if the model is not on this machine.
"""

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gguf_parts import with_template  # noqa: E402
from server_test import MODEL, Server  # noqa: E402

FILE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warprow" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n<think>\n" \
    "{% if enable_thinking == false %}\n</think>\n\n{% endif %}"
THOUGHT = "Let me add."
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["sum"],
          "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}


def chat(**fields):
    """A chat with examples, so that the small model repeats the same thought each time."""
    messages = []
    for a, b in ((2, 2), (3, 4), (1, 5), (6, 2)):
        messages += [{"role": "user", "content": f"What is {a}+{b}?"},
                     {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n{a + b}"}]
    return {"messages": [*messages, {"role": "user", "content": "What is 4+3?"}], "temperature": 0, "max_tokens": 100, **fields}


class Case(unittest.TestCase):
    """Starts a server with the default model and another chat template."""

    template, names, flags = "", {}, ()

    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(with_template(FILE.read_bytes(), cls.template, cls.names))
            file.flush()
            cls.server = Server(*cls.flags, model=file.name)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def choice(self, **fields):
        status, answer = self.server.post("/v1/chat/completions", chat(**fields))
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]

    def check_sum(self, text):
        value = json.loads(text)
        self.assertEqual(list(value), ["sum"])
        self.assertIn(value["sum"], range(100))


class OpenedByTheTemplate(Case):
    """Each tag is several tokens."""

    template, flags = TEMPLATE, ("--reasoning-parser", "qwen3")

    def streamed(self, **fields):
        """Returns reasoning, content, the arguments of calls, and the finish reason."""
        out = {"reasoning_content": "", "content": "", "arguments": ""}
        for event in self.server.events("/v1/chat/completions", chat(**fields)):
            choice = event["choices"][0]
            for name in ("reasoning_content", "content"):
                out[name] += choice["delta"].get(name) or ""
            for call in choice["delta"].get("tool_calls", []):
                out["arguments"] += call["function"]["arguments"]
            reason = choice["finish_reason"]
        return out, reason

    def test_the_model_thinks_as_the_examples_do(self):
        self.assertEqual(self.choice()["message"]["reasoning_content"], THOUGHT)

    def test_a_format_holds_behind_the_thought(self):
        choice = self.choice(response_format=FORMAT)
        self.assertEqual(choice["message"]["reasoning_content"], THOUGHT)
        self.assertEqual(choice["finish_reason"], "stop")
        self.check_sum(choice["message"]["content"])
        parts, reason = self.streamed(response_format=FORMAT)
        self.assertEqual((parts["reasoning_content"], parts["content"], reason), (THOUGHT, choice["message"]["content"], "stop"))
        choice = self.choice(structured_outputs={"choice": ["It is seven.", "I do not know."]})
        self.assertEqual(choice["message"]["reasoning_content"], THOUGHT)
        self.assertIn(choice["message"]["content"], ["It is seven.", "I do not know."])
        choice = self.choice(response_format={"type": "json_object"}, max_tokens=200)
        self.assertEqual(choice["message"]["reasoning_content"], THOUGHT)
        self.assertTrue(choice["message"]["content"].startswith("{"), choice)

    def test_a_call_is_forced_behind_the_thought(self):
        for tool_choice in ("required", {"type": "function", "function": {"name": "add"}}):
            fields = {"tools": [TOOL], "tool_choice": tool_choice, "parallel_tool_calls": False}
            message = self.choice(**fields)["message"]
            self.assertEqual(message["reasoning_content"], THOUGHT)
            self.assertFalse(message["content"])
            [call] = message["tool_calls"]
            self.assertEqual(call["function"]["name"], "add")
            self.check_sum(call["function"]["arguments"])
            parts, reason = self.streamed(**fields)
            self.assertEqual((parts["reasoning_content"], parts["content"]), (THOUGHT, ""))
            self.assertEqual((parts["arguments"], reason), (call["function"]["arguments"], "tool_calls"))

    def test_without_thinking_a_format_holds_at_once(self):
        fields = {"response_format": FORMAT, "chat_template_kwargs": {"enable_thinking": False}}
        message = self.choice(**fields)["message"]
        self.assertNotIn("reasoning_content", message)
        self.check_sum(message["content"])
        parts, reason = self.streamed(**fields)
        self.assertEqual((parts["reasoning_content"], parts["content"], reason), ("", message["content"], "stop"))

    def test_a_budget_ends_the_thought(self):
        for budget in (0, 2):
            choice = self.choice(thinking_token_budget=budget, return_token_ids=True)
            message = choice["message"]
            self.assertTrue(THOUGHT.startswith((message.get("reasoning_content") or "").strip()), message)
            self.assertNotIn("add", message.get("reasoning_content") or "")
            self.assertTrue(message["content"])
            choice = self.choice(thinking_token_budget=budget, response_format=FORMAT)
            self.assertNotIn("add", choice["message"].get("reasoning_content") or "")
            self.check_sum(choice["message"]["content"])
            parts, reason = self.streamed(thinking_token_budget=budget, response_format=FORMAT)
            self.assertEqual((parts["content"], reason), (choice["message"]["content"], "stop"))
        whole = self.choice()["message"]
        for budget in (-1, 500):
            self.assertEqual(self.choice(thinking_token_budget=budget)["message"], whole)
        status, answer = self.server.post("/v1/completions", {"prompt": "x", "thinking_token_budget": 3})
        self.assertEqual((status, answer["error"]["param"]), (400, "thinking_token_budget"))

    def test_an_answer_may_end_in_the_thought(self):
        for fields, reason in (({"max_tokens": 2}, "length"), ({"stop": ["add"]}, "stop")):
            choice = self.choice(response_format=FORMAT, **fields)
            self.assertEqual(choice["finish_reason"], reason)
            self.assertEqual(choice["message"]["content"], "")
            self.assertTrue(THOUGHT.startswith(choice["message"]["reasoning_content"].rstrip()), choice)

    def test_an_answer_that_goes_on_may_have_begun_to_think(self):
        body = chat(response_format=FORMAT, add_generation_prompt=False, continue_final_message=True)
        body["messages"].append({"role": "assistant", "content": "<think>\nLet"})
        status, answer = self.server.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        message = answer["choices"][0]["message"]
        self.assertEqual(message["reasoning_content"].strip(), THOUGHT.removeprefix("Let "))
        self.check_sum(message["content"])

    def test_tools_have_definitions_of_their_own(self):
        def tool(name, kind):
            return {"type": "function", "function": {"name": name, "parameters": {
                "type": "object", "properties": {"d": {"$ref": "#/$defs/D"}}, "required": ["d"], "additionalProperties": False,
                "$defs": {"D": {"type": kind}}}}}
        status, answer = self.server.post("/v1/chat/completions", chat(
            tools=[tool("first", "boolean"), tool("second", "null")], tool_choice="required", n=8, temperature=1, seed=1,
            chat_template_kwargs={"enable_thinking": False}, parallel_tool_calls=False))
        self.assertEqual(status, 200, answer)
        values = {"first": set(), "second": set()}
        for choice in answer["choices"]:
            for call in choice["message"]["tool_calls"]:
                values[call["function"]["name"]].add(json.loads(call["function"]["arguments"])["d"])
        self.assertTrue(values["first"] and values["first"] <= {True, False}, values)
        self.assertLessEqual(values["second"], {None}, values)


class OpenedByTheModel(Case):
    """Each tag is one token, and the template has neither tag. Biases decide whether the model thinks."""

    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    names = {7: (b"<gh_stars>", b"<think>"), 8: (b"<issue_start>", b"</think>")}
    thinks, does_not_think = {"7": 50, "8": 100}, {"7": -100}

    def test_a_model_that_thinks_does_so_first(self):
        for fields in ({"response_format": FORMAT}, {"tools": [TOOL], "tool_choice": "required"}):
            choice = self.choice(logit_bias=self.thinks, return_token_ids=True, **fields)
            self.assertEqual(choice["token_ids"][:2], [7, 8])
            self.assertNotIn(7, choice["token_ids"][2:])
            self.assertNotIn(8, choice["token_ids"][2:])
            message = choice["message"]
            self.check_sum(message["content"] if "response_format" in fields else message["tool_calls"][0]["function"]["arguments"])

    def test_a_budget_ends_what_the_model_began(self):
        fields = {"logit_bias": {"7": 50, "8": -100}, "return_token_ids": True, "ignore_eos": True, "max_tokens": 12}
        ids = self.choice(thinking_token_budget=3, **fields)["token_ids"]
        self.assertEqual((ids[0], ids.index(8)), (7, 4))
        self.assertNotIn(8, self.choice(**fields)["token_ids"])

    def test_one_that_does_not_keeps_to_the_format(self):
        message = self.choice(response_format=FORMAT, logit_bias=self.does_not_think)["message"]
        self.assertNotIn("reasoning_content", message)
        self.check_sum(message["content"])


def main():
    if MODEL != "smollm2" or not FILE.exists():
        print(f"skipped: {FILE} is not there, or another model was asked for", file=sys.stderr)
        return 77
    return 0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
