# SPDX-License-Identifier: Apache-2.0
"""Logprobs without an object for each entry."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, overload

from ._engine import OwnedOutput
from ._library import Logprob as Entry
from ._library import Logprobs as Lists
from .outputs import Logprob

_COLUMNS = ("token_id", "logprob", "rank")  # the members of an entry, in their order


class FlatLogprobs(Sequence["dict[int, Logprob]"]):
    """Logprobs of some positions, under vLLM's names. Position i has the entries start_indices[i] to end_indices[i] - 1: first the
    token itself, then the most likely ones, which may contain it again.

    With numpy the members are arrays (token_ids and ranks int32, logprobs float32, the indices int64), which cannot be written.
    Those of an answer that came whole view the engine's memory and copy nothing. Without numpy they are lists. An index gives the dict
    that a list of logprobs would have.
    """

    def __init__(self, entries: tuple[Any, ...], start_indices: Any, end_indices: Any, decode: Callable[[int], str]) -> None:
        self.token_ids, self.logprobs, self.ranks = entries
        self.start_indices = start_indices
        self.end_indices = end_indices
        self._decode = decode

    @property
    def decoded_tokens(self) -> list[str]:
        return [self._decode(int(token)) for token in self.token_ids]

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> dict[int, Logprob]: ...
    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...
    def __getitem__(self, index: int | slice) -> dict[int, Logprob] | FlatLogprobs:
        entries = (self.token_ids, self.logprobs, self.ranks)
        if isinstance(index, slice):  # the same entries
            return FlatLogprobs(entries, self.start_indices[index], self.end_indices[index], self._decode)
        found: dict[int, Logprob] = {}
        for k in range(self.start_indices[index], self.end_indices[index]):
            token = int(self.token_ids[k])
            if token not in found:
                found[token] = Logprob(float(self.logprobs[k]), int(self.ranks[k]), self._decode(token))
        return found

    def joined(self, more: FlatLogprobs) -> FlatLogprobs:
        """These positions, then those."""
        first = len(self.token_ids)
        pairs = ((self.token_ids, more.token_ids), (self.logprobs, more.logprobs), (self.ranks, more.ranks))
        if isinstance(self.token_ids, list):
            entries = [a + b for a, b in pairs]
            starts = self.start_indices + [first + i for i in more.start_indices]
            ends = self.end_indices + [first + i for i in more.end_indices]
        else:
            import numpy

            entries = [numpy.concatenate(pair) for pair in pairs]
            starts = numpy.concatenate((self.start_indices, more.start_indices + first))
            ends = numpy.concatenate((self.end_indices, more.end_indices + first))
        return FlatLogprobs(tuple(entries), starts, ends, self._decode)


def read_flat(output: OwnedOutput, lists: Lists, decode: Callable[[int], str], behind_first: bool = False) -> FlatLogprobs:
    """The lists of an output. behind_first: after a position without entries, which is a prompt's first token."""
    count = lists.num_tokens
    begins = lists.begins[: count + 1] if count > 0 else [0]
    nothing = [0] if behind_first else []
    starts, ends = nothing + begins[:-1], nothing + begins[1:]
    try:
        import numpy
    except ImportError:
        entries = lists.entries[: begins[-1]] if count > 0 else []
        columns: tuple[Any, ...] = tuple([getattr(e, name) for e in entries] for name in _COLUMNS)
        return FlatLogprobs(columns, starts, ends, decode)
    row = numpy.dtype([(name, "f4" if name == "logprob" else "i4") for name in _COLUMNS])
    if begins[-1] == 0:
        table = numpy.zeros(0, row)
    else:
        memory: Any = (Entry * begins[-1]).from_address(ctypes.addressof(lists.entries.contents))
        memory.owner = output  # as long as a view of the memory lives
        table = numpy.frombuffer(memory, row)
        table.flags.writeable = False
    columns = tuple(table[name] for name in _COLUMNS)
    return FlatLogprobs(columns, numpy.array(starts, numpy.int64), numpy.array(ends, numpy.int64), decode)
