#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps with drafts and without, and whether the answers are the same.

Texts that repeat themselves, ten prompts of plain chat, and several answers to one prompt at a time. Greedy unless said
otherwise. CPU time is that of the whole process, start and loading included.

    bench/draft_steps.py [--binary build/cpu-release/warprow] [--model smollm2] [--adaptive false]
"""

import argparse
import json
import os
import resource
import subprocess

QUOTES = (
    'The committee wrote: "The bridge over the river must be repaired before the winter, because the ice will damage the '
    'pillars that were built in the last century." The mayor answered: "There is no money for the bridge this year, but the '
    'council will ask the province for help in the spring."\n\nSummary with quotes: The committee wrote: "The bridge over'
)
ITEM = "Apples from the north orchard: 12 boxes.\nPears from the south orchard: 7 boxes.\nPlums from the valley: 31 boxes.\n"
LIST = 3 * f"Today's list\n{ITEM}\n" + "Today's list\n"
CODE = '''def read_rows(path):
    """Reads the rows of a file."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if line and not line.startswith("#"):
                rows.append(line.split(","))
    return rows
'''
# Without a line's end, behind which the model ends the file and explains it.
COPY = f"# The file, twice.\n\n{CODE}\n\n# The file, twice.\n\ndef read_rows(path):"
EDIT = f"Here is a function:\n\n{CODE}\nHere is the same function with the name read_lines:\n\ndef read_lines(path):"
CHATS = (
    "Why is the sky blue?",
    "Write a short story about a fox and a lighthouse.",
    "What should I cook with potatoes and eggs?",
    "Explain how a bicycle stays upright.",
    "Give me three ideas for a birthday present.",
    "Who was Marie Curie?",
    "How do I learn to play chess?",
    "What is the difference between weather and climate?",
    "Describe a morning in a small harbour town.",
    "Write a polite email that asks for a later deadline.",
)


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/cpu-release/warprow")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--adaptive", default="true", choices=("true", "false"))
    parser.add_argument("--max-tokens", default="128")
    args = parser.parse_args()
    adaptive = f'"adaptive": {args.adaptive}'
    methods = {
        "without": (),
        "ngram": ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_min": 2, '
                  f'"prompt_lookup_max": 5, {adaptive}}}'),
        "suffix": ("--speculative-config", '{"method": "suffix", "num_speculative_tokens": 7, ' + adaptive + "}"),
        "suffix, factor 4": ("--speculative-config", '{"method": "suffix", "num_speculative_tokens": 7, '
                             f'"suffix_decoding_max_spec_factor": 4, {adaptive}}}'),
    }
    seeded = ("--temperature", "0.5", "--seed", "1", "--n", "4")
    cases = [(name, [text], ()) for name, text in (("quotes", QUOTES), ("list", LIST), ("copy", COPY), ("edit", EDIT))]
    cases.append(("ten chats", [chat(text) for text in CHATS], ()))
    cases.append(("four answers to each of two chats, at 0.5", [chat(text) for text in CHATS[:2]], seeded))

    def run(texts, flags):
        ids, steps, drafted, accepted, seconds = [], 0, 0, 0, 0.0
        for text in texts:
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            out = subprocess.run(
                [args.binary, "generate", args.model, "--temperature", "0", "--output", "json", "--stats", "--ignore-eos",
                 "--max-tokens", args.max_tokens, "-p", text, *flags],
                check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ).stdout
            seconds += resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
            got = json.loads(out)
            ids.append([choice["token_ids"] for choice in got["choices"]])
            steps += got["stats"]["steps"]
            drafted += got["stats"].get("spec_decode_num_draft_tokens", 0)
            accepted += got["stats"].get("spec_decode_num_accepted_tokens", 0)
        return ids, steps, drafted, accepted, seconds

    for name, texts, flags in cases:
        plain = None
        for method, setting in methods.items():
            ids, steps, drafted, accepted, seconds = run(texts, (*flags, *setting))
            plain = plain or ids
            same = "same" if ids == plain else "DIFFERENT"
            print(f"{name} | {method} | {steps} steps | {accepted} of {drafted} | {seconds:.1f} s CPU | {same}", flush=True)


if __name__ == "__main__":
    main()
