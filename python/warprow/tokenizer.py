# SPDX-License-Identifier: Apache-2.0
"""The model's tokenizer, as the engine uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._engine import Engine
from ._requests import chat_body


class Tokenizer:
    """Encodes and decodes text, and renders chats, under transformers' names."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        info = engine.info()
        self.bos_token_id: int | None = info["bos_token_id"]
        # Each of them ends an answer.
        self.eos_token_ids: list[int] = info["eos_token_ids"]
        self.eos_token_id: int | None = self.eos_token_ids[0] if self.eos_token_ids else None
        self.vocab_size: int = info["vocab_size"]

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._engine.encode(text, add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._engine.decode(ids, skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str | list[int]:
        body = chat_body(
            conversation,
            None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template=chat_template,
            chat_template_kwargs=variables or None,
        )
        text = self._engine.render_chat(body)
        return self.encode(text, add_special_tokens=False) if tokenize else text
