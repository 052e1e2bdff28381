# SPDX-License-Identifier: Apache-2.0
"""LLM and SamplingParams with all arguments of vLLM's."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from .. import llm, sampling_params
from .._requests import Prompt
from ..errors import UnsupportedError
from ..outputs import RequestOutput
from ..sampling_params import StructuredOutputsParams

# Arguments that change no answer, and have nothing here that they could tell.
_WITHOUT_EFFECT = {
    "allowed_local_media_path",
    "compilation_config",
    "cpu_offload_gb",
    "disable_async_output_proc",
    "disable_custom_all_reduce",
    "disable_log_requests",
    "disable_log_stats",
    "download_dir",
    "enable_sleep_mode",
    "max_seq_len_to_capture",
    "served_model_name",
    "swap_space",
    "tokenizer_mode",
    "tokenizer_revision",
    "trust_remote_code",
    "use_tqdm_on_load",
}
# Arguments with the values that change nothing; others are refused.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "data_parallel_size": (1,),
    "enable_expert_parallel": (False,),
    "hf_overrides": ({},),
    "override_pooler_config": (),
    "pooler_config": (),
    "skip_tokenizer_init": (False,),
}
# The former argument `task`, as settings.
_TASKS: dict[str, dict[str, str]] = {
    "auto": {},
    "generate": {"runner": "generate"},
    "embed": {"runner": "pooling", "convert": "embed"},
    "embedding": {"runner": "pooling", "convert": "embed"},
    "classify": {"runner": "pooling", "convert": "classify"},
    "score": {"runner": "pooling"},
}
_DTYPES = {"half": "bfloat16", "float16": "bfloat16", "float": "float32"}


def _settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's settings for vLLM's arguments. What names nothing here is left to the engine, which refuses it."""
    settings = {}
    for name, value in arguments.items():
        if value is None or name in _WITHOUT_EFFECT:
            continue
        if name in _HARMLESS:
            if value not in _HARMLESS[name]:
                raise UnsupportedError(f"{name}: {value!r} is not supported")
        elif name == "task":
            if value not in _TASKS:
                raise UnsupportedError(f"task: {value!r} is not supported")
            settings.update(_TASKS[value])
        elif name == "convert" and value == "none":
            continue
        elif name == "dtype":
            settings[name] = _dtype(value)
        else:
            settings[name] = value
    return settings


def _dtype(value: Any) -> str:
    name = str(value).removeprefix("torch.")
    if name in ("half", "float16"):
        warnings.warn(f"dtype {name}: activations and KV cache are bfloat16 here", stacklevel=4)
    return _DTYPES.get(name, name)


GuidedDecodingParams = StructuredOutputsParams


@dataclass
class SamplingParams(sampling_params.SamplingParams):
    """With vLLM's other fields: those that are refused, and those that change nothing here."""

    best_of: int | None = None
    guided_decoding: StructuredOutputsParams | None = None
    logits_processors: list[Any] | None = None
    bad_words_token_ids: list[list[int]] | None = None

    def body(self) -> dict[str, Any]:
        for name in ("logits_processors", "bad_words_token_ids"):
            if getattr(self, name):
                raise UnsupportedError(f"{name}: not supported")
        if self.best_of not in (None, self.n):
            raise UnsupportedError(f"best_of: {self.best_of} is not supported unless it equals n")
        plain = copy.copy(self)
        plain.structured_outputs = self.structured_outputs or self.guided_decoding
        body = sampling_params.SamplingParams.body(plain)
        for name in ("best_of", "guided_decoding", "logits_processors", "bad_words_token_ids"):
            body.pop(name, None)
        return body

    def clone(self) -> SamplingParams:
        return copy.deepcopy(self)


class LLM(llm.LLM):
    """warprow.LLM with the arguments of vllm.LLM. Those that mean nothing here are ignored if they change no answer, else refused."""

    def __init__(self, model: str, *, tokenizer: str | None = None, revision: str | None = None, **arguments: Any) -> None:
        if tokenizer not in (None, model):
            raise UnsupportedError(f"tokenizer: {tokenizer!r} is not the model's own")
        at = "" if revision is None or os.path.exists(model) else f"@{revision}"
        super().__init__(model + at, **_settings(arguments))
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(
                model=model,
                tokenizer=model,
                max_model_len=self.info["max_model_len"],
                get_vocab_size=lambda: self.info["vocab_size"],
            ),
            get_tokenizer=self.get_tokenizer,
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: sampling_params.SamplingParams | Sequence[sampling_params.SamplingParams] | None = None,
        *,
        prompt_token_ids: Sequence[Any] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Any = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        if prompts is None:
            if prompt_token_ids is None:
                raise ValueError("prompts: missing")
            prompts = prompt_token_ids
        return super().generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request, priority=priority)

    def chat(self, *args: Any, chat_template_content_format: str = "auto", **options: Any) -> list[RequestOutput]:
        return super().chat(*args, **options)

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams()
