# SPDX-License-Identifier: Apache-2.0
"""The functions and structs of include/warprow.h. ctypes releases the GIL during each call."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

from .errors import BY_STATUS, EngineError

ABI_VERSION = 1
OK, TIMEOUT, DONE, CLOSED = 0, 8, 9, 10
HERE = Path(__file__).resolve().parent


class Logprob(Structure):
    _fields_ = [("token_id", c_int32), ("logprob", c_float), ("rank", c_int32)]


class Logprobs(Structure):
    _fields_ = [("entries", POINTER(Logprob)), ("begins", POINTER(c_uint64)), ("num_tokens", c_size_t)]


class Output(Structure):
    _fields_ = [
        ("request", c_uint64),
        ("choice", c_int32),
        ("num_choices", c_int32),
        ("finish_reason", c_int32),
        ("is_last", c_int32),
        ("text", c_void_p),
        ("text_len", c_size_t),
        ("token_ids", POINTER(c_int32)),
        ("num_token_ids", c_size_t),
        ("logprobs", Logprobs),
        ("prompt_logprobs", Logprobs),
        ("prompt_token_ids", POINTER(c_int32)),
        ("num_prompt_token_ids", c_size_t),
        ("stop_string", c_char_p),
        ("stop_token_id", c_int32),
        ("error_status", c_int32),
        ("error", c_char_p),
        ("num_cached_tokens", c_int32),
        ("num_output_tokens", c_int32),
        ("queue_ms", c_double),
        ("prompt_ms", c_double),
        ("output_ms", c_double),
        ("pooled", POINTER(c_float)),
        ("num_pooled", c_size_t),
        ("pooled_width", c_int32),
    ]


class RowLogits(Structure):
    _fields_ = [
        ("token_ids", c_void_p),
        ("num_token_ids", c_size_t),
        ("num_prompt_token_ids", c_size_t),
        ("logits", c_void_p),
        ("num_logits", c_size_t),
    ]


# Acquires the GIL for the call.
LogitsRule = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(RowLogits))

# name: (result, arguments)
FUNCTIONS = {
    "warprow_abi_version": (c_uint32, []),
    "warprow_version": (c_char_p, []),
    "warprow_last_error": (c_char_p, []),
    "warprow_free": (None, [c_void_p]),
    "warprow_engine_create": (c_int32, [c_char_p, POINTER(c_void_p)]),
    "warprow_engine_create_with_rules": (c_int32, [c_char_p, c_void_p, POINTER(c_void_p)]),
    "warprow_logits_rules_create": (c_int32, [POINTER(c_void_p)]),
    "warprow_logits_rules_add": (c_int32, [c_void_p, LogitsRule, c_void_p, c_int32]),
    "warprow_logits_rules_destroy": (None, [c_void_p]),
    "warprow_engine_close": (None, [c_void_p]),
    "warprow_engine_destroy": (None, [c_void_p]),
    "warprow_engine_info": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "warprow_engine_state": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "warprow_engine_sleep": (c_int32, [c_void_p, c_int32]),
    "warprow_engine_wake_up": (c_int32, [c_void_p, c_char_p]),
    "warprow_engine_reset_prefix_cache": (c_int32, [c_void_p]),
    "warprow_engine_pause": (c_int32, [c_void_p, c_int32]),
    "warprow_engine_resume": (c_int32, [c_void_p]),
    "warprow_engine_update_weights": (c_int32, [c_void_p, c_char_p]),
    "warprow_engine_load_adapter": (c_int32, [c_void_p, c_char_p, c_char_p]),
    "warprow_engine_unload_adapter": (c_int32, [c_void_p, c_char_p]),
    "warprow_engine_adapters": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "warprow_tokenize": (c_int32, [c_void_p, c_char_p, c_size_t, c_int32, POINTER(POINTER(c_int32)), POINTER(c_size_t)]),
    "warprow_detokenize": (c_int32, [c_void_p, POINTER(c_int32), c_size_t, c_int32, POINTER(c_void_p), POINTER(c_size_t)]),
    "warprow_render_chat": (c_int32, [c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "warprow_queue_create": (c_int32, [c_void_p, POINTER(c_void_p)]),
    "warprow_queue_destroy": (None, [c_void_p]),
    "warprow_queue_submit": (c_int32, [c_void_p, c_char_p, POINTER(c_uint64)]),
    "warprow_queue_submit_embeds": (
        c_int32,
        [c_void_p, c_char_p, c_void_p, c_int32, c_size_t, c_size_t, POINTER(c_uint64)],
    ),
    "warprow_queue_cancel": (c_int32, [c_void_p, c_uint64]),
    "warprow_queue_close": (None, [c_void_p]),
    "warprow_queue_wait": (c_int32, [c_void_p, c_int64, POINTER(POINTER(Output))]),
    "warprow_output_free": (None, [POINTER(Output)]),
}


def _library_path() -> str:
    """The library in the package; that of WARPROW_LIBRARY, for a build; else one that is installed on the system."""
    named = os.environ.get("WARPROW_LIBRARY")
    if named:
        return named
    inside = HERE / "lib" / "libwarprow.so.1"
    return str(inside) if inside.exists() else "libwarprow.so.1"


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_library_path())
    except OSError as error:
        raise ImportError(f"cannot load warprow's library: {error}") from None
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    if library.warprow_abi_version() != ABI_VERSION:
        raise ImportError(f"{_library_path()} has ABI version {library.warprow_abi_version()}, not {ABI_VERSION}")
    return library


lib = _load()
version: str = lib.warprow_version().decode()


def error_of(status: int, text: str) -> Exception:
    return BY_STATUS.get(status, EngineError)(text)


def check(status: int) -> None:
    """Raises the exception of a call that failed."""
    if status != OK:
        raise error_of(status, lib.warprow_last_error().decode("utf-8", "replace"))


def take_text(pointer: c_void_p, length: int | None = None) -> str:
    """The text that a function has allocated, which is freed."""
    try:
        data = ctypes.string_at(pointer, -1 if length is None else length)
    finally:
        lib.warprow_free(pointer)
    return data.decode("utf-8", "replace")


__all__ = ["CLOSED", "DONE", "HERE", "OK", "TIMEOUT", "LogitsRule", "Logprobs", "Output", "RowLogits", "byref", "check", "error_of", "lib", "take_text", "version"]
