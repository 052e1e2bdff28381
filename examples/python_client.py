#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A chat with `warprow serve`, whole and streamed: with Python's standard library, then with the openai package.

usage: python_client.py [URL]     default http://127.0.0.1:8000

Without the openai package (`pip install openai`) the second half is skipped.
"""
import json
import os
import sys
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("WARPROW_URL", "http://127.0.0.1:8000")
API_KEY = os.environ.get("WARPROW_API_KEY", "none")  # a server without --api-key takes any
CHAT = {"messages": [{"role": "user", "content": "What is gravity? One sentence."}], "max_tokens": 48, "temperature": 0}


def post(path, body):
    """The open answer; its status is 200, any other one raises urllib.error.HTTPError."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"}
    return urllib.request.urlopen(urllib.request.Request(URL + path, json.dumps(body).encode(), headers), timeout=60)


def with_standard_library():
    with post("/v1/chat/completions", CHAT) as answer:
        whole = json.load(answer)
    print("whole:   ", whole["choices"][0]["message"]["content"])
    print("usage:   ", whole["usage"]["completion_tokens"], "tokens")

    print("streamed: ", end="")
    with post("/v1/chat/completions", {**CHAT, "stream": True}) as events:
        for line in events:
            # An event is a line "data: JSON"; an empty line ends it, and a line ":" is a keep-alive.
            data = line.decode().strip().removeprefix("data: ")
            if not line.startswith(b"data: ") or data == "[DONE]":
                continue
            chunk = json.loads(data)
            if "error" in chunk:  # after the head of a stream errors come as events too
                raise RuntimeError(chunk["error"]["message"])
            for choice in chunk["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
    print()


def with_openai():
    try:
        import openai
    except ImportError:
        print("the openai package is not installed")
        return
    with openai.OpenAI(base_url=URL + "/v1", api_key=API_KEY) as client:
        model = client.models.list().data[0].id
        whole = client.chat.completions.create(model=model, **CHAT)
        print("whole:   ", whole.choices[0].message.content)
        # What OpenAI's API does not have goes into extra_body.
        print("streamed: ", end="")
        with client.chat.completions.create(model=model, **CHAT, stream=True, extra_body={"top_k": 40}) as chunks:
            for chunk in chunks:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


print("-- urllib")
with_standard_library()
print("-- openai")
with_openai()
