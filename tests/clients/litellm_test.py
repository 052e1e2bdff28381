#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The unmodified `litellm` package, which many gateways are made of, against `warprow serve`.

Usage and environment as tests/e2e/server_test.py. The package comes from tools/fetch_clients.sh; without it the exit status is 77.
"""

import asyncio
import json
import os
import sys
import unittest

import client_env

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise the import requests a file from GitHub
client_env.need("litellm", "litellm")

import litellm  # noqa: E402

import server_test  # noqa: E402
from server_test import CHAT, MODEL, PROMPT, Server  # noqa: E402

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"],
                   "additionalProperties": False}}}
SCHEMA = {"type": "object", "properties": {"celsius": {"type": "integer"}, "sky": {"type": "string", "maxLength": 12}},
          "required": ["celsius", "sky"], "additionalProperties": False}


class LiteLLM(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", "k", "--served-model-name", MODEL, "--served-model-name", "org/name")
        cls.wish = {"api_base": f"http://127.0.0.1:{cls.server.port}/v1", "api_key": "k", "num_retries": 0, "max_retries": 0}

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def chat(self, provider="hosted_vllm", **more):
        return litellm.completion(model=f"{provider}/{MODEL}", **{"messages": CHAT, "temperature": 0, "max_tokens": 12, **self.wish, **more})

    def test_completion_and_stream(self):
        for provider in ("hosted_vllm", "openai"):
            whole = self.chat(provider)
            self.assertEqual(whole.choices[0].finish_reason, "length")
            self.assertEqual(whole.usage.completion_tokens, 12)
            chunks = list(self.chat(provider, stream=True, stream_options={"include_usage": True}))
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            self.assertEqual(text, whole.choices[0].message.content)
            self.assertEqual(chunks[-1].usage.total_tokens, whole.usage.total_tokens)
            rebuilt = litellm.stream_chunk_builder(chunks, messages=CHAT)
            self.assertEqual(rebuilt.choices[0].message.content, text)

    def test_async(self):
        async def both():
            wish = {"model": f"hosted_vllm/{MODEL}", "messages": CHAT, "temperature": 0, "max_tokens": 12, **self.wish}
            whole = await litellm.acompletion(**wish)
            stream = await litellm.acompletion(**wish, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return whole.choices[0].message.content, text
        whole, text = asyncio.run(both())
        self.assertEqual(whole, text)

    def test_text_completion(self):
        for provider in ("hosted_vllm", "text-completion-openai"):
            answer = litellm.text_completion(model=f"{provider}/{MODEL}", prompt=PROMPT, temperature=0, max_tokens=8, **self.wish)
            self.assertEqual(answer.usage.completion_tokens, 8, provider)
            self.assertTrue(answer.choices[0].text)

    def test_tools(self):
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            # With the provider hosted_vllm it would drop additionalProperties, and a small model would add fields
            # endlessly.
            wish = {"provider": "openai", "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 200}
            call = self.chat(**wish).choices[0].message.tool_calls[0]
            self.assertEqual(call.function.name, "get_weather")
            self.assertEqual(set(json.loads(call.function.arguments)), {"city"})
            streamed = litellm.stream_chunk_builder(list(self.chat(**wish, stream=True)))
            self.assertEqual(streamed.choices[0].message.tool_calls[0].function.arguments, call.function.arguments)
            self.assertEqual(streamed.choices[0].finish_reason, "tool_calls")

    def test_structured_output(self):
        wish = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA}}
        answer = json.loads(self.chat(response_format=wish, max_tokens=60).choices[0].message.content)
        self.assertEqual(set(answer), {"celsius", "sky"})
        self.assertTrue(self.chat(response_format={"type": "json_object"}).choices[0].message.content.lstrip().startswith("{"))

    def test_other_parameters_get_through(self):
        answer = self.chat(n=2, temperature=1, seed=3, top_k=5, min_p=0.1, stop=["\n\n"], logprobs=True, top_logprobs=2, user="u",
                           extra_body={"repetition_penalty": 1.1, "return_token_ids": False})
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assertEqual(len(answer.choices[0].logprobs.content[0].top_logprobs), 2)

    def test_responses(self):
        answer = litellm.responses(model=f"openai/{MODEL}", input="What is gravity?", max_output_tokens=16, temperature=0, **self.wish)
        self.assertEqual(answer.usage.output_tokens, 16)

    def test_errors_are_mapped(self):
        for expected, more in ((litellm.AuthenticationError, {"api_key": "wrong"}),
                               (litellm.BadRequestError, {"temperature": 9}),
                               (litellm.ContextWindowExceededError, {"messages": [{"role": "user", "content": "x " * 5000}]})):
            with self.assertRaises(expected):
                self.chat(**more)
        with self.assertRaises(litellm.NotFoundError):
            litellm.completion(model="hosted_vllm/nobody", messages=CHAT, **self.wish)
        with self.assertRaises(litellm.InternalServerError):
            self.chat(api_base="http://127.0.0.1:1/v1")
        with self.assertRaises(litellm.NotFoundError):  # the server has no embeddings endpoint
            litellm.embedding(model=f"hosted_vllm/{MODEL}", input=["x"], **self.wish)

    def test_a_name_with_a_slash(self):
        answer = litellm.completion(model="hosted_vllm/org/name", messages=CHAT, max_tokens=2, **self.wish)
        self.assertEqual(answer.usage.completion_tokens, 2)


if __name__ == "__main__":
    sys.exit(server_test.main())
