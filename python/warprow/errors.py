# SPDX-License-Identifier: Apache-2.0
"""Exceptions with the engine's text."""


class WarprowError(Exception):
    """What the engine refused or failed at: one line that names the field, the value and the limit."""


class InvalidArgumentError(WarprowError, ValueError):
    """A value of the wrong type or out of range."""


class NotFoundError(WarprowError):
    """A model, file or name that does not exist."""


class UnsupportedError(WarprowError):
    """A valid value that this build or engine cannot serve."""


class CorruptFileError(WarprowError):
    """A file that contradicts itself or ends early."""


class OutOfMemoryError(WarprowError, MemoryError):
    """The model's plan does not fit."""


class BusyError(WarprowError):
    """Valid, but there is no capacity for it now."""


class EngineError(WarprowError):
    """A bug of the engine, or its failure."""


class ClosedError(WarprowError):
    """The engine or queue was closed, or belongs to the process that this one was forked from."""


BY_STATUS: dict[int, type[WarprowError]] = {
    1: InvalidArgumentError,
    2: NotFoundError,
    3: UnsupportedError,
    4: CorruptFileError,
    5: OutOfMemoryError,
    6: BusyError,
    7: EngineError,
    10: ClosedError,
    11: ClosedError,
}
