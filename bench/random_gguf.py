# SPDX-License-Identifier: Apache-2.0
"""Writes a random GGUF file of a dense Qwen3, with a made-up vocabulary, for timings (`warprow bench latency FILE`).

    python3 bench/random_gguf.py bench/models/Qwen3-8B FILE [Q4_K_M | Q4_K | Q5_K | Q6_K | Q8_0 | Q4_0]

Blocks are valid and random, with weights whose deviation is 2 / sqrt(hidden size). They repeat every 512, so that large files are
written quickly. Q4_K_M is llama.cpp's mix: Q6_K in the head, and in some layers' V and down; Q4_K elsewhere.
"""

import json
import random
import struct
import sys
from pathlib import Path

# GGUF's number of a type, elements and bytes of a block.
TYPES = {"F32": (0, 1, 4), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
         "Q6_K": (14, 256, 210)}
# The deviation of a block's weights with a scale of one and uniform numbers; what a minimum is in scales.
DEVIATIONS = {"Q4_0": (4.6, 0), "Q8_0": (73.9, 0), "Q4_K": (261, 7.5), "Q5_K": (532, 15.5), "Q6_K": (1366, 0)}
ALIGNMENT = 32


def block(kind, scale, rng):
    size = TYPES[kind][2]
    deviation, minimum = DEVIATIONS[kind]
    halves = struct.pack("<e", scale / deviation)
    if minimum:
        halves += struct.pack("<e", scale / deviation * minimum)
    rest = rng.randbytes(size - len(halves))
    return rest + halves if kind == "Q6_K" else halves + rest


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(key, item):
    if isinstance(item, str):
        return text(key) + struct.pack("<I", 8) + text(item)
    if isinstance(item, list):  # of strings
        return text(key) + struct.pack("<IIQ", 9, 8, len(item)) + b"".join(text(one) for one in item)
    return text(key) + (struct.pack("<If", 6, item) if isinstance(item, float) else struct.pack("<II", 4, item))


def more_bits(layer, layers):
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def tensors(config, mix):
    """Name, type and dimensions (innermost first) of each tensor."""
    base, upper = ("Q4_K", "Q6_K") if mix == "Q4_K_M" else (mix, mix)
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    dim = config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    tied = config["tie_word_embeddings"]
    yield "token_embd.weight", upper if tied else base, (hidden, config["vocab_size"])
    yield "output_norm.weight", "F32", (hidden,)
    if not tied:
        yield "output.weight", upper, (hidden, config["vocab_size"])
    for i in range(layers):
        more = upper if more_bits(i, layers) else base
        for name, kind, dims in (
            ("attn_norm", "F32", (hidden,)), ("attn_q", base, (hidden, queries)), ("attn_k", base, (hidden, keys)),
            ("attn_v", more, (hidden, keys)), ("attn_output", base, (queries, hidden)), ("attn_q_norm", "F32", (dim,)),
            ("attn_k_norm", "F32", (dim,)), ("ffn_norm", "F32", (hidden,)), ("ffn_gate", base, (hidden, inner)),
            ("ffn_up", base, (hidden, inner)), ("ffn_down", more, (inner, hidden)),
        ):  # fmt: skip
            yield f"blk.{i}.{name}.weight", kind, dims


def main():
    model, file = Path(sys.argv[1]), Path(sys.argv[2])
    mix = sys.argv[3] if len(sys.argv) > 3 else "Q4_K_M"
    config = json.loads((model / "config.json").read_text())
    rng = random.Random(1)
    scale = 2 / config["hidden_size"] ** 0.5
    values = {
        "general.architecture": "qwen3", "qwen3.block_count": config["num_hidden_layers"],
        "qwen3.context_length": config["max_position_embeddings"], "qwen3.embedding_length": config["hidden_size"],
        "qwen3.feed_forward_length": config["intermediate_size"],
        "qwen3.attention.head_count": config["num_attention_heads"],
        "qwen3.attention.head_count_kv": config["num_key_value_heads"],
        "qwen3.attention.key_length": config["head_dim"], "qwen3.attention.value_length": config["head_dim"],
        "qwen3.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "qwen3.rope.freq_base": float(config["rope_theta"]), "qwen3.vocab_size": config["vocab_size"],
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.merges": [],
        "tokenizer.ggml.tokens": [f"<{i}>" for i in range(config["vocab_size"])],
    }  # fmt: skip
    runs = {kind: b"".join(block(kind, scale, rng) for _ in range(512)) * 64 for kind in DEVIATIONS}
    runs["F32"] = struct.pack("<f", 1.0) * (1 << 16)
    listed = list(tensors(config, mix))
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(listed), len(values))
    head += b"".join(value(key, item) for key, item in values.items())
    at = 0
    sizes = []
    for name, kind, dims in listed:
        number, elements, bytes_each = TYPES[kind]
        count = 1
        for d in dims:
            count *= d
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, at)
        sizes.append(count // elements * bytes_each)
        at += -(-sizes[-1] // ALIGNMENT) * ALIGNMENT
    with open(file, "wb") as out:
        out.write(head + bytes(-len(head) % ALIGNMENT))
        for (_, kind, _), size in zip(listed, sizes):
            run = runs[kind]
            for first in range(0, size, len(run)):
                out.write(run[: size - first])
            out.write(bytes(-size % ALIGNMENT))
    print(f"{file}: {at >> 20} MiB")


if __name__ == "__main__":
    main()
