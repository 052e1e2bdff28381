# SPDX-License-Identifier: Apache-2.0
"""Writes a random GGUF file of a Qwen3, dense or with experts, with a made-up vocabulary, for timings (`warprow bench latency FILE`).

    python3 bench/random_gguf.py bench/models/Qwen3-8B FILE [Q4_K_M | TYPE]

TYPE is one of DEVIATIONS below. Blocks are valid and random, with weights whose deviation is 2 / sqrt(hidden size). They repeat every 65,536, so that large files are
written quickly; those of the embedding do not. Q4_K_M is llama.cpp's mix: Q6_K in the head, and in some layers' V and down; Q4_K elsewhere. Routers are random too.
"""

import json
import random
import struct
import sys
from pathlib import Path

# GGUF's number of a type, elements and bytes of a block. "router": random F32.
TYPES = {"F32": (0, 1, 4), "router": (0, 1, 4), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
         "Q6_K": (14, 256, 210), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "IQ2_XXS": (16, 256, 66),
         "IQ2_XS": (17, 256, 74), "IQ3_XXS": (18, 256, 98), "IQ1_S": (19, 256, 50), "IQ4_NL": (20, 32, 18),
         "IQ3_S": (21, 256, 110), "IQ2_S": (22, 256, 82), "IQ4_XS": (23, 256, 136), "IQ1_M": (29, 256, 56)}  # fmt: skip
# The deviation of a block's weights with a scale of one and uniform numbers; what a minimum is in scales.
DEVIATIONS = {"Q4_0": (4.6, 0), "Q8_0": (73.9, 0), "Q4_K": (261, 7.5), "Q5_K": (532, 15.5), "Q6_K": (1366, 0),
              "Q2_K": (12, 1.5), "Q3_K": (42, 0), "IQ2_XXS": (65, 0), "IQ2_XS": (65, 0), "IQ3_XXS": (160, 0),
              "IQ1_S": (7.5, 0), "IQ4_NL": (66, 0), "IQ3_S": (165, 0), "IQ2_S": (65, 0), "IQ4_XS": (1200, 0),
              "IQ1_M": (7.5, 0)}  # fmt: skip
ALIGNMENT = 32


def random_bytes(count, rng):
    piece = 1 << 24  # randbytes takes less than 2^28
    return bytearray().join(rng.randbytes(min(piece, count - at)) for at in range(0, count, piece))


def blocks(kind, scale, count, rng):
    size = TYPES[kind][2]
    deviation, minimum = DEVIATIONS[kind]
    halves = struct.pack("<e", scale / deviation)
    if minimum:
        halves += struct.pack("<e", scale / deviation * minimum)
    out = random_bytes(size * count, rng)
    if kind == "IQ1_M":  # the half's nibbles are the upper ones of the last four u16
        for i in range(4):
            nibble = halves[i // 2] >> (i % 2 * 4) & 15
            out[49 + 2 * i :: size] = bytes(byte & 15 | nibble << 4 for byte in out[49 + 2 * i :: size])
        return bytes(out)
    first = size - len(halves) if kind in ("Q6_K", "Q2_K", "Q3_K") else 0
    for i, byte in enumerate(halves):
        out[first + i :: size] = bytes([byte]) * count
    return bytes(out)


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


def feed_forward(config, base, more):
    hidden, experts = config["hidden_size"], config.get("num_experts", 0)
    if not experts:
        inner = config["intermediate_size"]
        return (("ffn_gate", base, (hidden, inner)), ("ffn_up", base, (hidden, inner)), ("ffn_down", more, (inner, hidden)))
    inner = config["moe_intermediate_size"]
    return (
        ("ffn_gate_inp", "router", (hidden, experts)), ("ffn_gate_exps", base, (hidden, inner, experts)),
        ("ffn_up_exps", base, (hidden, inner, experts)), ("ffn_down_exps", more, (inner, hidden, experts)),
    )  # fmt: skip


def tensors(config, mix):
    """Name, type and dimensions (innermost first) of each tensor."""
    base, upper = ("Q4_K", "Q6_K") if mix == "Q4_K_M" else (mix, mix)
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
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
            ("attn_k_norm", "F32", (dim,)), ("ffn_norm", "F32", (hidden,)),
            *feed_forward(config, base, more),
        ):  # fmt: skip
            yield f"blk.{i}.{name}.weight", kind, dims


def main():
    model, file = Path(sys.argv[1]), Path(sys.argv[2])
    mix = sys.argv[3] if len(sys.argv) > 3 else "Q4_K_M"
    config = json.loads((model / "config.json").read_text())
    rng = random.Random(1)
    scale = 2 / config["hidden_size"] ** 0.5
    experts = config.get("num_experts", 0)
    family = "qwen3moe" if experts else "qwen3"
    of_family = {
        "block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"], "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"], "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]), "rope.freq_base": float(config["rope_theta"]),
        "vocab_size": config["vocab_size"],
    }  # fmt: skip
    if experts:
        of_family["expert_count"] = experts
        of_family["expert_used_count"] = config["num_experts_per_tok"]
        of_family["expert_feed_forward_length"] = config["moe_intermediate_size"]
    values = {
        "general.architecture": family, **{f"{family}.{key}": item for key, item in of_family.items()},
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.merges": [],
        "tokenizer.ggml.tokens": [f"<{i}>" for i in range(config["vocab_size"])],
    }  # fmt: skip
    runs = {kind: blocks(kind, scale, 1 << 16, rng) for kind in DEVIATIONS}
    runs["F32"] = struct.pack("<f", 1.0) * (1 << 16)
    runs["router"] = b"".join(struct.pack("<f", rng.gauss(0, scale)) for _ in range(1 << 18))
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
        for (name, kind, _), size in zip(listed, sizes):
            embedding = name == "token_embd.weight"
            run = blocks(kind, scale, size // TYPES[kind][2], rng) if embedding else runs[kind]
            for first in range(0, size, len(run)):
                out.write(run[: size - first])
            out.write(bytes(-size % ALIGNMENT))
    print(f"{file}: {at >> 20} MiB")


if __name__ == "__main__":
    main()
