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
from .lora import LoRARequest
from .outputs import CompletionOutput, Logprob, RequestOutput, RequestTimings
from .pooling import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
)
from .sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from .tokenizer import Tokenizer

__all__ = [
    "__version__",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "BusyError",
    "ClassificationOutput",
    "ClosedError",
    "CompletionOutput",
    "CorruptFileError",
    "EmbeddingOutput",
    "EngineError",
    "FlatLogprobs",
    "InvalidArgumentError",
    "LLM",
    "LoRARequest",
    "Logprob",
    "NotFoundError",
    "OutOfMemoryError",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "RequestOutputKind",
    "RequestTimings",
    "SamplingParams",
    "ScoringOutput",
    "StructuredOutputsParams",
    "Tokenizer",
    "UnsupportedError",
    "WarprowError",
]
