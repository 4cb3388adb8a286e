"""The formats in which models write tool calls and reasoning.

Owns how a format is recognised in the chat template, which shows earlier calls to the model and so
determines its format. Must not know how a format is parsed (``answer``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache

from quire.core.interfaces import Tokenizer


class Dialect(StrEnum):
    """The format of a model's answers.

    ``HERMES``   ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen, and
                 models with none of the other formats.
    ``LLAMA``    ``{"name": ..., "parameters": {...}}`` and nothing else: Llama 3.1 to 3.3.
    ``MISTRAL``  ``[TOOL_CALLS]`` and a list of calls, or a name with its ``[ARGS]``.
    ``HARMONY``  channels with headers; a call is a message to a function: gpt-oss.

    All but the last may begin with reasoning between ``<think>`` and ``</think>``.
    """

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    HARMONY = "harmony"


_CALL_MARKERS: Mapping[Dialect, tuple[str, ...]] = {
    Dialect.HERMES: ("<tool_call>", "</tool_call>"),
    Dialect.LLAMA: ("<|python_tag|>",),
    Dialect.MISTRAL: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    Dialect.HARMONY: (),
}
_REASONING = ("<think>", "</think>")
_CHANNELS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>")


@lru_cache(maxsize=64)
def dialect_taught_by(template: str) -> Dialect:
    """The dialect, recognised by the markers in a chat template."""
    if "<tool_call>" in template:
        return Dialect.HERMES
    if "<|channel|>" in template and "<|message|>" in template:
        return Dialect.HARMONY
    if "[TOOL_CALLS]" in template:
        return Dialect.MISTRAL
    if "<|start_header_id|>" in template and '"parameters"' in template:
        return Dialect.LLAMA
    return Dialect.HERMES


def marker_tokens(dialect: Dialect, tokenizer: Tokenizer, *, tools: bool) -> frozenset[int]:
    """The special tokens among the markers that the answer's parser needs. Their text must be
    shown, although other special tokens are left out of the text. ``tools``: whether calls are
    parsed."""
    reasoning = _CHANNELS if dialect is Dialect.HARMONY else _REASONING
    markers = (*reasoning, *(_CALL_MARKERS[dialect] if tools else ()))
    tokens = (tokenizer.encode(marker) for marker in markers)
    return frozenset(
        token_ids[0]
        for token_ids in tokens
        if len(token_ids) == 1 and not tokenizer.token_bytes(token_ids[0])
    )
