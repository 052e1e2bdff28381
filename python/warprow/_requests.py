# SPDX-License-Identifier: Apache-2.0
"""From prompts to bodies of requests, and from the library's outputs to RequestOutput."""

from __future__ import annotations

import copy
import ctypes
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, Union

from ._embeds import PromptEmbeds
from ._engine import Engine, OwnedOutput
from ._library import Logprobs, error_of
from .errors import UnsupportedError
from .flat_logprobs import FlatLogprobs, read_flat
from .outputs import CompletionOutput, Logprob, PromptLogprobs, RequestOutput, RequestTimings, SampleLogprobs
from .sampling_params import RequestOutputKind, SamplingParams

# A text, token ids, or one of them in a dict: {"prompt": ...}, {"prompt_token_ids": ...}, with cache_salt. With
# {"prompt_embeds": ...} vectors are the prompt, or take the places of -1 in prompt_token_ids.
Prompt = Union[str, Sequence[int], Mapping[str, Any]]
Message = Mapping[str, Any]

FINISH_REASONS = {1: "stop", 2: "length", 3: "abort", 4: "error"}


def _is_id(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:  # an array is no id, though it has __index__
        return False
    return not isinstance(value, bool)


def is_one_prompt(prompts: Any) -> bool:
    if isinstance(prompts, (str, Mapping)):
        return True
    return len(prompts) > 0 and _is_id(prompts[0])


def _ids(prompt: Any) -> list[int]:
    return prompt.tolist() if hasattr(prompt, "tolist") else [int(token) for token in prompt]


def prompt_body(prompt: Prompt) -> dict[str, Any]:
    """The members of a completion's body that the prompt decides."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if not isinstance(prompt, Mapping):
        return {"prompt": _ids(prompt)}
    known = {"prompt", "prompt_token_ids", "prompt_embeds", "cache_salt"}
    for name, value in prompt.items():
        if name not in known and value is not None:
            raise ValueError(f"{name}: a prompt has text, token ids or prompt_embeds, and nothing else")
    ids, embeds = prompt.get("prompt_token_ids"), prompt.get("prompt_embeds")
    body: dict[str, Any] = {}
    if embeds is not None:
        body["prompt_embeds"] = PromptEmbeds(embeds)
    if ids is not None:
        body["prompt"] = _ids(ids)
    elif embeds is None:
        if prompt.get("prompt") is None:
            raise ValueError("prompt: missing, must be text, or give prompt_token_ids or prompt_embeds")
        body["prompt"] = prompt["prompt"]
    if prompt.get("cache_salt") is not None:
        body["cache_salt"] = prompt["cache_salt"]
    return body


def input_body(prompt: Prompt) -> dict[str, Any]:
    """The same for a pooling model."""
    body = prompt_body(prompt)
    if "prompt_embeds" in body:
        raise UnsupportedError("prompt_embeds: a pooling model takes none")
    return {"input": body.pop("prompt"), **body}


def text_of(body: Mapping[str, Any]) -> str | None:
    """The prompt of a body, if it is a text."""
    prompt = body.get("prompt")
    return prompt if isinstance(prompt, str) else None


def weights_path(update: str | os.PathLike[str] | Mapping[str, Any]) -> str:
    """Of the argument of update_weights."""
    path: Any = update
    if isinstance(update, Mapping):
        info = update.get("update_info")
        path = info.get("weights_path") if isinstance(info, Mapping) else None
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError('update_weights: must be a path, or {"update_info": {"weights_path": ...}}')
    return os.fspath(path)


def sampling_body(params: SamplingParams | None) -> dict[str, Any]:
    return {} if params is None else params.body()


def chat_body(
    messages: Sequence[Message],
    params: SamplingParams | None,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    body = sampling_body(params)
    if body.get("logprobs") is not None:  # a chat has a switch, and a number beside it
        body["top_logprobs"] = body["logprobs"]
        body["logprobs"] = True
    body["messages"] = list(messages)
    body["add_generation_prompt"] = add_generation_prompt
    body["continue_final_message"] = continue_final_message
    optional = {"tools": tools, "chat_template": chat_template, "chat_template_kwargs": chat_template_kwargs}
    return {**body, **{name: value for name, value in optional.items() if value is not None}}


def _read_lists(engine: Engine, lists: Logprobs) -> SampleLogprobs:
    out: SampleLogprobs = []
    for i in range(lists.num_tokens):
        entries: dict[int, Logprob] = {}
        for k in range(lists.begins[i], lists.begins[i + 1]):
            entry = lists.entries[k]
            if entry.token_id not in entries:  # the token itself comes first, and may come again
                entries[entry.token_id] = Logprob(entry.logprob, entry.rank, engine.token_text(entry.token_id))
        out.append(entries)
    return out


class Assembly:
    """A request's outputs so far, joined. DELTA: only what came with the last output."""

    def __init__(self, engine: Engine, request_id: str, prompt: str | None, params: SamplingParams | None) -> None:
        self._engine = engine
        self._params = params or SamplingParams()
        self._deltas = self._params.output_kind is RequestOutputKind.DELTA
        self._choices: dict[int, CompletionOutput] = {}
        self.output = RequestOutput(request_id, prompt, None)

    @property
    def finished(self) -> bool:
        return self.output.finished

    def num_tokens(self) -> tuple[int, int]:
        """Of the prompt and of all answers."""
        return len(self.output.prompt_token_ids or []), sum(len(choice.token_ids) for choice in self.output.outputs)

    @property
    def streams(self) -> bool:
        return self._params.output_kind is not RequestOutputKind.FINAL_ONLY

    def add(self, output: OwnedOutput) -> None:
        """Takes an output of the library. Raises the exception of a request that failed."""
        new = output.contents
        if new.error:
            raise error_of(new.error_status, new.error.decode("utf-8", "replace"))
        out = self.output
        if out.prompt_token_ids is None:
            out.prompt_token_ids = new.prompt_token_ids[: new.num_prompt_token_ids]
            if out.prompt is None and -1 not in out.prompt_token_ids:  # -1: a vector
                out.prompt = self._engine.decode(out.prompt_token_ids, False)
        if out.prompt_logprobs is None and self._params.prompt_logprobs is not None and new.choice == 0:
            out.prompt_logprobs = self._prompt_logprobs(output)
        choice = self._choices.get(new.choice)
        if choice is None or self._deltas:
            choice = self._choices[new.choice] = CompletionOutput(new.choice)
        if self._params.detokenize:
            choice.text += ctypes.string_at(new.text, new.text_len).decode("utf-8", "replace")
        choice.token_ids += new.token_ids[: new.num_token_ids]
        self._add_logprobs(choice, output)
        if new.finish_reason != 0:
            self._finish(choice, new)
        out.finished = bool(new.is_last)
        if self._deltas:
            out.outputs = [choice]
        else:
            out.outputs = [self._choices[index] for index in sorted(self._choices)]

    def _prompt_logprobs(self, output: OwnedOutput) -> PromptLogprobs | FlatLogprobs:
        lists = output.contents.prompt_logprobs  # empty for a prompt of one token
        if self._params.flat_logprobs:
            return read_flat(output, lists, self._engine.token_text, behind_first=True)
        return [None, *_read_lists(self._engine, lists)]

    def _add_logprobs(self, choice: CompletionOutput, output: OwnedOutput) -> None:
        if self._params.logprobs is None and self._params.logprob_token_ids is None:
            return
        lists = output.contents.logprobs
        if self._params.flat_logprobs:
            more = read_flat(output, lists, self._engine.token_text)
            choice.logprobs = choice.logprobs.joined(more) if isinstance(choice.logprobs, FlatLogprobs) else more
        else:
            choice.logprobs = [*(choice.logprobs or []), *_read_lists(self._engine, lists)]
        own = sum(lists.entries[lists.begins[i]].logprob for i in range(lists.num_tokens))
        choice.cumulative_logprob = (choice.cumulative_logprob or 0.0) + own

    def _finish(self, choice: CompletionOutput, new: Any) -> None:
        choice.finish_reason = FINISH_REASONS[new.finish_reason]
        if new.stop_string is not None:
            choice.stop_reason = new.stop_string.decode("utf-8", "replace")
        elif new.stop_token_id >= 0:
            choice.stop_reason = new.stop_token_id
        choice.timings = RequestTimings(new.queue_ms, new.prompt_ms, new.output_ms)
        self.output.num_cached_tokens = new.num_cached_tokens

    def snapshot(self) -> RequestOutput:
        """A copy that later outputs do not change."""
        out = copy.copy(self.output)
        out.outputs = [copy.copy(choice) for choice in out.outputs]
        for choice in out.outputs:
            choice.token_ids = list(choice.token_ids)
        return out
