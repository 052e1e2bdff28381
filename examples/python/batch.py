#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers to some prompts in one batch, and to a chat, with the engine in this process.

usage: batch.py [MODEL]     default smollm2; needs the wheel of ./dev wheel
"""
import sys

from warprow import LLM, SamplingParams

with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2", max_model_len=1024) as llm:
    prompts = ["The capital of France is", "Water boils at", "A haiku about rain:\n"]
    for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24)):
        print(repr(output.prompt), "->", repr(output.outputs[0].text))

    chat = [{"role": "user", "content": "What is gravity? One sentence."}]
    print(llm.chat(chat, SamplingParams(temperature=0, max_tokens=48))[0].outputs[0].text)
