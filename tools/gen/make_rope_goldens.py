#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the frequencies and attention factors that Hugging Face transformers computes for scaled ropes.

usage: make_rope_goldens.py OUT.json   (needs torch and transformers; OUT: tests/models/transformers_ropes.json)

A list of {name, config, max_len, inv_freq, attention_factor}: config.json in one of its spellings, and what a model of
it computes with for sequences of max_len.
"""
import copy
import json
import sys

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

BASE = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
        "intermediate_size": 96, "vocab_size": 128, "rms_norm_eps": 1e-5}
YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}
FACTORS = {"short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5], "long_factor": [1.0, 1.5, 2.25, 4.0, 9.5, 31.0]}
PHI = {"max_position_embeddings": 4096, "original_max_position_embeddings": 1024, "rope_theta": 10000.0,
       "partial_rotary_factor": 0.75}


def cases():
    for name, own in (("plain", {}), ("betas", {"beta_fast": 16.0, "beta_slow": 2.0}), ("not_truncated", {"truncate": False}),
                      ("attention_factor", {"attention_factor": 0.75}), ("mscale", {"mscale": 0.7, "mscale_all_dim": 1.3}),
                      ("mscale_alone", {"mscale": 0.7}), ("low_theta", {"rope_theta": 50.0})):
        theta = own.get("rope_theta", 1000000.0)
        yield f"yarn_{name}", "llama", {"max_position_embeddings": 4096, "rope_theta": theta,
                                        "rope_scaling": {"type": "yarn", **YARN, **own}}, 4096
        yield f"yarn_{name}_of_5", "llama", {"max_position_embeddings": 4096, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": theta, **YARN, **own}}, 4096
    yield "yarn_without_original", "llama", {"max_position_embeddings": 2048, "rope_theta": 10000.0,
                                             "rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, 2048
    yield "linear", "llama", {"max_position_embeddings": 4096, "rope_theta": 10000.0,
                              "rope_scaling": {"type": "linear", "factor": 4.0}}, 4096
    yield "dynamic", "llama", {"max_position_embeddings": 4096, "rope_theta": 10000.0,
                               "rope_scaling": {"type": "dynamic", "factor": 4.0}}, 4096
    yield "llama3", "llama", {"max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}}, 131072
    for length in 1024, 4096:
        yield f"longrope_{length}", "phi3", {**PHI, "rope_scaling": {"type": "longrope", **FACTORS}}, length
    yield "longrope_of_5", "phi3", {**{key: PHI[key] for key in PHI if "rot" not in key and "theta" not in key},
                                    "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0,
                                                        "partial_rotary_factor": 0.75, **FACTORS}}, 4096
    yield "longrope_factor", "phi3", {**PHI, "rope_scaling": {"type": "longrope", "factor": 32.0, **FACTORS}}, 4096


def main():
    out = []
    for name, family, own, length in cases():
        config = {**BASE, **own}
        kind = {"llama": transformers.LlamaConfig, "phi3": transformers.Phi3Config}[family]
        read = kind(**copy.deepcopy(config))
        rope = read.rope_parameters
        inv_freq, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](read, torch.device("cpu"), seq_len=length)
        config["architectures"] = [kind.__name__.replace("Config", "ForCausalLM")]
        out.append({"name": name, "config": config, "max_len": length, "attention_factor": factor,
                    "inv_freq": [float(f"{value:.9g}") for value in inv_freq.tolist()]})
    with open(sys.argv[1], "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in out) + "\n]\n")


if __name__ == "__main__":
    main()
