# SPDX-License-Identifier: Apache-2.0
"""Rules of the caller on logits."""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from ._library import LogitsRule, RowLogits, byref, check, lib

# rule(token_ids, logits, num_prompt_tokens): the request's tokens so far, the prompt first, which cannot be written; and a float32 view
# of the logits of the next token, which can. Both are memoryviews, which numpy.asarray takes without a copy, and are gone after the
# call. An attribute changes_argmax = False says that the rule never changes which logit is the largest: greedy requests skip it.
Rule: TypeAlias = "Callable[[memoryview[int], memoryview[float], int], Any]"


def _function(rule: Rule) -> Any:
    def call(_user: Any, pointer: Any) -> int:
        row: RowLogits = pointer.contents
        ids = memoryview((ctypes.c_int32 * row.num_token_ids).from_address(row.token_ids)).cast("B").cast("i").toreadonly()
        logits = memoryview((ctypes.c_float * row.num_logits).from_address(row.logits)).cast("B").cast("f")
        try:
            rule(ids, logits, row.num_prompt_token_ids)
        except BaseException:  # nothing may pass through the engine
            traceback.print_exc()
            return 1
        finally:
            with suppress(BufferError):  # somebody kept an array over it
                ids.release()
                logits.release()
        return 0

    return LogitsRule(call)


class RuleList:
    """The library's list of rules. The engine calls `functions` until it is closed."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.functions = [_function(rule) for rule in rules]
        self.handle = ctypes.c_void_p()
        check(lib.warprow_logits_rules_create(byref(self.handle)))
        for rule, function in zip(rules, self.functions):
            check(lib.warprow_logits_rules_add(self.handle, function, None, getattr(rule, "changes_argmax", True)))

    def free(self) -> None:
        lib.warprow_logits_rules_destroy(self.handle)
