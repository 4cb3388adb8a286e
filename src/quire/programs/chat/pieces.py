"""The pieces of an answer. The sum of a stream's pieces is the whole answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPiece:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """Call ``index`` of the answer begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A part of the arguments of call ``index``; all parts joined are JSON text."""

    index: int
    text: str


Piece = TextPiece | Reasoning | CallStarted | CallArguments


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call; ``arguments`` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]


def whole_answer(pieces: Iterable[Piece]) -> Answer:
    """The sum of ``pieces``."""
    content, reasoning = [], []
    started: list[CallStarted] = []
    arguments: list[list[str]] = []
    for piece in pieces:
        match piece:
            case TextPiece(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStarted():
                started.append(piece)
                arguments.append([])
            case CallArguments(index, text):
                arguments[index].append(text)
    calls = (
        Call(call.id, call.name, "".join(parts))
        for call, parts in zip(started, arguments, strict=True)
    )
    return Answer("".join(content), "".join(reasoning), tuple(calls))
