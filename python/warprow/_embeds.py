# SPDX-License-Identifier: Apache-2.0
"""Vectors in place of token ids, as the C interface takes them."""

from __future__ import annotations

import ctypes
from typing import Any

# By the name of a numpy type, and by the format and size of a buffer's items. Numbers of include/warprow.h.
TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
FORMATS = {("f", 4): "float32", ("e", 2): "float16"}


class PromptEmbeds:
    """The vectors of one prompt: whatever has two dimensions, [tokens, hidden size], of float32, float16 or bfloat16.

    An array, a tensor of torch, or another object with a buffer. float64 becomes float32. Without gaps in memory nothing
    is copied here; the engine copies the vectors when they are submitted.
    """

    def __init__(self, vectors: Any) -> None:
        if hasattr(vectors, "detach"):  # of torch
            vectors = vectors.detach().cpu()
            if str(vectors.dtype) != "torch.float16":
                vectors = vectors.float()  # numpy has no bfloat16
            vectors = vectors.numpy()
        name = str(getattr(vectors, "dtype", ""))
        if name == "float64":
            vectors = vectors.astype("float32")
        if name == "bfloat16":  # of ml_dtypes, whose buffers have no format
            vectors = vectors.view("uint16")
        try:
            view = memoryview(vectors)
        except TypeError:
            raise ValueError("prompt_embeds: must be an array or a buffer of floats") from None
        self.dtype = "bfloat16" if name == "bfloat16" else FORMATS.get((view.format.lstrip("<=@"), view.itemsize), "")
        if not self.dtype:
            raise ValueError(f"prompt_embeds: values of type {name or view.format}, must be float32, float16 or bfloat16")
        shape = view.shape or ()
        if len(shape) != 2 or 0 in shape:
            raise ValueError(f"prompt_embeds: the shape [{', '.join(map(str, shape))}] must be [tokens, hidden size]")
        self.num_vectors, self.width = shape
        data = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        # from_buffer wants memory that may be written, and from_buffer_copy copies.
        self._memory = data
        self.address = _address(data)

    @property
    def type_number(self) -> int:
        return TYPES[self.dtype]


class _Buffer(ctypes.Structure):
    """Py_buffer, which is part of the stable interface since Python 3.11 and was the same before."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def _address(data: memoryview) -> int:
    """Where the memory begins; valid as long as the view lives."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(data), ctypes.byref(buffer), 0)
    try:
        return int(buffer.buf)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
