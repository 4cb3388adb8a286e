"""A PostgreSQL store whose database or node is gone."""

from __future__ import annotations

import asyncio
import time
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
    starting = vector_store(postgres, None)
    assert await starting.names(OWN.tenant) == []
    assert len((await store.search(OWN, ROWS.vectors, 1))[0]) == 1, "its node is known to live"
    await asyncio.to_thread(starting.close)
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
    killed._connections.close()  # type: ignore[attr-defined]
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


async def test_the_log_and_not_the_tenant_is_told_why_a_database_cannot_be_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("psycopg", reason="needs the extra 'postgres'")
    store = vector_store("postgresql://nobody@127.0.0.1:1/none", None)
    for _ in range(2):
        with pytest.raises(
            EngineLost, match=r"PostgreSQL vector store cannot be used now: .* try again"
        ) as told:
            await store.put(OWN, ROWS)
        assert "127.0.0.1" not in str(told.value)
    await asyncio.to_thread(store.close)
    (logged,) = caplog.records
    assert "127.0.0.1" in logged.getMessage()


async def test_a_database_that_takes_no_writes_is_told_as_one_that_is_away(
    postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As when another server has taken over, and its name leads to the one that stands by."""
    import psycopg

    name = psycopg.conninfo.conninfo_to_dict(postgres)["dbname"]
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        store = vector_store(postgres, None)
        try:
            with pytest.raises(EngineLost, match="cannot be used now"):
                await store.put(OWN, ROWS)
        finally:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert "in a read-only transaction" in caplog.text
    await store.put(OWN, ROWS)
    await asyncio.to_thread(store.close)


async def test_nodes_that_connect_again_delete_nothing_of_one_another(postgres: str) -> None:
    """When the database has restarted, the node that is first finds no lock of the others."""
    import psycopg

    first, second = vector_store(postgres, None), vector_store(postgres, None)
    for store in (first, second):
        await store.put(OWN, ROWS)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
    for store in (first, second):
        assert len((await store.search(OWN, ROWS.vectors, 1))[0]) == 1
    for store in (first, second):
        await asyncio.to_thread(store.close)


@pytest.mark.parametrize("lost", ["the first", "the last"])
async def test_a_node_that_loses_one_connection_keeps_its_rows(postgres: str, lost: str) -> None:
    """It does not notice, and no restart of the database tells others to be careful."""
    import psycopg

    store = vector_store(postgres, None)
    await store.put(OWN, ROWS)
    with psycopg.connect(postgres, autocommit=True) as connection:
        order = "" if lost == "the first" else "DESC"
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "  # type: ignore[arg-type]
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() "
            f"ORDER BY backend_start {order} LIMIT 1"
        )
        assert ended.fetchall() == [(True,)]
    starting = vector_store(postgres, None)
    assert await starting.names(OWN.tenant) == []
    await asyncio.to_thread(starting.close)
    assert len((await store.search(OWN, ROWS.vectors, 1))[0]) == 1
    await asyncio.to_thread(store.close)


async def test_the_database_does_not_end_connections_of_an_idle_node(postgres: str) -> None:
    import psycopg

    store = vector_store(postgres, None)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("ALTER ROLE CURRENT_USER SET idle_session_timeout = '1h'")
        try:
            await store.put(OWN, ROWS)
        finally:
            connection.execute("ALTER ROLE CURRENT_USER RESET idle_session_timeout")
    shown = await store._run(  # type: ignore[attr-defined]
        lambda connection: connection.execute("SHOW idle_session_timeout").fetchone()
    )
    own = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    held = await store._run(  # type: ignore[attr-defined]
        lambda connection: connection.execute(own).fetchone()
    )
    assert (shown, held) == (("0",), (1,))
    await asyncio.to_thread(store.close)


async def test_a_node_that_has_made_no_call_since_the_database_restarted_keeps_its_rows(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock it looks like one that was killed, until a day has passed."""
    import psycopg

    from quire.node.vectors import postgres as postgres_module

    async def num_kept_behind_a_start() -> int:
        starting = vector_store(postgres, None)
        await starting.names(OWN.tenant)
        await asyncio.to_thread(starting.close)
        with psycopg.connect(postgres, autocommit=True) as connection:
            mine = "SELECT count(*) FROM quire.collections WHERE node = %s"
            found = connection.execute(mine, (idle._node,)).fetchone()  # type: ignore[attr-defined]
        return int(found[0]) if found else 0

    idle = vector_store(postgres, None)
    await idle.put(OWN, ROWS)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            "UPDATE quire.collections SET database_began = database_began - interval '1 hour'"
        )
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
    assert await num_kept_behind_a_start() == 1
    assert len((await idle.search(OWN, ROWS.vectors, 1))[0]) == 1
    idle._connections.close()  # type: ignore[attr-defined]
    monkeypatch.setattr(postgres_module, "UNSURE_S", 0)
    assert await num_kept_behind_a_start() == 0
    await asyncio.to_thread(idle.close)


async def test_a_database_that_does_not_answer_ends_no_call_for_ever(
    postgres: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A lock stands for a database that is stopped or cut off: psycopg waits in the same place."""
    import psycopg

    store = vector_store(postgres, None)
    await store.put(OWN, ROWS)
    with psycopg.connect(postgres) as connection:
        connection.execute("LOCK TABLE quire.collections IN ACCESS EXCLUSIVE MODE")
        with monkeypatch.context() as patched:
            now_s = time.monotonic()
            patched.setattr("quire.node.vectors.postgres.ANSWER_S", 0)
            patched.setattr(
                "quire.node.vectors.postgres.monotonic", iter((now_s, now_s + 80)).__next__
            )
            with pytest.raises(EngineLost, match="cannot be used now") as lost:
                await asyncio.wait_for(store.names(OWN.tenant), 50)
        assert lost.value.details["waited_s"] == 80
        assert "does not answer" in caplog.text
        connection.rollback()
        assert await store.names(OWN.tenant) == []
        connection.execute("LOCK TABLE quire.collections IN ACCESS EXCLUSIVE MODE")
        waiting = asyncio.create_task(store.names(OWN.tenant))
        await asyncio.sleep(0)  # its call is with a thread
        monkeypatch.setattr("quire.node.vectors.postgres_connections.CLOSE_S", 0)
        await asyncio.wait_for(asyncio.to_thread(store.close), 50)
    with pytest.raises(EngineLost, match="cannot be used now"):
        await waiting


def test_other_stores_are_refused() -> None:
    assert isinstance(vector_store("exact", None), ExactStore)
    with pytest.raises(
        ConfigError, match="vector_store is 'chroma': give exact, lance, or the addr"
    ):
        vector_store("chroma", None)
