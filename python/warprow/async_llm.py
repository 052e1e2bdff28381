# SPDX-License-Identifier: Apache-2.0
"""Answers as they come, for asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ._engine import PAUSE_MODES, Engine, OwnedOutput, Queue
from ._library import DONE, TIMEOUT
from ._requests import Assembly, Message, Prompt, chat_body, prompt_body, sampling_body, text_of, weights_path
from .errors import ClosedError
from .logits_rules import Rule
from .lora import Adapters, LoRARequest
from .outputs import RequestOutput
from .pooling import PoolingOutput, PoolingParams, PoolingRequestOutput, pooling_request
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer


class _Stream:
    """The outputs of one request, on their way from the dispatcher's thread to the task that awaits them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[Any] = asyncio.Queue()

    def push(self, output: OwnedOutput | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._outputs.put_nowait, output)
        except RuntimeError:  # the loop was closed
            pass

    async def next(self) -> OwnedOutput:
        output: OwnedOutput | None = await self._outputs.get()
        if output is None:
            raise ClosedError("the engine was closed")
        return output


class _Dispatcher:
    """A thread that takes the outputs of a queue and passes each to its stream."""

    def __init__(self, engine: Engine) -> None:
        self.queue = Queue(engine)
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._streams: dict[int, _Stream | None] = {}  # None: nobody wants the rest
        self._early: dict[int, list[OwnedOutput]] = {}  # outputs that came before their stream was known
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, body: dict[str, Any], stream: _Stream) -> int:
        """Blocks while a template is rendered or a grammar compiled."""
        request = self.queue.submit(body)
        with self._lock:
            if self._closed:
                raise ClosedError("the engine was closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="warprow-outputs", daemon=True)
                self._thread.start()
            self._streams[request] = stream
            for output in self._early.pop(request, []):
                self._pass_on(output)
        self._work.set()
        return request

    def leave(self, request: int) -> None:
        with self._lock:
            if request in self._streams:
                self._streams[request] = None
        if not self._closed:
            try:
                self.queue.cancel(request)
            except ClosedError:
                pass

    def close(self) -> None:
        with self._lock:
            self._closed = True
            streams, self._streams = self._streams, {}
        self.queue.close()
        self._work.set()
        for stream in streams.values():
            if stream is not None:
                stream.push(None)

    def _pass_on(self, output: OwnedOutput) -> None:
        request = output.contents.request
        stream = self._streams[request]
        if output.contents.is_last:
            del self._streams[request]
        if stream is not None:
            stream.push(output)

    def _run(self) -> None:
        while not self._closed:
            status, output = self.queue.wait(-1)
            if output is not None:
                with self._lock:
                    if output.contents.request in self._streams:
                        self._pass_on(output)
                    elif not self._closed:
                        self._early.setdefault(output.contents.request, []).append(output)
            elif status == DONE:
                self._work.wait()
                self._work.clear()
            elif status != TIMEOUT:
                return


class AsyncLLM:
    """A model and its engine in this process, for asyncio. engine_args as for LLM.

    The constructor blocks until the model is loaded.
    """

    def __init__(self, model: str, *, logits_rules: Sequence[Rule] = (), **engine_args: Any) -> None:
        self._engine = Engine({"model": model, **engine_args}, logits_rules)
        self.info = self._engine.info()
        self._adapters = Adapters(self._engine)
        self._dispatcher = _Dispatcher(self._engine)
        self._requests: dict[str, int | None] = {}  # None: not submitted yet
        self._aborted_early: set[str] = set()
        self._paused = False
        self._counter = 0

    def __enter__(self) -> AsyncLLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def __del__(self) -> None:
        if hasattr(self, "_dispatcher"):
            self.shutdown()

    def shutdown(self) -> None:
        """Ends the engine. Generators that wait raise ClosedError."""
        self._dispatcher.close()
        self._engine.close()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """The answer as it grows; SamplingParams.output_kind says whether each output has all of it or what is new.
        A generator that is closed, or whose task is cancelled, ends its request."""
        body = prompt_body(prompt)
        if priority:
            body["priority"] = priority
        body = {**sampling_body(sampling_params), **body, **await self._lora_body(lora_request)}
        async for output in self._answer(text_of(body), body, sampling_params, request_id, lora_request):
            yield output

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        **options: Any,
    ) -> AsyncIterator[RequestOutput]:
        """The answer to a conversation; options as of LLM.chat."""
        body = chat_body(messages, sampling_params, **options)
        if sampling_params is None:
            body["max_tokens"] = SamplingParams().max_tokens
        body |= await self._lora_body(lora_request)
        async for output in self._answer(None, body, sampling_params, request_id, lora_request):
            yield output

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        pooling_task: str | None = None,
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """The vectors of a pooling model, in one output; pooling_task as of LLM.encode."""
        request_id = self._name(request_id)
        body, assembly = pooling_request(self.info, prompt, pooling_params, pooling_task, request_id)
        async for output in self._run(assembly, body, request_id):
            yield output

    async def _lora_body(self, lora: LoRARequest | None) -> dict[str, Any]:
        return {} if lora is None else await asyncio.to_thread(self._adapters.body, lora)

    def _name(self, request_id: str | None) -> str:
        while request_id is None:
            name = str(self._counter)
            self._counter += 1
            request_id = None if name in self._requests else name
        return request_id

    def _answer(
        self,
        prompt: str | None,
        body: dict[str, Any],
        params: SamplingParams | None,
        request_id: str | None,
        lora: LoRARequest | None,
    ) -> AsyncIterator[RequestOutput]:
        request_id = self._name(request_id)
        assembly = Assembly(self._engine, request_id, prompt, params)
        assembly.output.lora_request = lora
        # The server reports a prompt's logprobs in whole answers alone.
        body["stream"] = assembly.streams and body.get("prompt_logprobs") is None
        return self._run(assembly, body, request_id)

    async def _run(self, assembly: Any, body: dict[str, Any], request_id: str) -> AsyncIterator[Any]:
        if request_id in self._requests:
            raise ValueError(f"request_id: a request named {request_id} runs already")
        self._requests[request_id] = None
        try:
            stream = _Stream()
            request = await self._submit(body, stream, request_id)
            try:
                while not assembly.finished:
                    assembly.add(await stream.next())
                    yield assembly.snapshot()
            finally:
                if not assembly.finished:
                    self._dispatcher.leave(request)
        finally:
            del self._requests[request_id]
            self._aborted_early.discard(request_id)

    async def _submit(self, body: dict[str, Any], stream: _Stream, request_id: str) -> int:
        submission = asyncio.get_running_loop().run_in_executor(None, self._dispatcher.submit, body, stream)
        try:
            request = await asyncio.shield(submission)
        except asyncio.CancelledError:
            submission.add_done_callback(self._leave_submitted)
            raise
        self._requests[request_id] = request
        if request_id in self._aborted_early:
            self._dispatcher.queue.cancel(request)
        return request

    def _leave_submitted(self, submission: asyncio.Future[int]) -> None:
        if not submission.cancelled() and submission.exception() is None:
            self._dispatcher.leave(submission.result())

    async def abort(self, request_id: str) -> None:
        """Ends a request soon; its generator yields a last output with the finish reason "abort"."""
        if request_id not in self._requests:
            return
        request = self._requests[request_id]
        if request is None:
            self._aborted_early.add(request_id)
        else:
            self._dispatcher.queue.cancel(request)

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._engine)

    async def sleep(self, level: int = 1) -> None:
        await asyncio.to_thread(self._engine.sleep, level)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        for tag in [None] if tags is None else tags:
            await asyncio.to_thread(self._engine.wake_up, tag)

    async def pause_generation(self, *, mode: str = "abort", clear_cache: bool = True) -> None:
        """Runs no step until resume_generation(). mode "abort" ends requests; with "keep" they go on afterwards; "wait"
        returns when they have ended as they would, while new ones wait."""
        if mode not in PAUSE_MODES:
            raise ValueError(f"mode: {mode} is neither abort, keep nor wait")
        await asyncio.to_thread(self._engine.pause, mode)
        self._paused = True
        if clear_cache and mode != "keep":
            await self.reset_prefix_cache()

    async def resume_generation(self) -> None:
        await asyncio.to_thread(self._engine.resume)
        self._paused = False

    async def is_paused(self) -> bool:
        return self._paused

    async def update_weights(self, update: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        """As LLM.update_weights, between pause_generation() and resume_generation()."""
        await asyncio.to_thread(self._engine.update_weights, weights_path(update))

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """As LLM.add_lora."""
        return await asyncio.to_thread(self._adapters.add, lora_request)

    async def remove_lora(self, lora: int | str) -> bool:
        """As LLM.remove_lora."""
        return await asyncio.to_thread(self._adapters.remove, lora)

    async def list_loras(self) -> list[LoRARequest]:
        """As LLM.list_loras."""
        return await asyncio.to_thread(self._adapters.list)

    async def reset_prefix_cache(self) -> None:
        await asyncio.to_thread(self._engine.reset_prefix_cache)
