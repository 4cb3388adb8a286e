"""``Journal``: the stored state of one query, for the program that answers it.

Owns the meaning of a query's entries: the query, the primitives that have ended, and those that
were cut off. Must not know where the entries are stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from quire.core.errors import AlreadyExists, InvalidArgument, QuireError
from quire.programs.api import Api
from quire.programs.workflow.durable.entries import (
    AnyEntry,
    EffectBegun,
    EffectFailed,
    GraphGrew,
    PrimitiveEnded,
    QueryFinished,
    QueryHead,
    QueryPlanned,
    decoded,
    encoded,
)
from quire.programs.workflow.durable.stored_values import restored

_CHANGED: Mapping[str, str] = {
    "template": "another template of that name",
    "config": "another configuration",
    "inputs": "other inputs",
    "graph": "another graph: other passes, profiles, or another release of Quire",
    "models": "other models or encoders",
}
"""The change behind each digest that differs, for the error."""


@dataclass(frozen=True, slots=True)
class QueryId:
    """A client's name for its query. ``resume``: continue with the stored inputs and results.
    ``repeat_interrupted``: call tools again that were cut off."""

    key: str
    resume: bool = False
    repeat_interrupted: bool = False


class Journal:
    """Made by ``opened``; use ``async with``. ``head`` and ``finished``: None until they are
    stored. ``num_primitives``: the size of the query as far as it has grown."""

    def __init__(self, api: Api, number: int, name: QueryId) -> None:
        self._api, self._number, self.name = api, number, name
        self.head: QueryHead | None = None
        self.planned: QueryPlanned | None = None
        self.finished: QueryFinished | None = None
        self.num_primitives = 0
        self._begun: dict[str, str] = {}
        self._ended: dict[str, bytes] = {}
        self._grew: dict[str, bytes] = {}

    @classmethod
    async def opened(cls, api: Api, workflow: str, name: QueryId) -> Self:
        """The journal of the query with this name.

        Raises:
            InvalidArgument: the node stores no queries, or the file is damaged.
            UnknownHandle: ``resume``, and nothing is stored.
            CapacityError: the query is being answered.
        """
        answer: dict[str, Any] = await api.issuer.ask(
            "queries.open", workflow=workflow, key=name.key, must_exist=name.resume
        )
        journal = cls(api, answer["number"], name)
        for frame in answer["frames"]:
            try:
                journal._note(decoded(frame))
            except msgspec.DecodeError as exc:
                await journal.close()
                raise InvalidArgument(
                    f"what is kept of the query {name.key!r} is of another release: give it "
                    "another id",
                    param="query_id",
                ) from exc
        return journal

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        with suppress(QuireError):  # the program, with which it closes, may have ended
            await self._api.issuer.ask("queries.close", number=self._number)

    # -- what is kept ------------------------------------------------------------------------------

    @property
    def num_kept(self) -> int:
        """The number of primitives that do not run again."""
        return len(self._ended) + len(self._grew)

    def outputs(self, primitive: str) -> dict[str, Any] | None:
        """The outputs of a primitive, without states; None if they are not stored."""
        content = self._ended.get(primitive)
        return None if content is None else restored(content)

    def has_ended(self, primitive: str) -> bool:
        return primitive in self._ended

    def growth(self, primitive: str) -> bytes | None:
        """The components that a growth has returned."""
        return self._grew.get(primitive)

    def inputs(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The query's inputs, with the texts of documents, and the configuration."""
        assert self.head is not None, "something is kept"
        return json.loads(self.head.query), json.loads(self.head.settings)

    def results(self) -> dict[str, Any]:
        """The results of a finished query."""
        assert self.finished is not None, "it is finished"
        return restored(self.finished.results)

    def check(self, digests: Mapping[str, str]) -> None:
        """Check that the query is the stored one. ``digests``: those of a ``QueryHead`` or a
        ``QueryPlanned``.

        Raises:
            AlreadyExists: it is another query.
        """
        for name, digest in digests.items():
            kept = getattr(self.head if hasattr(self.head, name) else self.planned, name)
            if kept != digest:
                raise AlreadyExists(
                    f"the query {self.name.key!r} was asked with {_CHANGED[name]}: ask as before, "
                    "give it another id, or delete what is kept of it",
                    param="query_id",
                )

    def check_interrupted(self) -> None:
        """Check that no tool was cut off, unless the client allows another call.

        Raises:
            InvalidArgument: a tool was cut off; the error names its component.
        """
        if self._begun and not self.name.repeat_interrupted:
            nodes = ", ".join(sorted(set(self._begun.values())))
            raise InvalidArgument(
                f"the query {self.name.key!r} was cut off while {nodes} ran, and it is not known "
                "whether the call took effect: check, and ask with repeat_interrupted to have it "
                "called again; a tool that changes nothing may be declared 'pure'",
                param="repeat_interrupted",
            )

    # -- what is added -----------------------------------------------------------------------------

    async def add(self, entry: AnyEntry) -> None:
        """Store ``entry``; return when it is on disk.

        Raises:
            CapacityError, QuotaExceeded: the entry cannot be stored.
        """
        await self._api.issuer.ask("queries.append", number=self._number, frame=encoded(entry))
        if isinstance(entry, QueryHead | QueryPlanned):
            self._note(entry)

    async def finish(self, results: bytes, num_primitives: int) -> None:
        """Store the results of the query, which has ended, and delete its inputs and values."""
        assert self.head is not None, "it has begun"
        head = msgspec.structs.replace(self.head, query="{}")
        entries = [encoded(head), encoded(QueryFinished(results, num_primitives))]
        await self._api.issuer.ask("queries.finish", number=self._number, frames=entries)

    def _note(self, entry: AnyEntry) -> None:
        match entry:
            case QueryHead():
                self.head = entry
            case QueryPlanned():
                self.planned = entry
                self.num_primitives = entry.num_primitives
            case EffectBegun():
                self._begun[entry.primitive] = entry.node
            case EffectFailed():
                self._begun.pop(entry.primitive, None)
            case PrimitiveEnded():
                self._begun.pop(entry.primitive, None)
                self._ended[entry.primitive] = entry.outputs
            case GraphGrew():
                self._grew[entry.primitive] = entry.growth
                self.num_primitives = entry.num_primitives
            case QueryFinished():
                self.finished = entry
                self.num_primitives = entry.num_primitives
