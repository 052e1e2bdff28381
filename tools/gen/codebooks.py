#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/weights/codebooks.cpp: the codebooks of GGUF's IQ types.

The reference is the data of the PyPI package `gguf` (written with gguf 0.19.0, numpy 2.4.6):

    pip install gguf numpy && python3 tools/gen/codebooks.py && ./dev fmt
"""
import pathlib

import numpy as np
from gguf import quants

# Name, class of gguf.quants, bits of an element.
BOOKS = (("kIq2Xxs", quants.IQ2_XXS, 2), ("kIq2Xs", quants.IQ2_XS, 2), ("kIq2S", quants.IQ2_S, 2),
         ("kIq3Xxs", quants.IQ3_XXS, 3), ("kIq3S", quants.IQ3_S, 3), ("kIq1", quants.IQ1_S, 2))  # fmt: skip

HEAD = """// SPDX-License-Identifier: Apache-2.0
// Written by tools/gen/codebooks.py.
#include "weights/codebooks.h"

namespace warprow::codebooks {
"""


def entries(kind, bits: int) -> list[int]:
    """An entry for each code: of its elements, from the lowest bits on, the places in grid_map."""
    kind.init_grid()
    grid = kind.grid.reshape(kind.grid_shape)
    places = np.searchsorted(np.array(kind.grid_map, dtype=np.float32), grid)
    assert (np.array(kind.grid_map, dtype=np.float32)[places] == grid).all()
    return [sum(int(place) << (bits * i) for i, place in enumerate(entry)) for entry in places]


def main() -> None:
    out = HEAD
    for name, kind, bits in BOOKS:
        codes = entries(kind, bits)
        out += f"\nconst std::array<uint16_t, {len(codes)}> {name} = {{\n"
        out += ", ".join(f"0x{code:04x}" for code in codes) + "};\n"
    out += "\n}  // namespace warprow::codebooks\n"
    path = pathlib.Path(__file__).resolve().parents[2] / "src/weights/codebooks.cpp"
    path.write_text(out)


if __name__ == "__main__":
    main()
