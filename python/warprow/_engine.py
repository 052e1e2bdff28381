# SPDX-License-Identifier: Apache-2.0
"""Handles of the library with the lifetime of Python objects."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from ._library import CLOSED, DONE, OK, TIMEOUT, Output, byref, check, lib, take_text
from .logits_rules import Rule, RuleList

PAUSE_MODES = ("abort", "keep", "wait")

# At the interpreter's exit the engines' threads must end. Their handles are left, because threads of Python may still be
# inside calls.
_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_engines() -> None:
    for engine in list(_open_engines):
        engine.close()


def _free_with(owner: object, free: Any, handle: ctypes.c_void_p, used: object = None) -> None:
    """Frees the handle when the owner is collected, so no thread is inside a call with it. `used` lives until then."""

    def run(used: object) -> None:
        free(handle)

    weakref.finalize(owner, run, used).atexit = False


class Engine:
    """A loaded model. Calls are allowed from any thread; close() waits for those under way."""

    def __init__(self, settings: Mapping[str, Any], rules: Sequence[Rule] = ()) -> None:
        handle = ctypes.c_void_p()
        text = json.dumps(settings).encode()
        used = RuleList(rules) if rules else None
        if used is None:
            check(lib.warprow_engine_create(text, byref(handle)))
        else:
            try:
                check(lib.warprow_engine_create_with_rules(text, used.handle, byref(handle)))
            finally:
                used.free()
        self.handle = handle
        self._token_texts: dict[int, str] = {}
        _free_with(self, lib.warprow_engine_destroy, handle, used)
        _open_engines.add(self)

    def close(self) -> None:
        lib.warprow_engine_close(self.handle)

    def _json(self, function: Any) -> dict[str, Any]:
        text = ctypes.c_void_p()
        check(function(self.handle, byref(text)))
        read: dict[str, Any] = json.loads(take_text(text))
        return read

    def info(self) -> dict[str, Any]:
        return self._json(lib.warprow_engine_info)

    def state(self) -> dict[str, Any]:
        return self._json(lib.warprow_engine_state)

    def sleep(self, level: int) -> None:
        check(lib.warprow_engine_sleep(self.handle, level))

    def wake_up(self, tag: str | None) -> None:
        check(lib.warprow_engine_wake_up(self.handle, None if tag is None else tag.encode()))

    def reset_prefix_cache(self) -> None:
        check(lib.warprow_engine_reset_prefix_cache(self.handle))

    def pause(self, mode: str) -> None:
        """mode: of PAUSE_MODES."""
        check(lib.warprow_engine_pause(self.handle, PAUSE_MODES.index(mode)))

    def resume(self) -> None:
        check(lib.warprow_engine_resume(self.handle))

    def update_weights(self, model: str) -> None:
        check(lib.warprow_engine_update_weights(self.handle, model.encode()))

    def load_adapter(self, name: str, path: str) -> None:
        check(lib.warprow_engine_load_adapter(self.handle, name.encode(), os.fsencode(path)))

    def unload_adapter(self, name: str) -> None:
        check(lib.warprow_engine_unload_adapter(self.handle, name.encode()))

    def adapters(self) -> list[dict[str, str]]:
        """With "name" and "path", in the order of loading."""
        text = ctypes.c_void_p()
        check(lib.warprow_engine_adapters(self.handle, byref(text)))
        read: list[dict[str, str]] = json.loads(take_text(text))
        return read

    def encode(self, text: str, add_special: bool) -> list[int]:
        data = text.encode("utf-8", "surrogatepass")
        tokens = ctypes.POINTER(ctypes.c_int32)()
        count = ctypes.c_size_t()
        check(lib.warprow_tokenize(self.handle, data, len(data), add_special, byref(tokens), byref(count)))
        try:
            return tokens[: count.value]
        finally:
            lib.warprow_free(tokens)

    def decode(self, token_ids: Sequence[int], skip_special: bool) -> str:
        ids = (ctypes.c_int32 * len(token_ids))(*token_ids)
        text, length = ctypes.c_void_p(), ctypes.c_size_t()
        check(lib.warprow_detokenize(self.handle, ids, len(token_ids), skip_special, byref(text), byref(length)))
        return take_text(text, length.value)

    def token_text(self, token_id: int) -> str:
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self.decode([token_id], False)
        return text

    def render_chat(self, body: Mapping[str, Any]) -> str:
        text, length = ctypes.c_void_p(), ctypes.c_size_t()
        check(lib.warprow_render_chat(self.handle, json.dumps(body).encode(), byref(text), byref(length)))
        return take_text(text, length.value)


class OwnedOutput:
    """An output of the library, freed with this object. What views its memory holds this object."""

    __slots__ = ("_pointer", "contents")

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer
        self.contents: Output = pointer.contents

    def __del__(self, free: Any = lib.warprow_output_free) -> None:
        free(self._pointer)


class Queue:
    """Requests and their outputs. Any thread."""

    def __init__(self, engine: Engine) -> None:
        handle = ctypes.c_void_p()
        check(lib.warprow_queue_create(engine.handle, byref(handle)))
        self.handle = handle
        _free_with(self, lib.warprow_queue_destroy, handle)

    def submit(self, body: Mapping[str, Any]) -> int:
        """prompt_embeds: a PromptEmbeds."""
        request = ctypes.c_uint64()
        embeds = body.get("prompt_embeds")
        if embeds is None:
            check(lib.warprow_queue_submit(self.handle, json.dumps(body).encode(), byref(request)))
            return request.value
        text = json.dumps({name: value for name, value in body.items() if name != "prompt_embeds"}).encode()
        shape = embeds.type_number, embeds.num_vectors, embeds.width
        check(lib.warprow_queue_submit_embeds(self.handle, text, embeds.address, *shape, byref(request)))
        return request.value

    def cancel(self, request: int) -> None:
        check(lib.warprow_queue_cancel(self.handle, request))

    def wait(self, timeout_ms: int) -> tuple[int, OwnedOutput | None]:
        """(OK, an output), (TIMEOUT, None), (DONE, None) or (CLOSED, None)."""
        output = ctypes.POINTER(Output)()
        status = lib.warprow_queue_wait(self.handle, timeout_ms, byref(output))
        if status not in (OK, TIMEOUT, DONE, CLOSED):
            check(status)
        return status, OwnedOutput(output) if status == OK else None

    def close(self) -> None:
        """Cancels its requests and ends waits."""
        lib.warprow_queue_close(self.handle)
