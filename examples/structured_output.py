#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers that must be in a language: a JSON schema, a regex, one of some texts. Needs `pip install openai`.

usage: structured_output.py [URL]     default http://127.0.0.1:8000

The grammar decides the form and the model the content: SmolLM2-135M is small, so expect valid JSON and odd facts.
"""
import json
import os
import sys

import openai

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("WARPROW_URL", "http://127.0.0.1:8000")
# Lengths keep a small model from filling a text until max_tokens cuts it, which would leave half an object.
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "continent": {"enum": ["Africa", "America", "Asia", "Australia", "Europe"]},
        "sights": {"type": "array", "items": {"type": "string", "maxLength": 24}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "continent", "sights"],
    "additionalProperties": False,
}


def ask(client, question, **options):
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=128, **options)
    choice = answer.choices[0]
    if choice.finish_reason != "stop":
        raise RuntimeError(f"the answer was cut off: {choice.finish_reason}")
    return choice.message.content


with openai.OpenAI(base_url=URL + "/v1", api_key=os.environ.get("WARPROW_API_KEY", "none")) as client:
    # OpenAI's field for a schema.
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    print("schema:", json.loads(ask(client, "Describe the city of Paris as JSON.", response_format=schema)))
    # vLLM's field for all kinds.
    regex = {"structured_outputs": {"regex": "[0-9]{3}-[0-9]{4}"}}
    print("regex: ", ask(client, "Invent a phone number.", extra_body=regex))
    choice = {"structured_outputs": {"choice": ["positive", "negative"]}}
    print("choice:", ask(client, "Is this review positive or negative? 'I love it.'", extra_body=choice))
