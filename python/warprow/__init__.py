# SPDX-License-Identifier: Apache-2.0
"""Python over warprow's engine: `LLM` for batches, `AsyncLLM` for asyncio. docs/python.md has a tour."""

from ._library import version as __version__
from .async_llm import AsyncLLM
from .beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from .errors import (
    BusyError,
    ClosedError,
    CorruptFileError,
    EngineError,
    InvalidArgumentError,
    NotFoundError,
    OutOfMemoryError,
    UnsupportedError,
    WarprowError,
)
from .flat_logprobs import FlatLogprobs
from .llm import LLM
from .outputs import CompletionOutput, Logprob, RequestOutput, RequestTimings
from .sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from .tokenizer import Tokenizer

__all__ = [
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "BusyError",
    "ClosedError",
    "CompletionOutput",
    "CorruptFileError",
    "EngineError",
    "FlatLogprobs",
    "InvalidArgumentError",
    "LLM",
    "Logprob",
    "NotFoundError",
    "OutOfMemoryError",
    "RequestOutput",
    "RequestOutputKind",
    "RequestTimings",
    "SamplingParams",
    "StructuredOutputsParams",
    "Tokenizer",
    "UnsupportedError",
    "WarprowError",
    "__version__",
]
