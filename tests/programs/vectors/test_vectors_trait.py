"""The trait Vectors over a store in memory: owners, bounds, capabilities, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quire.core.errors import Forbidden, InvalidArgument, ProgramFailed, QuireError, UnknownHandle
from quire.core.ids import ProgramId, TenantId, ThreadId
from quire.programs.capabilities import Capabilities
from quire.programs.services.encoding import CallOrder
from quire.programs.services.operations import Identity
from quire.programs.vectors import (
    CollectionPlace,
    ExactStore,
    FoundRow,
    VectorRows,
    VectorService,
    service,
    unit_vectors,
)
from quire.programs.vectors.store import F32
from quire.testing import LocalNode

TENANT = TenantId("default")
ROW = unit_vectors(b"\0\0\x80?\0\0\0\0", 2)


async def test_a_program_puts_searches_lists_and_drops() -> None:
    async def main(api: Any) -> list[Any]:
        await api.vectors_put("notes", [[3, 4], [0, 1]], ["a", "b"], shared=True)
        await api.vectors_put("notes", [[1, 0]], ["own"])
        (found,) = await api.vectors_search("notes", [[0, 2]], 5, shared=True)
        (own,) = await api.vectors_search("notes", [[0, 2]], 5)
        rows = [(one.number, round(one.score, 3), one.text) for one in (*found, *own)]
        names = [await api.vectors_list()]
        dropped = [await api.vectors_drop("notes", shared=True) for _ in range(2)]
        return [rows, names, dropped]

    async with LocalNode() as local:
        assert await local.run(main) == [
            [(1, 1.0, "b"), (0, 0.8, "a"), (0, 0.0, "own")], [["notes"]], [True, False]
        ]  # fmt: skip


async def test_the_own_collections_of_a_program_end_with_it() -> None:
    places: list[CollectionPlace] = []

    async def main(api: Any) -> None:
        name = await api.vectors_name()
        await api.vectors_put(name, [[1, 0]], ["a"])
        places.append(CollectionPlace(TENANT, api.program, name))
        await local.vectors.search(places[0], ROW, 1)

    async with LocalNode() as local:
        await local.run(main)
        with pytest.raises(UnknownHandle):
            await local.vectors.search(places[0], ROW, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("put", "x", [], []), "no vectors: give at least one"),
        (("put", "x", [[1], [1, 2]], ["a", "b"]), r"vectors\[1\] has 2 dimensions, those before"),
        (("put", "x", [["one"]], ["a"]), "vectors are lists of numbers"),
        (("put", "x", [[]], ["a"]), "vectors of 0 dimensions; 1 to 8192"),
        (("put", "x", [[float("nan")]], ["a"]), "a value that is not finite"),
        (("put", "x", [[1.0]], ["a", "b"]), "1 vectors for 2 texts"),
        (("put", "x", [[1.0]], ["a\0"]), r"texts\[0\] has a character that cannot be stored"),
        (("put", "x", [[1.0]], ["\ud800"]), r"texts\[0\] has a character that cannot be stored"),
        (("put", "x", [[1.0]], ["four"]), "4 characters; at most 3 are allowed"),
        (("put", "x", [[1.0]] * 3, ["a"] * 3), "3 rows; give 1 to 2 in one call"),
        (("put", "\n", [[1.0]], ["a"]), "its name must be printable"),
        (("put", "", [[1.0]], ["a"]), "must be text that is not empty"),
        (("search", "x", [[1.0]] * 3, 1), "3 vectors; give 1 to 2 in one call"),
        (("search", "x", [[1.0]], 0), "num is 0: give 1 to 1024"),
        (("search", "x", [[1.0]], 1), "this program has no collection of vectors 'x'"),
    ],
)
async def test_what_cannot_be_stored_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, call: tuple[Any, ...], message: str
) -> None:
    for name, most in [("MAX_TEXTS", 2), ("MAX_CHARS", 3), ("MAX_QUERIES", 2)]:
        monkeypatch.setattr(service, name, most)

    async def main(api: Any) -> None:
        function, *arguments = call
        await getattr(api, f"vectors_{function}")(*arguments)

    async with LocalNode() as local:
        with pytest.raises(ProgramFailed, match=message):
            await local.run(main)


async def test_a_manifest_names_the_shared_collections() -> None:
    identity = Identity(ProgramId(1), TENANT, "p", Capabilities(stores=("notes-*",)))
    store = ExactStore()
    vectors = VectorService(identity, store)
    value = b"\0\0\x80?"
    await vectors.put("own", False, 0, value, 1, ["a"])
    await vectors.put("notes-1", True, 0, value, 1, ["a"])
    with pytest.raises(Forbidden, match="store 'other' is not allowed for this program"):
        await vectors.put("other", True, 0, value, 1, ["a"])
    with pytest.raises(Forbidden):
        await vectors.search("other", True, value, 1, 1)
    with pytest.raises(Forbidden):
        await vectors.drop("other", True)
    await VectorService(Identity(ProgramId(2), TENANT, "q"), store).put(
        "other", True, 0, value, 1, ["a"]
    )
    assert await vectors.names() == ["notes-1"]


async def test_a_tenant_that_knows_the_name_of_anothers_collection_finds_its_own_alone() -> None:
    store, value = ExactStore(), b"\0\0\x80?"
    theirs = VectorService(Identity(ProgramId(1), TENANT, "p"), store)
    await theirs.put("notes", True, 0, value, 1, ["theirs"])
    other = VectorService(Identity(ProgramId(2), TenantId("other"), "p"), store)
    assert await other.names() == []
    with pytest.raises(UnknownHandle, match="this tenant has no collection of vectors 'notes'"):
        await other.search("notes", True, value, 1, 1)
    assert not await other.drop("notes", True)
    await other.put("notes", True, 0, value, 1, ["own"])
    for vectors, text in ((theirs, "theirs"), (other, "own")):
        ((found,),) = await vectors.search("notes", True, value, 1, 9)
        assert found[2] == text


def test_what_is_no_vector_is_refused() -> None:
    for values, dimensions in [(b"", 1), (b"\0" * 6, 1), (b"\0" * 8, 0)]:
        with pytest.raises(InvalidArgument, match="give vectors of one size"):
            unit_vectors(values, dimensions)


async def test_a_program_that_has_ended_leaves_the_store_alone() -> None:
    class Untouched(ExactStore):
        def end(self, program: ProgramId) -> None:
            raise QuireError("it had nothing of its own")

    vectors = VectorService(Identity(ProgramId(1), TENANT, "p"), Untouched())
    await vectors.put("notes", True, 0, b"\0\0\x80?", 1, ["a"])
    vectors.close()


async def test_what_is_stored_behind_the_end_of_its_program_is_deleted() -> None:
    """A store goes on with a call whose program does not wait for it any more."""
    began, let_go = asyncio.Event(), asyncio.Event()

    class Slow(ExactStore):
        async def put(self, place: CollectionPlace, rows: VectorRows) -> None:
            await asyncio.shield(asyncio.create_task(self._later(place, rows)))

        async def _later(self, place: CollectionPlace, rows: VectorRows) -> None:
            began.set()
            await let_go.wait()
            await super().put(place, rows)

    store = Slow()
    vectors = VectorService(Identity(ProgramId(1), TENANT, "p"), store)
    putting = asyncio.create_task(vectors.put("x", False, 0, b"\0\0\x80?", 1, ["a"]))
    await began.wait()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    vectors.close()
    let_go.set()
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    assert not await store.drop(CollectionPlace(TENANT, ProgramId(1), "x"))


class Noted:
    """``ProgramTurns`` that keep what they were asked for, and whether a turn is held."""

    def __init__(self) -> None:
        self.orders: list[CallOrder] = []
        self.held = False
        self.ended = False

    @asynccontextmanager
    async def turn(self, order: CallOrder) -> AsyncIterator[None]:
        self.orders.append(order)
        self.held = True
        yield
        self.held = False

    def end(self) -> None:
        self.ended = True


class Watched(ExactStore):
    """Fails where it is used by somebody whose turn it is not."""

    def __init__(self, turns: Noted) -> None:
        super().__init__()
        self._turns = turns

    async def put(self, place: CollectionPlace, rows: VectorRows) -> None:
        assert self._turns.held
        await super().put(place, rows)

    async def search(self, place: CollectionPlace, vectors: F32, num: int) -> list[list[FoundRow]]:
        assert self._turns.held
        return await super().search(place, vectors, num)


async def test_the_store_is_used_at_ones_turn_alone() -> None:
    turns = Noted()
    identity = Identity(ProgramId(1), TENANT, "p")
    vectors = VectorService(identity, Watched(turns), turns)
    values = b"\0\0\x80?\0\0\0\0"
    await vectors.put("x", False, 0, values, 2, ["a"], depth=3, invocation=1, remaining_us=5)
    await vectors.search("x", False, values, 2, 1, thread=2, depth=1, priority=7)
    assert turns.orders == [
        CallOrder(depth=3, invocation=1, remaining_us=5),
        CallOrder(ThreadId(2), depth=1, priority=7),
    ]
    vectors.close()
    assert turns.ended
