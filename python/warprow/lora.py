# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters that requests name."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

from ._engine import Engine


@dataclass
class LoRARequest:
    """An adapter: the name that answers go by, a number of the caller's, and the directory that PEFT saved. Without a
    path it must be loaded already."""

    lora_name: str
    lora_int_id: int = 0
    lora_path: str = ""

    @property
    def name(self) -> str:
        return self.lora_name


# One for all prompts, or one for each; None: the model without an adapter.
LoRARequests = Union[LoRARequest, Sequence[Union[LoRARequest, None]], None]


class Adapters:
    """The engine's adapters; they are loaded when a request names them first. Any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}

    def body(self, request: LoRARequest | None) -> dict[str, Any]:
        """The members of a request's body that name the adapter; loads it."""
        if request is None:
            return {}
        if not isinstance(request, LoRARequest):
            raise ValueError(f"lora_request: must be a LoRARequest, not {type(request).__name__}")
        self.add(request)
        return {"model": request.lora_name}

    def add(self, request: LoRARequest) -> bool:
        """Loads the adapter. False if it is loaded already."""
        with self._lock:
            loaded = {each["name"]: each["path"] for each in self._engine.adapters()}
            path = loaded.get(request.lora_name)
            if path is None and not request.lora_path:
                raise ValueError(f"lora_request: no adapter named {request.lora_name} is loaded, and lora_path is empty")
            if path is not None and request.lora_path and os.path.realpath(path) != os.path.realpath(request.lora_path):
                raise ValueError(f"lora_request: {request.lora_name} is loaded from {path}, not from {request.lora_path}")
            if path is None:
                self._engine.load_adapter(request.lora_name, request.lora_path)
            self._ids[request.lora_name] = request.lora_int_id
            return path is None

    def remove(self, lora: int | str) -> bool:
        """Of this name, or of this number. False if there is none. Requests that have it go on."""
        with self._lock:
            for each in self._engine.adapters():
                if lora in (each["name"], self._ids.get(each["name"])):
                    self._engine.unload_adapter(each["name"])
                    self._ids.pop(each["name"], None)
                    return True
        return False

    def list(self) -> list[LoRARequest]:
        """Those that are loaded, in that order."""
        with self._lock:
            return [LoRARequest(each["name"], self._ids.get(each["name"], 0), each["path"]) for each in self._engine.adapters()]
