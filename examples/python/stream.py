#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two answers at a time as they come, one of which is given up early.

usage: stream.py [MODEL]     default smollm2; needs the wheel of ./dev wheel
"""
import asyncio
import sys

from warprow import AsyncLLM, RequestOutputKind, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=32, output_kind=RequestOutputKind.DELTA)


async def tell(llm, name, prompt, most):
    stream = llm.generate(prompt, PARAMS)
    count = 0
    async for output in stream:
        print(f"{name}: {output.outputs[0].text!r}", flush=True)
        count += 1
        if count == most:
            break
    await stream.aclose()  # ends the request if it still runs


async def main():
    with AsyncLLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2", max_model_len=1024) as llm:
        await asyncio.gather(tell(llm, "one", "The capital of France is", 4), tell(llm, "two", "Once upon a time", 1000))


asyncio.run(main())
