# SPDX-License-Identifier: Apache-2.0
"""What LLM.beam_search takes and yields, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .outputs import SampleLogprobs


@dataclass
class BeamSearchParams:
    """docs/sampling.md says how beams are searched."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False  # end tokens are in the text anyway

    def body(self) -> dict[str, Any]:
        """The members of a request's body."""
        names = ("beam_width", "max_tokens", "ignore_eos", "temperature", "length_penalty")
        return {name: getattr(self, name) for name in names}


@dataclass
class BeamSearchSequence:
    """A prompt with one of its answers."""

    tokens: list[int]  # of prompt and answer
    logprobs: SampleLogprobs  # of the answer, each with the tokens that it was chosen from
    cum_logprob: float = 0.0  # of the answer
    text: str | None = None  # of all tokens, special ones too
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class BeamSearchOutput:
    """The best sequences, best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)
