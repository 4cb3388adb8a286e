"""A guest's questions that are answered within the call: text to tokens and back, templates, the
log.

A question is a JSON array ``[name, ...]``, the answer an ``Answer``.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from quire.core.errors import ErrorRecord, from_record
from quire.core.ids import ModelId
from quire.core.interfaces import ServedModel
from quire.programs.chat.dialects import Dialect
from quire.programs.sandbox.messages import GuestModel

Ask = Callable[[str], str]

BLOCK_TOKENS = 64
"""Bytes of tokens are requested in blocks of this many ids and cached."""


def question(ask: Ask, name: str, *arguments: Any) -> Any:
    """The host's answer; raises the error if the answer is one."""
    answer = json.loads(ask(json.dumps([name, *arguments], separators=(",", ":"))))
    if answer["error"] is not None:
        raise from_record(ErrorRecord(**answer["error"]))
    return answer["value"]


class HostTokenizer:
    """``Tokenizer`` of one model, executed by the host."""

    def __init__(self, ask: Ask, model: GuestModel) -> None:
        self._ask = ask
        self._model: ModelId = model.id
        self._vocab_size = model.vocab_size
        self._eos_token_ids = model.eos_token_ids
        self._bytes: dict[int, list[bytes]] = {}
        self.dialect = Dialect(model.dialect)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._eos_token_ids

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        tokens: list[int] = question(self._ask, "tokenize", self._model, text, special)
        return tokens

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        text: str = question(self._ask, "detokenize", self._model, list(token_ids), skip_special)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        block, offset = divmod(token_id, BLOCK_TOKENS)
        if block not in self._bytes:
            start = block * BLOCK_TOKENS
            encoded = question(self._ask, "token_bytes", self._model, start, start + BLOCK_TOKENS)
            self._bytes[block] = [base64.b64decode(entry) for entry in encoded]
        return self._bytes[block][offset]

    def render(self, arguments: Mapping[str, Any]) -> str:
        """A conversation rendered with the model's own template, for ``chat_template``."""
        text: str = question(self._ask, "render", self._model, dict(arguments))
        return text


def served_model(ask: Ask, model: GuestModel) -> ServedModel:
    return ServedModel(
        id=model.id,
        base=model.base,
        info=model.info,
        tokenizer=HostTokenizer(ask, model),
        chat_template="" if model.has_chat_template else None,
        defaults=model.defaults,
        special_tokens=model.special_tokens,
        adapter=model.adapter,
        node_traits=model.node_traits,
    )


class LogStream(io.TextIOBase):
    """``sys.stdout`` and ``sys.stderr`` of a program: whole lines are written to its log."""

    def __init__(self, ask: Ask, level: Literal["info", "error"]) -> None:
        self._ask = ask
        self._level = level
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        lines = (self._rest + text).split("\n")
        self._rest = lines.pop()
        if lines:
            question(self._ask, "log", self._level, "\n".join(lines))
        return len(text)

    def flush(self) -> None:
        """Do nothing: whole lines are written at once; an incomplete line waits for its end, or
        that of the program."""

    def finish(self) -> None:
        if self._rest:
            self.write("\n")
