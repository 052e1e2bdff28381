#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the result of Hugging Face transformers' logits processors on random logits, as golden data for tests/golden.

usage: make_sampling_goldens.py > tests/golden/transformers_sampling.json   (needs torch and transformers)

A case is {"logits", "tokens", "params", "scores"}: the processors that the params name, in the order repetition
penalty (over the tokens), temperature, min_p, top_k, top_p; null in scores is a removed token. Logits
are multiples of 1/4096 without ties, because transformers keeps all tied tokens.
"""
import json
import random

import torch
import transformers
from transformers import (
    LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
    TopKLogitsWarper, TopPLogitsWarper)

VOCAB = 32
CASES = 80
ORDER = (
    ("repetition_penalty", RepetitionPenaltyLogitsProcessor, (1.3, 0.8, 2.0)),
    ("temperature", TemperatureLogitsWarper, (0.5, 0.7, 1.6)),
    ("min_p", MinPLogitsWarper, (0.02, 0.1, 0.4)),
    ("top_k", TopKLogitsWarper, (1, 3, 10, 25)),
    ("top_p", TopPLogitsWarper, (0.3, 0.65, 0.9, 0.99)))


def make_case(draw, number):
    names = [name for name, _, _ in ORDER]
    # Each processor alone first, then random combinations.
    wanted = {names[number]} if number < len(names) else {name for name in names if draw.random() < 0.6}
    params = {name: draw.choice(values) for name, _, values in ORDER if name in wanted}
    logits = [value / 4096 for value in draw.sample(range(-24000, 24000), VOCAB)]
    tokens = [draw.randrange(VOCAB) for _ in range(draw.randrange(1, 12))]
    processors = LogitsProcessorList(make(params[name]) for name, make, _ in ORDER if name in params)
    scores = processors(torch.tensor([tokens]), torch.tensor([logits], dtype=torch.float32))[0].tolist()
    return {"logits": logits, "tokens": tokens, "params": params,
            "scores": [None if score == -float("inf") else float(f"{score:.9g}") for score in scores]}


def main():
    draw = random.Random(5)
    cases = [make_case(draw, number) for number in range(CASES)]
    print(json.dumps({"made_with": {"torch": torch.__version__, "transformers": transformers.__version__}}
                     | {"cases": cases}, separators=(",", ":")).replace('{"logits"', '\n{"logits"'))


if __name__ == "__main__":
    main()
