#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Agent frameworks, unmodified, against `warprow serve`: openai-agents over /v1/responses, pydantic-ai over /v1/messages and
/v1/responses. Each run calls a tool with forced arguments, gives the model the tool's result and ends with an answer.

The default model is small, so the run is forced where a choice of the model would decide it: the first turn by tool_choice,
whose grammar allows the tool's calls alone. What the model writes afterwards is free.

Usage and environment as tests/e2e/server_test.py. The packages come from tools/fetch_clients.sh; without them the exit status
is 77, which ctest shows as skipped.
"""

import asyncio
import sys
import unittest
from typing import Literal

import client_env

client_env.need("agents", "agents", "pydantic_ai")

import agents  # noqa: E402
import openai  # noqa: E402
from pydantic import BaseModel, ConfigDict  # noqa: E402
from pydantic_ai import Agent, ToolOutput  # noqa: E402
from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturnPart  # noqa: E402
from pydantic_ai.models.anthropic import AnthropicModel  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

import server_test  # noqa: E402
from server_test import MODEL, Server  # noqa: E402

City = Literal["Paris", "Oslo"]
QUESTION = "What is the weather in Paris?"
WEATHER = {"Paris": "18 degrees and sunny", "Oslo": "4 degrees and rain"}


class Report(BaseModel):
    model_config = ConfigDict(extra="forbid")  # the grammar allows these members alone, over /v1/messages too

    city: City
    warm: bool


class Served(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", "k")
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def requests_to(self, path):
        """How many the server answered with 200."""
        lines = self.server.ask("GET", "/metrics", headers={"Authorization": "Bearer k"})[2].decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("warprow:http_requests_total") and f'"{path}"' in line and '"2' in line)


class OpenAIAgents(Served):
    """The Agents SDK's default: the Responses API."""

    async def asyncSetUp(self):
        agents.set_tracing_disabled(True)
        client = openai.AsyncOpenAI(base_url=self.url + "/v1", api_key="k", max_retries=0)
        self.addAsyncCleanup(client.close)
        self.model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
        self.called = called = []

        @agents.function_tool
        def get_weather(city: City) -> str:
            """The weather of a city."""
            called.append(city)
            return WEATHER[city]

        self.agent = agents.Agent(
            name="Weather", instructions="Use the tool, then answer briefly.", model=self.model, tools=[get_weather],
            model_settings=agents.ModelSettings(tool_choice="get_weather", temperature=0, max_tokens=60, parallel_tool_calls=False))

    def check(self, result):
        """One call, its result and an answer: the SDK resets tool_choice after the first turn."""
        kinds = [type(item).__name__ for item in result.new_items]
        self.assertEqual(kinds[:2], ["ToolCallItem", "ToolCallOutputItem"], kinds)
        self.assertEqual(len(self.called), 1)
        self.assertEqual(result.new_items[1].output, WEATHER[self.called[0]])
        self.assertIsInstance(result.final_output, str)
        self.assertEqual(result.context_wrapper.usage.requests, 2)
        self.assertGreater(result.context_wrapper.usage.output_tokens, 0)

    async def test_a_tool_and_an_answer(self):
        self.check(await agents.Runner.run(self.agent, QUESTION, max_turns=4))

    async def test_streamed(self):
        result = agents.Runner.run_streamed(self.agent, QUESTION, max_turns=4)
        kinds = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
        self.check(result)
        for kind in ("response.created", "response.function_call_arguments.delta", "response.output_text.delta", "response.completed"):
            self.assertIn(kind, kinds)

    async def test_a_handoff(self):
        """The first agent must hand over to the second, which answers."""
        second = agents.Agent(name="Poet", instructions="Answer with a short sentence.", model=self.model,
                              model_settings=agents.ModelSettings(temperature=0, max_tokens=24))
        first = agents.Agent(name="Desk", instructions="Hand over.", model=self.model, handoffs=[second],
                             model_settings=agents.ModelSettings(tool_choice="transfer_to_poet", temperature=0, max_tokens=40, parallel_tool_calls=False))
        result = await agents.Runner.run(first, "Hello", max_turns=3)
        self.assertEqual(result.last_agent.name, "Poet")
        self.assertTrue(result.final_output)

    async def test_a_form_of_output(self):
        agent = agents.Agent(name="Reporter", instructions="Report.", model=self.model, output_type=Report,
                             model_settings=agents.ModelSettings(temperature=0, max_tokens=60))
        result = await agents.Runner.run(agent, "Paris has 18 degrees.")
        self.assertIsInstance(result.final_output, Report)


class PydanticAI(Served):
    def setUp(self):
        anthropic = AnthropicProvider(api_key="k", base_url=self.url)
        of_openai = OpenAIProvider(api_key="k", base_url=self.url + "/v1")
        self.models = {"/v1/messages": AnthropicModel(MODEL, provider=anthropic),
                       "/v1/responses": OpenAIResponsesModel(MODEL, provider=of_openai),
                       "/v1/chat/completions": OpenAIChatModel(MODEL, provider=of_openai)}

    async def both_turns(self, model, stream):
        """An output tool makes pydantic-ai force a tool in every turn: the weather, which is offered once, then the report."""
        agent = Agent(model, output_type=ToolOutput(Report, name="report"), instructions="Use the tools.",
                      model_settings={"temperature": 0, "max_tokens": 80, "parallel_tool_calls": False}, retries=4)
        called = []

        async def once(_, tool):
            return None if called else tool

        @agent.tool_plain(prepare=once)
        def get_weather(city: City) -> str:
            """The weather of a city."""
            called.append(city)
            return WEATHER[city]

        if stream:
            async with agent.run_stream(QUESTION) as result:
                output = await result.get_output()
                messages = result.all_messages()
        else:
            result = await agent.run(QUESTION)
            output, messages = result.output, result.all_messages()
        self.assertIsInstance(output, Report)
        calls = [part.tool_name for message in messages if isinstance(message, ModelResponse) for part in message.parts
                 if isinstance(part, ToolCallPart)]
        self.assertEqual(calls, ["get_weather", "report"])
        returns = [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        self.assertEqual([WEATHER[city] for city in called], [one for one in returns if one in WEATHER.values()])
        return calls

    async def test_tools(self):
        for path, model in self.models.items():
            for stream in (False, True):
                with self.subTest(path, stream=stream):
                    before = self.requests_to(path)
                    calls = await self.both_turns(model, stream)
                    self.assertEqual(self.requests_to(path) - before, len(calls))


if __name__ == "__main__":
    sys.exit(server_test.main())
