#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The unmodified `anthropic` package against `warprow serve`.

Usage and environment as tests/e2e/server_test.py. The package comes from tools/fetch_clients.sh; without it the exit status is
77, which ctest shows as skipped.
"""

import asyncio
import sys
import unittest

import client_env

client_env.need("anthropic", "anthropic")

import anthropic  # noqa: E402

import server_test  # noqa: E402
from server_test import MODEL, Server  # noqa: E402

QUESTION = [{"role": "user", "content": "What is gravity?"}]
GREEDY = {"extra_body": {"temperature": 0}}  # the package has no parameter for it
TOOL = {"name": "get_weather", "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"],
                         "additionalProperties": False}}


class Anthropic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", "k")
        cls.url = f"http://127.0.0.1:{cls.server.port}"
        cls.client = anthropic.Anthropic(base_url=cls.url, api_key="k", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0

    def create(self, **fields):
        return self.client.messages.create(**{"model": MODEL, "max_tokens": 12, "messages": QUESTION, **GREEDY, **fields})

    def test_whole_and_stream(self):
        whole = self.create()
        self.assertEqual((whole.stop_reason, whole.role, len(whole.content)), ("max_tokens", "assistant", 1))
        self.assertEqual(whole.usage.output_tokens, 12)
        with self.client.messages.stream(model=MODEL, max_tokens=12, messages=QUESTION, **GREEDY) as stream:
            self.assertEqual("".join(stream.text_stream), whole.content[0].text)
            final = stream.get_final_message()
        self.assertEqual(final.stop_reason, "max_tokens")
        self.assertEqual(final.usage.output_tokens, 12)
        self.assertEqual(final.usage.input_tokens + final.usage.cache_read_input_tokens,
                         whole.usage.input_tokens + whole.usage.cache_read_input_tokens)

    def test_count_tokens(self):
        whole = self.create(system="Be brief.")
        count = self.client.messages.count_tokens(model=MODEL, messages=QUESTION, system="Be brief.")
        self.assertEqual(count.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)

    def test_async(self):
        async def run():
            async with anthropic.AsyncAnthropic(base_url=self.url, api_key="k", max_retries=0) as client:
                answers = await asyncio.gather(*(client.messages.create(model=MODEL, max_tokens=6, messages=QUESTION, **GREEDY) for _ in range(3)))
                async with client.messages.stream(model=MODEL, max_tokens=6, messages=QUESTION, **GREEDY) as stream:
                    streamed = await stream.get_final_text()
            return {answer.content[0].text for answer in answers}, streamed

        whole, streamed = asyncio.run(run())
        self.assertEqual(whole, {streamed})

    def test_stop_sequence(self):
        text = self.create().content[0].text
        stop = text.split()[2]
        stopped = self.create(stop_sequences=[stop])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", stop))
        self.assertEqual(stopped.content[0].text, text[:text.index(stop)])

    def test_prefill_goes_on(self):
        answer = self.create(messages=[*QUESTION, {"role": "assistant", "content": "Gravity is"}], max_tokens=4)
        self.assertTrue(answer.content[0].text.startswith(" "), answer.content)

    def test_tools_for_two_turns(self):
        choice = {"type": "tool", "name": "get_weather"}
        with self.client.messages.stream(model=MODEL, max_tokens=60, messages=QUESTION, tools=[TOOL], tool_choice=choice) as stream:
            first = stream.get_final_message()
        call = first.content[-1]
        self.assertEqual((first.stop_reason, call.type, call.name), ("tool_use", "tool_use", "get_weather"))
        self.assertEqual(list(call.input), ["city"])
        whole = self.create(tools=[TOOL], tool_choice=choice, max_tokens=60)
        self.assertEqual(list(whole.content[-1].input), ["city"])
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees"}]}
        turns = [*QUESTION, {"role": "assistant", "content": first.content}, result]
        second = self.create(messages=turns, tools=[TOOL], max_tokens=5)
        self.assertEqual(second.usage.output_tokens, 5)

    def test_schema(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"],
                  "additionalProperties": False}
        answer = self.create(output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=30)
        self.assertRegex(answer.content[0].text, r'^\{\s*"n"\s*:\s*\d+\s*\}$')

    def test_errors(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.create(model="no-such-model")
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.create(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}])
        self.assertIn("messages[0].content[0]", str(caught.exception))
        with anthropic.Anthropic(base_url=self.url, api_key="wrong", max_retries=0) as other:
            with self.assertRaises(anthropic.AuthenticationError):
                other.messages.create(model=MODEL, max_tokens=1, messages=QUESTION)
        with anthropic.Anthropic(base_url=self.url, auth_token="k", api_key=None, max_retries=0) as other:
            other.messages.create(model=MODEL, max_tokens=1, messages=QUESTION)


if __name__ == "__main__":
    sys.exit(server_test.main())
