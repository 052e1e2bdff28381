# SPDX-License-Identifier: Apache-2.0
"""A tiny model for tests of vectors and weights."""

import array
import json
import shutil
import tempfile
from pathlib import Path


class TinyModel:
    """A tiny model with random weights and a tokenizer, in a folder, and its embedding rows."""

    def __init__(self, change=0):
        self.folder = tempfile.TemporaryDirectory(prefix="warprow-tiny-")
        tiny = Path(__file__).resolve().parents[1] / "golden/tiny"
        shutil.copy(tiny / "qwen3_two_groups/config.json", self.folder.name)
        shutil.copy(tiny / "embed_qwen3/tokenizer.json", self.folder.name)
        data = bytearray((tiny / "qwen3_two_groups/model.safetensors").read_bytes())
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        begin, end = (8 + size + at for at in header["model.embed_tokens.weight"]["data_offsets"])
        if change:  # other weights of the same form: the rows of the embedding in another order
            width = 2 * header["model.embed_tokens.weight"]["shape"][1]
            data[begin:end] = data[begin + change * width : end] + data[begin : begin + change * width]
        halves = array.array("H", bytes(data[begin:end]))
        self.width = header["model.embed_tokens.weight"]["shape"][1]
        self.rows = array.array("f", array.array("I", (half << 16 for half in halves)).tobytes())  # bfloat16
        self.path = self.folder.name
        (Path(self.folder.name) / "model.safetensors").write_bytes(data)

    def safetensors(self, ids):
        """The vectors as a safetensors file."""
        data = self.vectors(ids).tobytes()
        tensor = {"dtype": "F32", "shape": [len(ids), self.width], "data_offsets": [0, len(data)]}
        header = json.dumps({"prompt_embeds": tensor}).encode()
        return len(header).to_bytes(8, "little") + header + data

    def vectors(self, ids):
        """[len(ids), width] of float32, as a buffer."""
        found = array.array("f")
        for token in ids:
            found += self.rows[token * self.width : (token + 1) * self.width]
        return memoryview(found).cast("B").cast("f", (len(ids), self.width))
