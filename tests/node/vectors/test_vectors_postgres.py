"""A PostgreSQL store whose database or node is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from quire.core.errors import ConfigError, Draining, EngineLost, UnknownHandle
from quire.core.ids import ProgramId, TenantId
from quire.node.vectors.choice import vector_store
from quire.programs.vectors import CollectionPlace, ExactStore, VectorRows

OWN = CollectionPlace(TenantId("default"), ProgramId(3), "own")
ROWS = VectorRows(0, np.eye(2, dtype=np.float32), ["a", "b"])


async def test_a_lost_connection_is_made_again(postgres: str) -> None:
    import psycopg

    store = vector_store(postgres, None)
    await store.put(OWN, ROWS)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
    ((found, _),) = await store.search(OWN, ROWS.vectors[:1], 2)
    assert found.text == "a"
    await asyncio.to_thread(store.close)
    with pytest.raises(Draining, match="its vector store is closed"):
        await store.drop(OWN)


async def test_what_a_killed_node_left_is_deleted_and_what_a_living_one_has_is_not(
    postgres: str,
) -> None:
    import psycopg

    living, killed = vector_store(postgres, None), vector_store(postgres, None)
    for store in (living, killed):
        await store.put(OWN, ROWS)
    for connection in [*killed._connections, killed._keeper]:  # type: ignore[attr-defined]
        connection.close()
    starting = vector_store(postgres, None)
    with pytest.raises(UnknownHandle):
        await starting.search(OWN, ROWS.vectors, 1)
    with psycopg.connect(postgres, autocommit=True) as connection:
        (num,) = connection.execute("SELECT count(*) FROM quire.collections").fetchone() or (None,)
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'quire'"
        ).fetchall()
    assert num == 1
    assert len(tables) == 2
    assert len((await living.search(OWN, ROWS.vectors, 1))[0]) == 1
    for store in (living, killed, starting):
        await asyncio.to_thread(store.close)


async def test_what_a_program_left_while_the_database_was_away_is_deleted_when_it_is_back(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    def number_of_tables() -> int:
        with psycopg.connect(postgres, autocommit=True) as connection:
            tables = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'rows_%'"
            return len(connection.execute(tables).fetchall())

    store = vector_store(postgres, None)
    await store.names(OWN.tenant)  # deletes what the nodes of other tests have left
    before = number_of_tables()
    await store.put(OWN, ROWS)
    assert number_of_tables() == before + 1

    def away(job: object) -> None:
        raise EngineLost("away")

    with monkeypatch.context() as patched:
        later: list[Callable[[], None]] = []
        patched.setattr(store, "_tried", away)
        patched.setattr(store._threads, "later", later.append)  # type: ignore[attr-defined]
        store.end(ProgramId(3))
        with pytest.raises(EngineLost, match="away"):
            later.pop()()
        assert not later
    assert number_of_tables() == before + 1
    assert await store.names(OWN.tenant) == []
    await asyncio.to_thread(store.close)  # waits for what was left to do
    assert number_of_tables() == before


async def test_a_database_that_cannot_be_reached_is_named() -> None:
    pytest.importorskip("psycopg", reason="needs the extra 'postgres'")
    store = vector_store("postgresql://nobody@127.0.0.1:1/none", None)
    with pytest.raises(
        EngineLost, match=r"PostgreSQL vector store cannot be used now .* try again"
    ):
        await store.put(OWN, ROWS)
    await asyncio.to_thread(store.close)


def test_other_stores_are_refused() -> None:
    assert isinstance(vector_store("exact", None), ExactStore)
    with pytest.raises(
        ConfigError, match="vector_store is 'chroma': give exact, lance, or the addr"
    ):
        vector_store("chroma", None)
