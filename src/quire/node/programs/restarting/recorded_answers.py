"""The recorded answers of services and other hosts to a program, in the form that moves with it.

Owns the list of services that keep something for the program on its node, so that it must stay
there. Must not know how a program moves.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quire.core.errors import ErrorRecord, QuireError, from_record
from quire.programs.runtime.replay_log import RecordedQuestion, is_whole, plain
from quire.programs.services.network import HttpReply

_BOUND = {
    "topic": "a topic",
    "queue": "a work queue",
    "store": "the store",
    "blob": "the store",
    "vectors": "a vector store",
    "mcp": "an MCP server",
    "search": "the search engine",
    "queries": "kept queries",
    "shared": "shared results",
}
"""Services, by the first part of their operations' names, that keep something for programs or
answer from what their node alone has. The answers of all others depend on the question alone."""


class HandedAnswer(msgspec.Struct, frozen=True):
    """A question with its answer, if it has one. ``rank``, ``num_heard``,
    ``num_acts``: see ``Arrival``."""

    what: list[Any]
    answer: Any
    error: ErrorRecord | None
    answered: bool
    rank: int | None = None
    num_heard: int = 0
    num_acts: int = 0


class _Response(msgspec.Struct, frozen=True, tag=True):
    """The HTTP response of another host."""

    text: str
    status: int
    headers: dict[str, str]
    body: bytes


def why_they_stay(calls: list[RecordedQuestion], requests: list[RecordedQuestion]) -> str | None:
    """Why a program with these recorded answers cannot move to another node; None: it can."""
    if not (is_whole(calls) and is_whole(requests)):
        return "it has asked more than is recorded"
    for asked in calls:
        if (kind := _BOUND.get(str(asked.what[0]).partition(".")[0])) is not None:
            return f"it has used {kind} of this node{_named(asked)}, and other nodes have another"
    for asked in (*calls, *requests):
        if asked.error is not None and not isinstance(asked.error, QuireError):
            return f"{asked.what[0]} has failed in a way that cannot be told to another node"
        try:
            msgspec.msgpack.encode(_handed(asked))
        except (TypeError, ValueError, OverflowError):
            return f"the answer of {asked.what[0]} cannot be told to another node"
    return None


def _named(asked: RecordedQuestion) -> str:
    """The operation and its first text argument."""
    arguments = dict(asked.what[1]) if len(asked.what) > 1 else {}
    about = next((one for one in arguments.values() if isinstance(one, str)), None)
    return f" ({asked.what[0]})" if about is None else f" ({asked.what[0]} {about[:80]!r})"


def handed_answers(asked: list[RecordedQuestion]) -> list[HandedAnswer]:
    return [_handed(one) for one in asked]


def _handed(asked: RecordedQuestion) -> HandedAnswer:
    answer = asked.answer
    if isinstance(answer, HttpReply):
        response = _Response(str(answer), answer.status, dict(answer.headers), answer.body)
        answer = msgspec.to_builtins(response, builtin_types=(bytes,))
    record = asked.error.record() if isinstance(asked.error, QuireError) else None
    return HandedAnswer(
        plain(asked.what),
        answer,
        record,
        asked.answered,
        asked.rank,
        asked.num_heard,
        asked.num_acts,
    )


def taken_answers(handed: list[HandedAnswer]) -> list[RecordedQuestion]:
    return [_taken(one) for one in handed]


def _taken(handed: HandedAnswer) -> RecordedQuestion:
    answer = handed.answer
    if isinstance(answer, dict) and answer.get("type") == _Response.__struct_config__.tag:
        read = msgspec.convert(answer, _Response)
        answer = HttpReply.made(read.text, read.status, read.headers, read.body)
    error = None if handed.error is None else from_record(handed.error)
    return RecordedQuestion(
        tuple(handed.what),
        answer,
        error,
        handed.answered,
        handed.rank,
        handed.num_heard,
        handed.num_acts,
    )
