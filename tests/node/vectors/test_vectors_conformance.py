"""What every vector store keeps to: in memory, LanceDB, PostgreSQL with pgvector."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from quire.core.errors import Draining, InvalidArgument, QuotaExceeded, UnknownHandle
from quire.core.ids import ProgramId, TenantId
from quire.node.vectors.choice import vector_store
from quire.programs.vectors import CollectionPlace, VectorRows, VectorStore, store, unit_vectors
from quire.programs.vectors.store import F32

TENANT = TenantId("default")
OWN = CollectionPlace(TENANT, ProgramId(7), "own")
SHARED = CollectionPlace(TENANT, None, "shared")
HOSTILE = ["../../etc", "'; DROP TABLE quire.collections; --", "a/b\\c", "x" * 500, "ä 🦊", "CON"]


@pytest.fixture(params=["exact", "lance", "postgres"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[VectorStore]:
    made = opened(request, tmp_path)
    yield made
    with suppress(Draining):  # a test may have closed it
        for name in await made.names(TENANT):  # the database outlives the test
            await made.drop(CollectionPlace(TENANT, None, name))
    await asyncio.to_thread(made.close)


def opened(request: pytest.FixtureRequest, directory: Path) -> VectorStore:
    if request.param == "postgres":
        return vector_store(request.getfixturevalue("postgres"), None)
    if request.param == "lance":
        pytest.importorskip("lancedb", reason="needs the extra 'workflows'")
    return vector_store(request.param, directory)


def rows(first: int, vectors: list[list[float]], texts: list[str] | None = None) -> VectorRows:
    texts = texts or [f"text {first + n}" for n in range(len(vectors))]
    return VectorRows(first, unit(*vectors), texts)


def unit(*vectors: list[float]) -> F32:
    return unit_vectors(np.array(vectors, "<f4").tobytes(), len(vectors[0]))


async def texts_of(
    stores: VectorStore, place: CollectionPlace, vector: list[float], num: int
) -> list[str]:
    (found,) = await stores.search(place, unit(vector), num)
    return [one.text for one in found]


async def searched_until_gone(stores: VectorStore, place: CollectionPlace) -> None:
    while True:  # what is of a program that has ended is deleted soon
        await stores.search(place, unit([1, 0]), 1)


@pytest.mark.parametrize("place", [OWN, SHARED], ids=["own", "shared"])
async def test_the_nearest_by_angle_of_equals_the_lowest_number(
    stores: VectorStore, place: CollectionPlace
) -> None:
    texts = ["right, too", "up", "between"]
    await stores.put(place, rows(2, [[2, 0], [0, 5], [1, 1]], texts))
    await stores.put(place, rows(0, [[3, 0], [1, 0]], ["right", "right again"]))
    found = await stores.search(place, unit([0.1, 0], [0, 1]), 4)
    assert [one.text for one in found[0]] == ["right", "right again", "right, too", "between"]
    assert [one.number for one in found[0]] == [0, 1, 2, 4]
    assert [one.score for one in found[0]] == pytest.approx([1, 1, 1, 0.5**0.5], abs=1e-6)
    assert found[1][0].text == "up"
    assert len(found[1]) == 4
    assert (await texts_of(stores, place, [-1, 0], 9))[:2] == ["up", "between"]


async def test_all_stores_find_what_numpy_finds(stores: VectorStore) -> None:
    random = np.random.default_rng(0)
    given = random.normal(size=(60, 16)).astype(np.float32)
    wanted = random.normal(size=(5, 16)).astype(np.float32)
    unit_rows, unit_wanted = (unit(*one.tolist()) for one in (given, wanted))
    stages = [40, 0, 20]  # in another order than their numbers, and side by side
    await asyncio.gather(
        *(stores.put(OWN, rows(first, given[first : first + 20].tolist())) for first in stages)
    )
    found = await stores.search(OWN, unit_wanted, 7)
    scores = unit_wanted @ unit_rows.T
    assert [[one.number for one in line] for line in found] == np.argsort(-scores, axis=1)[
        :, :7
    ].tolist()
    best = np.sort(scores, axis=1)[:, ::-1][:, :7]
    assert [[one.score for one in line] for line in found] == pytest.approx(best, abs=1e-5)


async def test_a_row_of_a_number_that_is_there_replaces_it(stores: VectorStore) -> None:
    await stores.put(OWN, rows(0, [[1, 0], [0, 1]], ["a", "b"]))
    await stores.put(OWN, rows(1, [[1, 1], [0, 0]], ["new", "zero"]))
    assert await texts_of(stores, OWN, [1, 1], 9) == ["new", "a", "zero"]


async def test_collections_are_those_of_their_owners(stores: VectorStore) -> None:
    other_tenant = CollectionPlace(TenantId("other"), None, "shared")
    other_program = CollectionPlace(TENANT, ProgramId(8), "own")
    for place, text in [(OWN, "mine"), (SHARED, "ours"), (other_program, "its")]:
        await stores.put(place, rows(0, [[1, 0]], [text]))
    with pytest.raises(UnknownHandle, match="this tenant has no collection of vectors 'shared'"):
        await stores.search(other_tenant, unit([1, 0]), 1)
    assert not await stores.drop(other_tenant)
    assert await stores.names(TENANT) == ["shared"]
    assert await stores.names(TenantId("other")) == []
    stores.end(ProgramId(7))
    assert await texts_of(stores, other_program, [1, 0], 9) == ["its"]
    assert await texts_of(stores, SHARED, [1, 0], 9) == ["ours"]
    with pytest.raises(UnknownHandle, match="this program has no collection of vectors 'own'"):
        await searched_until_gone(stores, OWN)
    assert not await stores.drop(OWN)
    stores.end(ProgramId(8))
    assert await stores.drop(SHARED)
    assert await stores.names(TENANT) == []


async def test_no_name_reaches_the_collection_of_another_tenant(stores: VectorStore) -> None:
    """Neither its own name, nor how a store calls it: paths, digests, tables."""
    await stores.put(SHARED, rows(0, [[1, 0]], ["ours"]))
    tenant, name = (hashlib.sha256(one.encode()).hexdigest() for one in (TENANT, "shared"))
    paths = [f"{TENANT}/shared", f"../{TENANT}/shared", f"../{tenant}/{name}", name, f"../{name}"]
    tables = ["rows_1", "quire.rows_1", 'rows_1"', "shared' OR tenant = 'default"]
    other = TenantId("other")
    for wanted in ["shared", *paths, *tables]:
        place = CollectionPlace(other, None, wanted)
        with pytest.raises(UnknownHandle, match="this tenant has no collection"):
            await stores.search(place, unit([1, 0]), 1)
        assert not await stores.drop(place)
        await stores.put(place, rows(0, [[1, 0]], ["theirs"]))
        assert await texts_of(stores, SHARED, [1, 0], 9) == ["ours"]
        assert await stores.drop(place)
    assert await texts_of(stores, SHARED, [1, 0], 9) == ["ours"]


async def test_hostile_names_are_only_names(stores: VectorStore, tmp_path: Path) -> None:
    for number, name in enumerate(HOSTILE):
        await stores.put(CollectionPlace(TENANT, None, name), rows(0, [[1, 0]], [str(number)]))
    assert await stores.names(TENANT) == sorted(HOSTILE)
    for number, name in enumerate(HOSTILE):
        assert await texts_of(stores, CollectionPlace(TENANT, None, name), [1, 0], 1) == [
            str(number)
        ]
    assert set(os.listdir(tmp_path)) <= {"vectors"}


async def test_what_does_not_fit_is_refused_by_name(
    stores: VectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stores.put(SHARED, rows(0, [[1, 0], [0, 1]]))
    refused = "'shared': a vector has 3 dimensions, those stored before have 2: use one embedding"
    with pytest.raises(InvalidArgument, match=refused):
        await stores.put(SHARED, rows(2, [[1, 0, 0]]))
    with pytest.raises(InvalidArgument, match=refused):
        await stores.search(SHARED, unit([1, 0, 0]), 1)
    monkeypatch.setattr(store, "MAX_ROWS", 3)
    await stores.put(SHARED, rows(1, [[1, 0], [0, 1]]))  # one of them is there already
    with pytest.raises(
        InvalidArgument, match=r"'shared' would have 4 rows .* at most 3 are stored"
    ):
        await stores.put(SHARED, rows(3, [[0, 1]]))
    monkeypatch.setattr(store, "MAX_COLLECTIONS", 1)
    await stores.put(OWN, rows(0, [[1, 0]]))
    for place, whose in [(SHARED, "tenant"), (OWN, "program")]:
        message = f"this {whose} has 1 collections of vectors; at most 1 are allowed"
        with pytest.raises(QuotaExceeded, match=message):
            await stores.put(CollectionPlace(TENANT, place.program, "another"), rows(0, [[1, 0]]))
    stores.end(ProgramId(7))


@pytest.mark.parametrize("stores", ["lance", "postgres"], indirect=True)
async def test_the_disk_of_a_tenant_is_bounded(
    stores: VectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts count too: of each collection only the rows and numbers are bounded."""
    monkeypatch.setattr(store, "MAX_TENANT_DISK_BYTES", 1 << 20)
    random = np.random.default_rng(0)
    texts = [random.bytes(200_000).hex()[: 250 << 10] for _ in range(2)]  # packed by half at most
    refused = r"tenant would have 1\d{6} bytes on disk; at most 1048576 are allowed: drop some"
    for number in range(3):
        await stores.put((OWN, SHARED)[number % 2], rows(number, [[1, 0]], [texts[0]]))
    with pytest.raises(QuotaExceeded, match=refused):
        await stores.put(SHARED, rows(3, [[1, 0]], [3 * texts[0]]))
    with pytest.raises(QuotaExceeded, match=refused):
        await stores.put(CollectionPlace(TENANT, None, "new"), rows(0, [[1, 0]], [4 * texts[0]]))
    other = CollectionPlace(TenantId("other"), None, "shared")
    await stores.put(other, rows(0, [[1, 0]], [texts[1]]))
    assert await texts_of(stores, other, [1, 0], 1) == [texts[1]]
    assert await stores.drop(other)
    assert await stores.drop(OWN)
    await stores.put(SHARED, rows(9, [[0, 1]], [texts[1]]))
    assert await texts_of(stores, SHARED, [0, 1], 1) == [texts[1]]


@pytest.mark.parametrize("stores", ["lance", "postgres"], indirect=True)
async def test_shared_collections_outlive_the_node_and_those_of_programs_do_not(
    stores: VectorStore, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for place in (OWN, SHARED):
        await stores.put(place, rows(0, [[1, 0]], [place.name]))
    await asyncio.to_thread(stores.close)
    choice = request.node.callspec.params["stores"]
    address = request.getfixturevalue("postgres") if choice == "postgres" else choice
    again = vector_store(address, tmp_path)
    try:
        assert await texts_of(again, SHARED, [1, 0], 1) == ["shared"]
        with pytest.raises(UnknownHandle):
            await again.search(OWN, unit([1, 0]), 1)
    finally:
        await again.drop(SHARED)
        await asyncio.to_thread(again.close)
