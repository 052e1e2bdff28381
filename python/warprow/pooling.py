# SPDX-License-Identifier: Apache-2.0
"""Vectors of pooling models: what to ask for and what comes, under vLLM's names."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._library import error_of
from ._requests import Prompt, input_body

if TYPE_CHECKING:
    from ._engine import OwnedOutput

TASKS = ("embed", "classify", "token_embed", "token_classify")


@dataclass
class PoolingParams:
    """The options of a request to a pooling model. The engine checks them; docs/server.md says what each does."""

    truncate_prompt_tokens: int | None = None
    dimensions: int | None = None
    # Embeddings of length 1, or probabilities in place of logits. Default: as the model's files say.
    use_activation: bool | None = None
    # Vectors are arrays of numpy, float32, that view the engine's memory and cannot be written; else lists.
    as_numpy: bool = False
    # Members of the request's body that have no field here.
    extra_args: dict[str, Any] = field(default_factory=dict)

    def body(self, embeds: bool) -> dict[str, Any]:
        """The members of a request's body, as the server knows them."""
        own = {
            "truncate_prompt_tokens": self.truncate_prompt_tokens,
            "dimensions": self.dimensions,
            "normalize" if embeds else "use_activation": self.use_activation,
        }
        return {**{name: value for name, value in own.items() if value is not None}, **self.extra_args}


@dataclass
class PoolingOutput:
    """A vector, or with the tasks token_embed and token_classify one for each token of the prompt: a list of lists, or an
    array of two dimensions."""

    data: Any


@dataclass
class EmbeddingOutput:
    embedding: Any  # list[float], or an array

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass
class ClassificationOutput:
    probs: Any  # list[float], or an array

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass
class ScoringOutput:
    score: float


Pooled = TypeVar("Pooled", PoolingOutput, EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass
class PoolingRequestOutput(Generic[Pooled]):
    request_id: str
    outputs: Pooled
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool = True


class PooledAssembly:
    """The one output of a pooling request; not there before it is finished."""

    def __init__(self, request_id: str, of_tokens: bool, as_numpy: bool = False) -> None:
        self._request_id = request_id
        self._of_tokens = of_tokens
        self._as_numpy = as_numpy
        self.finished = False
        self.output: PoolingRequestOutput[PoolingOutput]

    def add(self, output: OwnedOutput) -> None:
        """Takes the output. Raises the exception of a request that failed."""
        new = output.contents
        if new.error:
            raise error_of(new.error_status, new.error.decode("utf-8", "replace"))
        data = _array(output, self._of_tokens) if self._as_numpy else _lists(new, self._of_tokens)
        ids = new.prompt_token_ids[: new.num_prompt_token_ids]
        self.output = PoolingRequestOutput(self._request_id, PoolingOutput(data), ids, new.num_cached_tokens)
        self.finished = True

    def snapshot(self) -> PoolingRequestOutput[PoolingOutput]:
        return self.output

    def num_tokens(self) -> tuple[int, int]:
        return len(self.output.prompt_token_ids), 0


def _lists(new: Any, of_tokens: bool) -> Any:
    rows = new.pooled[: new.num_pooled]
    return [rows[at : at + new.pooled_width] for at in range(0, len(rows), new.pooled_width)] if of_tokens else rows


def _array(output: OwnedOutput, of_tokens: bool) -> Any:
    """A view of the output's memory, which lives as long as the view."""
    import numpy

    new = output.contents
    memory: Any = (ctypes.c_float * new.num_pooled).from_address(ctypes.addressof(new.pooled.contents))
    memory.owner = output
    vectors = numpy.frombuffer(memory, numpy.float32)
    vectors.flags.writeable = False
    return vectors.reshape(-1, new.pooled_width) if of_tokens else vectors


def pooling_request(
    info: Mapping[str, Any], prompt: Prompt, params: PoolingParams | None, task: str | None, request_id: str
) -> tuple[dict[str, Any], PooledAssembly]:
    """A request's body, and what takes its output. info: of the engine; without a task what the model yields."""
    if task is not None and task not in TASKS:
        raise ValueError(f"pooling_task: {task!r}, must be one of {', '.join(TASKS)}")
    embeds = (task or info.get("pooling_task", "embed")).endswith("embed")
    members = {} if task is None else {"task": task}
    body = {**members, **(params or PoolingParams()).body(embeds), **input_body(prompt)}
    as_numpy = params is not None and params.as_numpy
    return body, PooledAssembly(request_id, task is not None and task.startswith("token_"), as_numpy)


def retyped(output: PoolingRequestOutput[Any], outputs: Pooled) -> PoolingRequestOutput[Pooled]:
    return PoolingRequestOutput(output.request_id, outputs, output.prompt_token_ids, output.num_cached_tokens)


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """The cosine of the angle between two vectors; 0 if one has only zeros."""
    lengths = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    return math.fsum(x * y for x, y in zip(a, b)) / lengths if lengths > 0 else 0.0
