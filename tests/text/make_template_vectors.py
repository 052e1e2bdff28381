#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes template_vectors.json: the output of Jinja2, configured as in transformers, for llama.cpp's collection of chat templates,
and for those in tests/text/templates.

    pip install jinja2; tools/fetch_vocab_vectors.sh; tests/text/make_template_vectors.py

The file has the conversations and, for each template and conversation, the FNV-1a hash of the text, or "error". Left out:
one that escapes HTML where it joins a `safe` text with another. Dates are replaced by one date.
"""
import json
import os
import re
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
TEMPLATES = CACHE / "warprow/deps/ggml-vocab-0.3.36/templates"
OWN = HERE / "templates"
DATE = re.compile(r"""strftime_now\(('[^']*'|"[^"]*")\)""")


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get <the> weather's \"état\" & more",
    "parameters": {"type": "object", "properties": {
        "location": {"type": "string", "description": "City"},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["location"]}}}]
CALLS = [{"id": "abcdef123", "type": "function", "function": {
    "name": "get_weather",
    "arguments": {"location": "Zürich", "days": [1, 2], "deep": {"x": 1.5, "y": None, "z": True}}}}]
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": "{\"t\": 21}"}
SYSTEM = {"role": "system", "content": "You are <b>nice</b>.\n"}

CONVERSATIONS = {
    "one": {"messages": [user("Hello")]},
    "system": {"messages": [SYSTEM, user("Hi  there \n"), assistant(" I'm here.\n"), user("Bye")]},
    "closed": {"messages": [user("Hello"), assistant("Hi!")], "add_generation_prompt": False},
    "thinking": {"messages": [user("Q"), assistant("<think>\nhm\n</think>\n\nAnswer"), user("Q2"),
                              assistant("<think>a</think>B"), user("Q3")]},
    "tools": {"messages": [SYSTEM, user("Weather?")], "tools": TOOLS},
    "call": {"messages": [user("Weather?"), assistant("", tool_calls=CALLS), RESULT, assistant("It is 21."),
                          user("thanks")], "tools": TOOLS},
    "call_null": {"messages": [user("Weather?"), assistant(None, tool_calls=CALLS), RESULT], "tools": TOOLS},
    "no_thinking": {"messages": [user("Hello")],
                    "variables": {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}},
    "odd_roles": {"messages": [assistant("a"), assistant("b")]},
    "reasoning": {"messages": [user("Q"), assistant("ans", reasoning_content="because"), user("Q2")]},
}


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("run", []), [], [], body).set_lineno(line)

    def run(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render(source, conversation):
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda _: "26 Jul 2024"
    variables = {"bos_token": "<s>", "eos_token": "</s>", "documents": None, "tools": conversation.get("tools"),
                 "add_generation_prompt": conversation.get("add_generation_prompt", True),
                 "messages": conversation["messages"], **conversation.get("variables", {})}
    return env.from_string(source).render(**variables)


def fnv1a(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def hashes_of(folder):
    hashes = {}
    for path in sorted(folder.glob("*.jinja")):
        source = DATE.sub("'26 Jul 2024'", path.read_bytes().decode())
        if path.name == "meetkai-functionary-medium-v3.1.jinja":
            continue
        hashes[path.name] = {}
        for name, conversation in CONVERSATIONS.items():
            try:
                hashes[path.name][name] = fnv1a(render(source, conversation))
            except TypeError:
                continue  # Python treats None more strictly than needed
            except Exception:
                hashes[path.name][name] = "error"
    return hashes


def main():
    hashes, own = hashes_of(TEMPLATES), hashes_of(OWN)
    out = {"conversations": CONVERSATIONS, "hashes": hashes, "own": own}
    (HERE / "template_vectors.json").write_text(json.dumps(out, ensure_ascii=False, indent=0) + "\n")
    print(sum(len(h) for h in [*hashes.values(), *own.values()]), "renderings of", len(hashes) + len(own), "templates")


if __name__ == "__main__":
    main()
