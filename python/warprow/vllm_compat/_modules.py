# SPDX-License-Identifier: Apache-2.0
"""The package `vllm` and those of its modules that callers import from, made out of warprow.vllm_compat."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# The release of vLLM whose interface this follows. The local part tells it from vLLM itself.
VERSION = "0.18.0+warprow"

_PROMPTS = ["EmbedsPrompt", "TextPrompt", "TokensPrompt"]
_SAMPLING = ["BeamSearchParams", "GuidedDecodingParams", "RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]

_POOLED = ["ClassificationOutput", "ClassificationRequestOutput", "EmbeddingOutput", "EmbeddingRequestOutput", "PoolingOutput",
           "PoolingRequestOutput", "ScoringOutput", "ScoringRequestOutput"]  # fmt: skip

# module: the names of this package that it has
_MODULES: dict[str, list[str]] = {
    "vllm": ["LLM", "CompletionOutput", "PoolingParams", "RequestOutput", *_POOLED, *_PROMPTS, *_SAMPLING],
    "vllm.beam_search": ["BeamSearchOutput", "BeamSearchSequence"],
    "vllm.entrypoints": [],
    "vllm.entrypoints.chat_utils": ["resolve_chat_template"],
    "vllm.entrypoints.llm": ["LLM"],
    "vllm.inputs": _PROMPTS,
    "vllm.logprobs": ["FlatLogprobs", "Logprob"],
    "vllm.lora": [],
    "vllm.lora.request": ["LoRARequest"],
    "vllm.outputs": ["CompletionOutput", "RequestOutput", *_POOLED],
    "vllm.pooling_params": ["PoolingParams"],
    "vllm.renderers": [],
    "vllm.renderers.hf": ["resolve_chat_template"],
    "vllm.sampling_params": _SAMPLING,
    "vllm.tokenizers": ["get_tokenizer"],
    "vllm.transformers_utils": [],
    "vllm.transformers_utils.tokenizer": ["get_tokenizer"],
    "vllm.version": [],
}


class _Distribution(importlib.metadata.Distribution):
    """What importlib.metadata.version("vllm") reads."""

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f"{path}: this vllm is warprow.vllm_compat and has no files")


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _MODULES:
            return None
        return ModuleSpec(name, self, origin=__name__, is_package=any(other.startswith(name + ".") for other in _MODULES))

    def exec_module(self, module: ModuleType) -> None:
        package = sys.modules[__package__]
        for name in _MODULES[module.__name__]:
            setattr(module, name, getattr(package, name))
        module.__version__ = VERSION  # type: ignore[attr-defined]

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        return [_Distribution()] if context is None or context.name in (None, "vllm") else []


def install() -> None:
    """From now on `import vllm` finds this engine, in the whole process. Call it before anything imports vllm."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "vllm" in sys.modules:
        raise ImportError("vllm was imported before warprow.vllm_compat.install()")
    sys.meta_path.insert(0, _Finder())
