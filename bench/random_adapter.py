# SPDX-License-Identifier: Apache-2.0
"""Writes a random LoRA adapter in PEFT's format, for all linear layers of a Llama-shaped model.

    python3 bench/random_adapter.py bench/models/Qwen3-8B DIR [RANK]

The weights repeat every 2^20 values, so that large ones are written quickly.
"""

import array
import json
import random
import struct
import sys
from pathlib import Path


def shapes(config):
    """Outputs and inputs of each module."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    queries, keys = heads * head_dim, config["num_key_value_heads"] * head_dim
    return {
        "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip


def main():
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    rank = int(sys.argv[3]) if len(sys.argv) > 3 else 16
    config = json.loads((model / "config.json").read_text())
    modules = shapes(config)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [name.split(".")[1] for name in modules]}))
    draw = random.Random(1)
    floats = array.array("f", (draw.gauss(0, 0.02) for _ in range(1 << 20))).tobytes()
    bf16 = bytearray(len(floats) // 2)  # the upper halves
    bf16[0::2], bf16[1::2] = floats[2::4], floats[3::4]
    header, chunks, at = {}, [], 0
    for layer in range(config["num_hidden_layers"]):
        for name, (outputs, inputs) in modules.items():
            for half, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                size = 2 * shape[0] * shape[1]
                header[f"base_model.model.model.layers.{layer}.{name}.lora_{half}.weight"] = {
                    "dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
                chunks.append(shape[0] * shape[1])
                at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "adapter_model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for count in chunks:
            size = 2 * count
            file.write((bf16 * -(-size // len(bf16)))[:size])
    print(f"{folder}: {at >> 20} MiB")


if __name__ == "__main__":
    main()
