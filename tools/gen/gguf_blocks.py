#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/weights/data/gguf_blocks.bin: random blocks of every weight format and their decoded values.

The reference is gguf.quants.dequantize of the PyPI package `gguf` (written with gguf 0.19.0, numpy 2.4.6):

    pip install gguf numpy && python3 tools/gen/gguf_blocks.py

Format, little endian, one record per weight format until the end of the file:
    char[8]  name of the format, NUL padded
    u32      number of elements n
    u32      number of bytes b of the blocks
    u8[b]    the blocks
    u32[n]   the bits of the f32 values
"""
import pathlib
import struct

import gguf
import numpy as np

ELEMENTS = 1280  # five super-blocks
HALVES = {  # offsets of IEEE halves in a block
    "F16": [0], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0],
    "IQ3_XXS": [0], "IQ3_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ1_S": [0],
}
# In the order in which they are drawn.
NAMES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "Q2_K", "Q3_K",
         "IQ4_NL", "IQ4_XS", "IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M")  # fmt: skip
# Zeros of both signs, the smallest and largest subnormal, the smallest normal and the largest finite half.
SPECIAL = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF], dtype=np.uint16)


def random_blocks(rng: np.random.Generator, name: str) -> np.ndarray:
    block_elems, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, size=(ELEMENTS // block_elems, block_bytes), dtype=np.uint8)
    for place, at in enumerate(HALVES.get(name, [])):
        halves = rng.normal(0, 0.05, size=len(blocks)).astype(np.float16).view(np.uint16)
        # Each field gets a different special value in a given block. Some blocks stay ordinary.
        for i in range(min(len(blocks) - 1, len(SPECIAL))):
            halves[i] = SPECIAL[(i + 3 * place) % len(SPECIAL)]
        blocks[:, at:at + 2] = halves.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":  # scales 2^-125 to 2^64
        blocks[:, 0] = blocks[:, 0] % 190 + 2
    if name == "IQ1_M":  # the half's four nibbles are the upper ones of four u16
        halves = rng.normal(0, 0.05, size=len(blocks)).astype(np.float16).view(np.uint16)
        halves[: len(SPECIAL)][: len(blocks) - 1] = SPECIAL[: len(blocks) - 1]
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 0x0F | (halves >> (4 * i) & 15) << 4
    if name in ("F32", "BF16"):  # clearing the exponent's last bit keeps the values finite
        blocks[:, block_bytes - 2] &= 0x7F
    return blocks


def main() -> None:
    rng = np.random.default_rng(20261120)
    out = bytearray()
    for name in NAMES:
        blocks = random_blocks(rng, name)
        values = gguf.quants.dequantize(blocks.reshape(-1), gguf.GGMLQuantizationType[name])
        values = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        assert len(values) == ELEMENTS and np.isfinite(values).all(), name
        out += struct.pack("<8sII", name.encode(), ELEMENTS, blocks.size)
        out += blocks.tobytes() + values.tobytes()
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/weights/data/gguf_blocks.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(out)
    print(f"{path}: {len(out)} bytes")


if __name__ == "__main__":
    main()
