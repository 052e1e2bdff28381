#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tool call and the answer that uses its result. Needs `pip install openai`.

usage: tools.py [URL]     default http://127.0.0.1:8000

With tool_choice "required" a grammar lets the model write calls alone, with arguments of the function's schema, so this
works with a model as small as SmolLM2-135M. With "auto" the model decides, and needs training for it.
"""
import json
import os
import sys

import openai

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("WARPROW_URL", "http://127.0.0.1:8000")
TOOLS = [{"type": "function", "function": {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}},
                   "required": ["city"], "additionalProperties": False}}}]


def get_weather(city):
    return {"city": city, "celsius": 21, "sky": "clear"}


with openai.OpenAI(base_url=URL + "/v1", api_key=os.environ.get("WARPROW_API_KEY", "none")) as client:
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "What is the weather in Rome?"}]
    first = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, tool_choice="required",
                                           parallel_tool_calls=False, temperature=0, max_tokens=64)
    message = first.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls:
        print("call:  ", call.function.name, call.function.arguments)
        # max_tokens may cut a call off; then its arguments do not parse and the finish reason is "length".
        result = get_weather(**json.loads(call.function.arguments))
        print("result:", result)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    second = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, tool_choice="none",
                                            temperature=0, max_tokens=64)
    print("answer:", second.choices[0].message.content)
