# SPDX-License-Identifier: Apache-2.0
"""Offline inference: prompts in, whole answers out."""

from __future__ import annotations

import importlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ._engine import Engine, Queue
from ._library import CLOSED, TIMEOUT, check
from ._requests import Assembly, Message, Prompt, chat_body, is_one_prompt, prompt_body, sampling_body, text_of, weights_path
from .beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from .logits_rules import Rule
from .lora import Adapters, LoRARequest, LoRARequests
from .outputs import RequestOutput
from .pooling import (
    ClassificationOutput,
    EmbeddingOutput,
    PooledAssembly,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
    cosine,
    pooling_request,
    retyped,
)
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer

# Python handles signals between calls of the library, so a wait ends this often.
WAIT_MS = 100

Params = TypeVar("Params", SamplingParams, PoolingParams)
Done = Assembly | PooledAssembly


class LLM:
    """A model and its engine in this process.

    engine_args are the engine's settings, as the flags of `warprow serve` with _ for -: max_model_len,
    kv_cache_memory_bytes, tensor_parallel_size, ... docs/configuration.md lists them. What is absent has its default or
    comes from WARPROW_... variables. logits_rules change the logits of every request; logits_rules.py says how they are called.

    Methods may be called from several threads; their requests run in one batch.
    """

    def __init__(self, model: str, *, logits_rules: Sequence[Rule] = (), **engine_args: Any) -> None:
        self._engine = Engine({"model": model, **engine_args}, logits_rules)
        self.info = self._engine.info()
        self._adapters = Adapters(self._engine)
        self._numbers = itertools.count()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the engine and gives its memory back. Also done when the object is collected and at exit."""
        self._engine.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequests = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answers to prompts, in their order: texts, token ids, or dicts with `prompt`, `prompt_token_ids` or
        `prompt_embeds`."""
        some: Sequence[Any] = [prompts] if is_one_prompt(prompts) else list(prompts)
        bodies = []
        for prompt, params, lora in zip(some, _each(sampling_params, len(some)), _loras(lora_request, len(some))):
            body = {**prompt_body(prompt), **self._adapters.body(lora)}
            bodies.append((self._assembly(text_of(body), params, lora), {**sampling_body(params), **body}))
        return self._answers(bodies, use_tqdm, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequests = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers to one conversation or a list of them. Texts are the model's own: tool calls are not taken apart."""
        is_one = len(messages) > 0 and hasattr(messages[0], "keys")
        chats: Sequence[Any] = [messages] if is_one else messages
        bodies = []
        for chat, params, lora in zip(chats, _each(sampling_params, len(chats)), _loras(lora_request, len(chats))):
            body = chat_body(
                chat,
                params,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template=chat_template,
                chat_template_kwargs=chat_template_kwargs,
            )
            if params is None:
                body["max_tokens"] = SamplingParams().max_tokens
            bodies.append((self._assembly(None, params, lora), {**body, **self._adapters.body(lora)}))
        return self._answers(bodies, use_tqdm, None)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: LoRARequests = None,
        use_tqdm: bool | Callable[..., Any] = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The beam_width best answers to each prompt. All prompts run in one batch; concurrency_limit has no effect."""
        some: Sequence[Any] = [prompts] if is_one_prompt(prompts) else list(prompts)
        with_logprobs = SamplingParams(logprobs=2 * params.beam_width)
        bodies = []
        for prompt, lora in zip(some, _loras(lora_request, len(some))):
            body = {**params.body(), **prompt_body(prompt), **self._adapters.body(lora)}
            bodies.append((self._assembly(None, with_logprobs, lora), body))
        return [self._beams(output) for output in self._answers(bodies, use_tqdm, None)]

    def _beams(self, output: RequestOutput) -> BeamSearchOutput:
        sequences = []
        for choice in output.outputs:
            if not choice.token_ids:  # fewer answers are possible at all
                continue
            tokens = [*(output.prompt_token_ids or []), *choice.token_ids]
            sequences.append(
                BeamSearchSequence(
                    tokens,
                    list(choice.logprobs or []),
                    choice.cumulative_logprob or 0.0,
                    self._engine.decode(tokens, False),
                    choice.finish_reason,
                )
            )
        return BeamSearchOutput(sequences)

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_task: str | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The vectors of a pooling model for prompts, in their order; without a task what the model yields."""
        some: Sequence[Any] = [prompts] if is_one_prompt(prompts) else list(prompts)
        bodies = []
        for prompt, params in zip(some, _each(pooling_params, len(some), "pooling_params")):
            number = str(next(self._numbers))
            body, assembly = pooling_request(self.info, prompt, params, pooling_task, number)
            bodies.append((assembly, body))
        return self._vectors(bodies, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """The embeddings of prompts."""
        outputs = self.encode(prompts, pooling_params, use_tqdm=use_tqdm, pooling_task="embed")
        return [retyped(output, EmbeddingOutput(output.outputs.data)) for output in outputs]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        """The probabilities of a classifier's labels; info["labels"] has their names."""
        outputs = self.encode(prompts, pooling_params, use_tqdm=use_tqdm, pooling_task="classify")
        return [retyped(output, ClassificationOutput(output.outputs.data)) for output in outputs]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | None = None,
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """How well texts fit one query, or each its own: a reranker's score, or the cosine of two embeddings."""
        queries = [data_1] if isinstance(data_1, str) else list(data_1)
        texts = [data_2] if isinstance(data_2, str) else list(data_2)
        if len(queries) not in (1, len(texts)):
            raise ValueError(f"data_1: {len(queries)} texts for {len(texts)} of data_2, must be 1 or as many")
        if self.info.get("pooling_task") == "embed":
            return self._cosines(queries, texts, use_tqdm, pooling_params)
        params = (pooling_params or PoolingParams()).body(False)
        bodies = []
        for i, text in enumerate(texts):
            query = queries[0 if len(queries) == 1 else i]
            assembly = PooledAssembly(str(next(self._numbers)), of_tokens=False)
            bodies.append((assembly, {**params, "text_1": query, "text_2": text}))
        outputs = self._vectors(bodies, use_tqdm)
        return [retyped(output, ScoringOutput(output.outputs.data[0])) for output in outputs]

    def _cosines(
        self, queries: list[str], texts: list[str], use_tqdm: bool | Callable[..., Any], params: PoolingParams | None
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        outputs = self.embed([*queries, *texts], use_tqdm=use_tqdm, pooling_params=params)
        found = []
        for i, output in enumerate(outputs[len(queries) :]):
            query = outputs[0 if len(queries) == 1 else i]
            score = cosine(query.outputs.embedding, output.outputs.embedding)
            found.append(retyped(output, ScoringOutput(score)))
            found[-1].prompt_token_ids = [*query.prompt_token_ids, *output.prompt_token_ids]
        return found

    def _assembly(self, text: str | None, params: SamplingParams | None, lora: LoRARequest | None) -> Assembly:
        assembly = Assembly(self._engine, str(next(self._numbers)), text, params)
        assembly.output.lora_request = lora
        return assembly

    def _answers(
        self,
        bodies: Sequence[tuple[Assembly, dict[str, Any]]],
        use_tqdm: bool | Callable[..., Any],
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        if priority is not None:
            if len(priority) != len(bodies):
                raise ValueError(f"priority: {len(priority)} values for {len(bodies)} prompts")
            bodies = [(assembly, {**body, "priority": each}) for (assembly, body), each in zip(bodies, priority)]
        self._run(bodies, use_tqdm)
        return [assembly.output for assembly, _ in bodies]

    def _vectors(
        self, bodies: Sequence[tuple[PooledAssembly, dict[str, Any]]], use_tqdm: bool | Callable[..., Any]
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        self._run(bodies, use_tqdm)
        return [assembly.output for assembly, _ in bodies]

    def _run(
        self,
        bodies: Sequence[tuple[Done, dict[str, Any]]],
        use_tqdm: bool | Callable[..., Any],
    ) -> None:
        """Submits the requests and gives their assemblies the outputs."""
        queue = Queue(self._engine)
        running: dict[int, Done] = {}
        try:
            for assembly, body in bodies:
                running[queue.submit(body)] = assembly
            for done in _progress(self._finished(queue, running), len(bodies), use_tqdm):
                assert done.finished
        finally:
            queue.close()

    @staticmethod
    def _finished(queue: Queue, running: dict[int, Done]) -> Iterable[Done]:
        """The requests, as they finish."""
        while running:
            status, output = queue.wait(WAIT_MS)
            if status == TIMEOUT:
                continue
            if output is None:
                check(CLOSED)
                return
            request = output.contents.request
            running[request].add(output)
            if running[request].finished:
                yield running.pop(request)

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._engine)

    def sleep(self, level: int = 1) -> None:
        """Gives the memory of weights and KV cache back. Level 2 drops the weights, level 1 keeps them on the host."""
        self._engine.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        for tag in [None] if tags is None else tags:
            self._engine.wake_up(tag)

    def reset_prefix_cache(self) -> None:
        self._engine.reset_prefix_cache()

    def update_weights(self, update: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        """Replaces the weights by those of another checkpoint of the same model, in place: a path, or vLLM's
        {"update_info": {"weights_path": ...}}. Requests of other threads go on with the new weights."""
        model = weights_path(update)
        self._engine.pause("keep")
        try:
            self._engine.update_weights(model)
        finally:
            self._engine.resume()

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Loads an adapter before a request names it; the setting enable_lora is needed. False if it is loaded already."""
        return self._adapters.add(lora_request)

    def remove_lora(self, lora: int | str) -> bool:
        """Unloads the adapter with this lora_int_id or name; requests that have it go on. False if there is none."""
        return self._adapters.remove(lora)

    def list_loras(self) -> list[LoRARequest]:
        """The adapters that are loaded, also those of the setting lora_modules, whose lora_int_id is 0."""
        return self._adapters.list()

    def state(self) -> dict[str, Any]:
        """The engine's state now, as the server's GET /v1/engine/state."""
        return self._engine.state()


def _each(params: Params | Sequence[Params] | None, count: int, name: str = "sampling_params") -> Sequence[Params | None]:
    if params is None or isinstance(params, (SamplingParams, PoolingParams)):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"{name}: {len(params)} for {count} prompts")
    return params


def _loras(loras: LoRARequests, count: int) -> Sequence[LoRARequest | None]:
    if loras is None or isinstance(loras, LoRARequest):
        return [loras] * count
    if len(loras) != count:
        raise ValueError(f"lora_request: {len(loras)} for {count} prompts")
    return loras


def _progress(items: Iterable[Done], total: int, use_tqdm: bool | Callable[..., Any]) -> Iterable[Done]:
    """The items, with a progress bar if it is wanted and tqdm is installed."""
    bar: Any = use_tqdm
    if use_tqdm is True:
        try:
            bar = importlib.import_module("tqdm.auto").tqdm
        except ImportError:
            bar = False
    return _with_speed(bar(items, total=total, desc="Processed prompts")) if callable(bar) else items


def _with_speed(bar: Iterable[Done]) -> Iterable[Done]:
    """The bar's items; it shows the tokens a second so far, if it has tqdm's method for that."""
    show = getattr(bar, "set_postfix_str", None)
    start, num_in, num_out = time.monotonic(), 0, 0
    for done in bar:
        more_in, more_out = done.num_tokens()
        num_in += more_in
        num_out += more_out
        if show is not None:
            seconds = max(time.monotonic() - start, 1e-6)
            show(f"input {num_in / seconds:.1f} toks/s, output {num_out / seconds:.1f} toks/s", refresh=False)
        yield done
