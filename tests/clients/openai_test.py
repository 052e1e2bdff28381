#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The unmodified `openai` package against `warprow serve`.

Usage and environment as tests/e2e/server_test.py. The package comes from tools/fetch_clients.sh; without it the exit status is
77, which ctest shows as skipped.
"""

import json
import sys
import unittest
from pathlib import Path

import client_env

client_env.need("openai", "openai")

import openai  # noqa: E402
import pydantic  # noqa: E402

import server_test  # noqa: E402
from server_test import CHAT, MODEL, PROMPT, Server  # noqa: E402


class Weather(pydantic.BaseModel):
    """The schema of a structured answer."""

    model_config = pydantic.ConfigDict(extra="forbid")
    celsius: int
    sky: str = pydantic.Field(max_length=12)


TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"],
                   "additionalProperties": False}}}


class OpenAI(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", "k")
        cls.url = f"http://127.0.0.1:{cls.server.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="k", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)

    def test_completions(self):
        whole = self.client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=12, logprobs=2)
        choice = whole.choices[0]
        self.assertEqual(choice.finish_reason, "length")
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        self.assertEqual(whole.usage.completion_tokens, 12)
        with self.client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=12, stream=True) as stream:
            self.assertEqual("".join(chunk.choices[0].text for chunk in stream), choice.text)
        echoed = self.client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=12, echo=True)
        self.assertEqual(echoed.choices[0].text, PROMPT + choice.text)
        ids = self.client.post("/../tokenize", body={"prompt": PROMPT}, cast_to=object)["tokens"]
        by_ids = self.client.completions.create(model=MODEL, prompt=[ids, ids], temperature=0, max_tokens=12)
        self.assertEqual([choice.text for choice in by_ids.choices], [choice.text] * 2)

    def test_chat(self):
        wish = {"model": MODEL, "messages": CHAT, "temperature": 0, "max_completion_tokens": 16}
        whole = self.client.chat.completions.create(**wish, logprobs=True, top_logprobs=3)
        choice = whole.choices[0]
        self.assertEqual(len(choice.logprobs.content), 16)
        self.assertEqual(len(choice.logprobs.content[0].top_logprobs), 3)
        stream = self.client.chat.completions.create(**wish, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        self.assertEqual(chunks[-1].usage.total_tokens, whole.usage.total_tokens)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, choice.message.content)
        parts = [{"role": "user", "content": [{"type": "text", "text": CHAT[0]["content"]}]}]
        same = self.client.chat.completions.create(**{**wish, "messages": parts})
        self.assertEqual(same.choices[0].message.content, choice.message.content)

    def test_tools(self):
        wish = {"model": MODEL, "messages": CHAT, "tools": [TOOL], "temperature": 0, "max_tokens": 200,
                "parallel_tool_calls": False}
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            whole = self.client.chat.completions.create(**wish, tool_choice=choice)
            call = whole.choices[0].message.tool_calls[0]
            self.assertEqual(call.function.name, "get_weather")
            self.assertEqual(set(json.loads(call.function.arguments)), {"city"})
            with self.client.chat.completions.stream(**wish, tool_choice=choice) as events:
                final = events.get_final_completion()
            self.assertEqual(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments)
            answered = CHAT + [whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}]
            after = self.client.chat.completions.create(model=MODEL, messages=answered, tools=[TOOL], tool_choice="none", max_tokens=8)
            self.assertIsNone(after.choices[0].message.tool_calls)
        plain = self.client.chat.completions.create(**{**wish, "max_tokens": 8}, tool_choice="auto")
        self.assertTrue(plain.choices[0].message.content)

    def test_parse(self):
        answer = self.client.chat.completions.parse(model=MODEL, messages=CHAT, response_format=Weather, temperature=0, max_tokens=100)
        self.assertIsInstance(answer.choices[0].message.parsed, Weather)
        any_json = self.client.chat.completions.create(model=MODEL, messages=CHAT, response_format={"type": "json_object"},
                                                       temperature=0, max_tokens=100)
        self.assertTrue(any_json.choices[0].message.content.startswith("{"))

    def test_responses(self):
        wish = {"model": MODEL, "input": "What is gravity?", "temperature": 0, "max_output_tokens": 12}
        whole = self.client.responses.create(**wish)
        self.assertTrue(whole.output_text)
        with self.client.responses.stream(**wish) as stream:
            final = [event for event in stream][-1]
        self.assertEqual(final.type, "response.incomplete")  # because of max_output_tokens
        self.assertEqual(final.response.output_text, whole.output_text)
        call = self.client.responses.create(
            model=MODEL, input="Weather?", tools=[{"type": "function", **TOOL["function"], "strict": True}],
            tool_choice="required", parallel_tool_calls=False, temperature=0, max_output_tokens=200).output[0]
        self.assertEqual((call.type, call.name), ("function_call", "get_weather"))
        self.assertEqual(set(json.loads(call.arguments)), {"city"})
        parsed = self.client.responses.parse(**{**wish, "max_output_tokens": 100}, text_format=Weather)
        self.assertIsInstance(parsed.output_parsed, Weather)

    def test_errors(self):
        def caught(kind, ask):
            with self.assertRaises(kind) as context:
                ask()
            return context.exception
        create = self.client.chat.completions.create
        error = caught(openai.BadRequestError, lambda: create(model=MODEL, messages=CHAT, temperature=9))
        self.assertEqual((error.status_code, error.param), (400, "temperature"))
        error = caught(openai.BadRequestError, lambda: self.client.completions.create(model=MODEL, prompt=[1] * 5000))
        self.assertEqual(error.type, "context_length_exceeded")
        self.assertIn("maximum context length", error.message)
        caught(openai.NotFoundError, lambda: create(model="other", messages=CHAT))
        wrong_key = openai.OpenAI(base_url=self.url, api_key="x", max_retries=0)
        caught(openai.AuthenticationError, wrong_key.models.list)
        wrong_key.close()
        slow = self.client.with_options(timeout=0.3)
        caught(openai.APITimeoutError, lambda: slow.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=1900, extra_body={"ignore_eos": True}))

    def test_headers(self):
        raw = self.client.completions.with_raw_response.create(
            model=MODEL, prompt="x", max_tokens=1, user="me", extra_headers={"X-Request-Id": "r-1"})
        self.assertEqual(raw.headers["X-Request-Id"], "r-1")
        self.assertEqual(raw.headers["X-Ignored-Params"], "user")
        self.assertEqual(raw.parse().id, "cmpl-r-1")


class Async(unittest.IsolatedAsyncioTestCase):
    async def test_many_at_a_time(self):
        import asyncio
        server = Server()
        try:
            async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
                async def ask(number):
                    answer = await client.completions.create(model=MODEL, prompt=f"{number} and", temperature=0, max_tokens=8)
                    return answer.choices[0].text
                together = await asyncio.gather(*[ask(number) for number in range(12)])
                alone = [await ask(number) for number in range(12)]
            self.assertEqual(together, alone)
        finally:
            self.assertEqual(server.stop(), 0)


class Embeddings(unittest.TestCase):
    """A tiny embedder, whose vectors are in its golden file."""

    def test_vectors(self):
        folder = Path(__file__).resolve().parent.parent / "golden" / "tiny" / "embed_qwen3"
        server = Server("--max-model-len", "128", "--dtype", "float32", "--kv-cache-memory-bytes", "1MiB", model=str(folder))
        try:
            with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="k", max_retries=0) as client:
                prompts = json.loads((folder / "golden.json").read_text())["prompts"]
                got = client.embeddings.create(model=str(folder), input=[prompt["ids"] for prompt in prompts])
                for prompt, item in zip(prompts, got.data, strict=True):  # the client asks for base64
                    self.assertEqual(len(item.embedding), len(prompt["vector"]))
                    for a, b in zip(item.embedding, prompt["vector"]):
                        self.assertAlmostEqual(a, b, 4)
                self.assertEqual(got.usage.prompt_tokens, sum(len(prompt["ids"]) for prompt in prompts))
                floats = client.embeddings.create(model=str(folder), input="a text", encoding_format="float", dimensions=4)
                self.assertEqual(len(floats.data[0].embedding), 4)
                with self.assertRaises(openai.BadRequestError):
                    client.completions.create(model=str(folder), prompt="a")
        finally:
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    sys.exit(server_test.main())
