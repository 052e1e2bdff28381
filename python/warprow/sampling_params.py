# SPDX-License-Identifier: Apache-2.0
"""How answers are sampled, under vLLM's names and with its defaults."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class RequestOutputKind(enum.Enum):
    """What the outputs of AsyncLLM.generate hold: all so far, what is new, or the end alone."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class StructuredOutputsParams:
    """The form that an answer must have; exactly one of the first five."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None

    def body(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass
class SamplingParams:
    """The options of a request. The engine checks them; docs/sampling.md says what each does."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    flat_logprobs: bool = False  # logprobs are a FlatLogprobs, else a list with a dict for each token
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    # Members of the request's body that have no field here.
    extra_args: dict[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The members of a request's body, as the server knows them."""
        body = {name: value for name, value in vars(self).items() if name not in _OURS and value is not None}
        if self.spaces_between_special_tokens is not True:
            body["spaces_between_special_tokens"] = self.spaces_between_special_tokens
        if self.structured_outputs is not None:
            wanted = self.structured_outputs
            body["structured_outputs"] = wanted.body() if isinstance(wanted, StructuredOutputsParams) else wanted
        if self.logit_bias is not None:
            body["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        for name in ("stop_token_ids", "allowed_token_ids", "bad_words", "logprob_token_ids"):
            if name in body and isinstance(body[name], Sequence):
                body[name] = list(body[name])
        body["max_tokens"] = self.max_tokens
        return {**body, **self.extra_args}


_OURS = {
    "detokenize",
    "extra_args",
    "flat_logprobs",
    "logit_bias",
    "max_tokens",
    "output_kind",
    "spaces_between_special_tokens",
    "structured_outputs",
}
