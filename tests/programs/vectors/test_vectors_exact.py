"""The store in memory: work on rows holds up nobody's loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from quire.core.errors import QuotaExceeded
from quire.core.ids import ProgramId, TenantId
from quire.programs.services.operations import Identity
from quire.programs.vectors import (
    CollectionPlace,
    ExactStore,
    VectorRows,
    VectorService,
    exact,
    service,
    unit_vectors,
)

TENANT = TenantId("default")
ROW = unit_vectors(b"\0\0\x80?", 1)
PATIENCE_S = 10.0
"""Only a search that is held up waits so long."""


async def test_what_is_called_on_the_loop_waits_for_no_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches, dropped = asyncio.Event(), threading.Event()
    loop, found = asyncio.get_running_loop(), list[bool]()

    def slowly(*given: Any) -> list[Any]:
        loop.call_soon_threadsafe(searches.set)
        found.append(dropped.wait(PATIENCE_S))
        return []

    monkeypatch.setattr(exact, "_nearest", slowly)
    store = ExactStore()
    places = [CollectionPlace(TENANT, ProgramId(one), "rows") for one in (1, 2, 3)]
    for place in places:
        await store.put(place, VectorRows(0, ROW, ["a"]))
    search = asyncio.create_task(store.search(places[0], ROW, 1))
    await searches.wait()
    assert await store.drop(places[1])
    store.end(ProgramId(3))
    assert await store.names(TENANT) == []
    dropped.set()
    await search
    assert found == [True]


async def test_rows_are_made_and_checked_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has up to 64 MiB of vectors and 4 Mi characters."""
    threads = list[int]()

    def noted(values: bytes, dimensions: int) -> Any:
        threads.append(threading.get_ident())
        return unit_vectors(values, dimensions)

    monkeypatch.setattr(service, "unit_vectors", noted)
    vectors = VectorService(Identity(ProgramId(1), TENANT, "p"), ExactStore())
    await vectors.put("rows", False, 0, b"\0\0\x80?", 1, ["a"])
    await vectors.search("rows", False, b"\0\0\x80?", 1, 1)
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_the_memory_of_a_tenant_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts count too: of each collection only the rows and numbers are bounded."""
    monkeypatch.setattr(exact, "MAX_TENANT_BYTES", 10_000)
    store, long = ExactStore(), "x" * 4000
    own, shared, others = (
        CollectionPlace(TENANT, ProgramId(1), "rows"),
        CollectionPlace(TENANT, None, "rows"),
        CollectionPlace(TenantId("other"), None, "rows"),
    )
    await store.put(own, VectorRows(0, ROW, [long]))
    await store.put(shared, VectorRows(0, ROW, [long]))
    await store.put(shared, VectorRows(0, ROW, [long + "y"]))  # in place of the first
    with pytest.raises(QuotaExceeded, match=r"have 1\d{4} bytes .* at most 10000 .* drop some"):
        await store.put(shared, VectorRows(1, ROW, [long]))
    new = CollectionPlace(TENANT, None, "new")
    with pytest.raises(QuotaExceeded):
        await store.put(new, VectorRows(0, ROW, [long]))
    assert await store.search(new, ROW, 1) == [[]]
    await store.put(others, VectorRows(0, ROW, [long]))
    store.end(ProgramId(1))
    await store.put(shared, VectorRows(1, ROW, [long]))
    assert await store.drop(shared)
    await store.put(own, VectorRows(0, ROW, [2 * long]))
