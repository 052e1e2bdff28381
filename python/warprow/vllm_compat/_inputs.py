# SPDX-License-Identifier: Apache-2.0
"""Prompts, tokenizers and templates under vLLM's names."""

from __future__ import annotations

from typing import Any, TypedDict


class TextPrompt(TypedDict, total=False):
    prompt: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    prompt_token_ids: list[int]
    prompt: str
    cache_salt: str


class EmbedsPrompt(TypedDict, total=False):
    prompt_embeds: Any
    cache_salt: str


def get_tokenizer(tokenizer_name: Any, *args: Any, tokenizer_mode: str = "auto", revision: str | None = None, **options: Any) -> Any:
    """The tokenizer of transformers, as vLLM's function gives it. The engine has its own, of LLM.get_tokenizer()."""
    from transformers import AutoTokenizer  # type: ignore[import-not-found, import-untyped, unused-ignore]

    options["use_fast"] = tokenizer_mode != "slow"
    return AutoTokenizer.from_pretrained(tokenizer_name, *args, revision=revision, **options)


def resolve_chat_template(tokenizer: Any, chat_template: str | None = None, tools: Any = None, **options: Any) -> Any:
    """The template that is given, else the tokenizer's own."""
    if chat_template is not None:
        return chat_template
    try:
        return tokenizer.get_chat_template(chat_template, tools=tools)
    except (AttributeError, ValueError):  # it has none
        return None
