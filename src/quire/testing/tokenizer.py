"""A byte-level tokenizer with chat markers: every text can be encoded, every token list decoded.

Ids 0..255 are the bytes; special tokens follow. Small enough for a fake engine's vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SPECIAL_TOKENS = (
    "<|bos|>",
    "<|eos|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|end|>",
)

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- if tools %}<|system|>tools: {{ tools | tojson }}<|end|>{% endif %}
{%- for message in messages %}
{{- '<|' ~ message['role'] ~ '|>' ~ (message['content'] or '') }}
{%- if message['tool_calls'] %}
{%- for call in message['tool_calls'] %}
{{- '<tool_call>' ~ (call['function'] | tojson) ~ '</tool_call>' }}
{%- endfor %}
{%- endif %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
"""Jinja2, in the style of Hugging Face templates: roles system, user, assistant, tool."""


class FakeTokenizer:
    """``Tokenizer`` over bytes. An assistant's turn ends with ``<|end|>`` (or ``<|eos|>``), which
    custom ``special_tokens`` must include."""

    chat_template = CHAT_TEMPLATE

    def __init__(self, special_tokens: Sequence[str] = SPECIAL_TOKENS) -> None:
        self._ids = {text: 256 + i for i, text in enumerate(special_tokens)}
        self._texts = {i: text for text, i in self._ids.items()}
        self._pattern = re.compile("(" + "|".join(map(re.escape, special_tokens)) + ")")

    @property
    def vocab_size(self) -> int:
        return 256 + len(self._ids)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (self._ids["<|eos|>"], self._ids["<|end|>"])

    def special_id(self, text: str) -> int:
        """The id of a special token; ``KeyError`` for any other text."""
        return self._ids[text]

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        if not special:
            return list(text.encode())
        token_ids: list[int] = []
        for part in self._pattern.split(text):
            if part in self._ids:
                token_ids.append(self._ids[part])
            else:
                token_ids.extend(part.encode())
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        pieces = bytearray()
        for token_id in token_ids:
            if token_id < 256:
                pieces.append(token_id)
            elif not skip_special:
                pieces += self._texts[token_id].encode()
        return pieces.decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self._texts:
            return b""
        return bytes([token_id])
