# SPDX-License-Identifier: Apache-2.0
"""What requests yield, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .flat_logprobs import FlatLogprobs
    from .lora import LoRARequest


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# For each token its own logprob and those of the most likely tokens, by token id. The first token of a prompt has none.
SampleLogprobs = list[dict[int, Logprob]]
PromptLogprobs = list["dict[int, Logprob] | None"]


@dataclass
class RequestTimings:
    """Milliseconds: submission to the first step, that to the first token, and that to the last."""

    queue_ms: float = 0.0
    prompt_ms: float = 0.0
    output_ms: float = 0.0


@dataclass
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | FlatLogprobs | None = None
    finish_reason: str | None = None  # "stop", "length" or "abort"
    stop_reason: int | str | None = None
    timings: RequestTimings | None = None  # once finished

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | FlatLogprobs | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int | None = None
    lora_request: LoRARequest | None = None
