"""Answers to guests' questions: text to tokens and back, chat templates, the program's log.

The models' tokenizers and templates are in the host's process. Questions come from untrusted code:
they are checked and bounded here, and every error becomes an answer; nothing is raised.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from quire.core.errors import ErrorRecord, InvalidArgument, QuireError
from quire.core.interfaces import Tokenizer
from quire.programs.chat.template import ChatTemplate
from quire.programs.sandbox.messages import HostAnswer

MAX_TEXT_CHARS = 256 << 10
MAX_TOKENS = 256 << 10
"""Limits of one question. It is answered within the guest's turn and cannot be interrupted, so no
answer may take much longer than a turn, even on a slow machine."""

LEVELS = ("debug", "info", "warning", "error")

Log = Callable[[str, str, Mapping[str, Any]], None]
"""The signature is ``log(level, text, fields)``."""


class GuestTools:
    """Tokenizer and chat template of one model, for guests."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self.template = template


class Answers:
    """The answers for one guest. ``models``: the models in its launch message, by id."""

    def __init__(self, models: Mapping[str, GuestTools], log: Log) -> None:
        self._models = models
        self._log = log
        self._num_asked = 0

    def note_question(self) -> None:
        """Count one more question, for guests whose questions do not come through ``__call__``."""
        self._num_asked += 1

    def take_count(self) -> int:
        """The number of questions since the last call."""
        count, self._num_asked = self._num_asked, 0
        return count

    def __call__(self, question: str) -> str:
        self._num_asked += 1
        try:
            name, *arguments = json.loads(question)
            return _text(HostAnswer(value=_BY_NAME[name](self, *arguments)))
        except QuireError as exc:
            return _text(HostAnswer(error=exc.record()))
        except Exception as exc:  # not a valid question
            return _text(HostAnswer(error=_unclear(exc)))

    def _model(self, name: str) -> GuestTools:
        model = self._models.get(name)
        if model is None:
            served = ", ".join(self._models) or "none"
            raise InvalidArgument(f"no model {name!r} is served here; served: {served}")
        return model

    def tokenize(self, model: str, text: str, special: bool) -> list[int]:
        """The token ids of ``text``. Raises ``InvalidArgument``: no such model, or too much
        text."""
        if len(text) > MAX_TEXT_CHARS:
            raise InvalidArgument(
                f"tokenize: {len(text)} characters; at most {MAX_TEXT_CHARS} at a time are "
                "allowed: split the text at the end of a line"
            )
        return self._model(model).tokenizer.encode(text, special=bool(special))

    def detokenize(self, model: str, token_ids: list[int], skip_special: bool) -> str:
        """The text of ``token_ids``. Raises ``InvalidArgument``: no such model, or invalid ids."""
        tokenizer = self._model(model).tokenizer
        if len(token_ids) > MAX_TOKENS:
            raise InvalidArgument(
                f"detokenize: {len(token_ids)} tokens; at most {MAX_TOKENS} are allowed: split them"
            )
        _check_ids(token_ids, tokenizer)
        return tokenizer.decode(token_ids, skip_special=bool(skip_special))

    def _token_bytes(self, model: str, start: int, stop: int) -> list[str]:
        tokenizer = self._model(model).tokenizer
        end = min(stop, tokenizer.vocab_size, start + 1024)
        _check_ids([start, end - 1], tokenizer)
        return [
            base64.b64encode(tokenizer.token_bytes(token)).decode() for token in range(start, end)
        ]

    def _render(self, model: str, arguments: dict[str, Any]) -> str:
        template = self._model(model).template
        if template is None:
            raise InvalidArgument(f"model {model!r} has no chat template")
        messages = arguments.pop("messages")
        return template.render(messages, **arguments)

    def log(self, level: str, text: str, fields: Mapping[str, Any] | None = None) -> None:
        """Add one or several lines to the program's log; ``fields``: JSON values by name. An
        integer of more than 64 bits, which no message to the node can hold, becomes its digits."""
        written = _encodable(json.dumps(fields or {}, ensure_ascii=False))
        given = json.loads(written, parse_int=_integer)
        if not isinstance(given, dict):
            raise InvalidArgument("the fields of a log line must be an object of values by name")
        self._log(level if level in LEVELS else "info", _encodable(str(text)), given)


_BY_NAME: dict[str, Callable[..., Any]] = {
    "tokenize": Answers.tokenize,
    "detokenize": Answers.detokenize,
    "token_bytes": Answers._token_bytes,
    "render": Answers._render,
    "log": Answers.log,
}


def _check_ids(token_ids: list[int], tokenizer: Tokenizer) -> None:
    wrong = next((t for t in token_ids if not 0 <= t < tokenizer.vocab_size), None)
    if wrong is not None:
        raise InvalidArgument(f"token id {wrong}: the vocabulary has {tokenizer.vocab_size}")


def _unclear(error: Exception) -> ErrorRecord:
    return InvalidArgument(
        _encodable(f"a question that cannot be answered: {type(error).__name__}: {error}")
    ).record()


def _text(answer: HostAnswer) -> str:
    return msgspec.json.encode(answer).decode()


def _integer(digits: str) -> int | str:
    value = int(digits)
    return value if -(1 << 63) <= value < 1 << 64 else digits


def _encodable(text: str) -> str:
    """``text`` without lone surrogates, which JSON can represent but UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()
