"""``PostgresStore``: collections in a PostgreSQL database with pgvector, searched without an index.

Each collection is a table of the schema ``quire`` with a number as its name; the table
``collections`` has the numbers by tenant and name. Each connection of a node holds its lock in the
database. Collections of programs whose node holds no lock belonged to a node that was killed; the
next node that starts deletes them. A restart of the database ends the locks of living nodes, which
take them again with their next call: what is older than the restart stays for a day behind it.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from quire.core.errors import CapacityError, EngineLost, QuireError
from quire.core.ids import ProgramId, TenantId
from quire.node.fault_log import FaultLog
from quire.node.store_threads import StoreThreads
from quire.node.vectors.postgres_connections import (
    ANSWER_S,
    LOCK_KEY,
    STATEMENT_S,
    PostgresConnections,
)
from quire.programs.vectors import CollectionPlace, FoundRow, VectorRows
from quire.programs.vectors.store import (
    F32,
    check_dimensions,
    check_disk,
    check_number,
    check_room,
    unknown,
)

# isort: split
import psycopg
from psycopg import errors, sql

logger = logging.getLogger(__name__)

T = TypeVar("T")

NUM_THREADS = 4
UNSURE_S = 24 * 3600
"""How long a node may make no call behind a restart of the database before it counts as gone."""
_AWAY = (
    "the PostgreSQL vector store cannot be used now: check that the database of --vector-store "
    "runs and can be reached (the node's log has the reason), then try again"
)
_SCHEMA = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE SCHEMA IF NOT EXISTS quire;
CREATE TABLE IF NOT EXISTS quire.collections (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text NOT NULL, node text NOT NULL,
    program bigint NOT NULL, name text NOT NULL, dimensions integer NOT NULL,
    UNIQUE (tenant, node, program, name)
);
ALTER TABLE quire.collections
    ADD COLUMN IF NOT EXISTS database_began timestamptz DEFAULT pg_postmaster_start_time()
"""
_SURE = """
(database_began >= pg_postmaster_start_time()
    OR now() >= pg_postmaster_start_time() + make_interval(secs => {unsure_s}))
"""
"""Whether a node that holds no lock is gone: it had one since the database began, or has made no
call since."""
_PUT = """
INSERT INTO {table} SELECT number, vector::vector, text
FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS row (number, vector, text)
ON CONFLICT (number) DO UPDATE SET vector = excluded.vector, text = excluded.text
"""
_SEARCH = """
SELECT query.place, found.number, found.score, found.text
FROM unnest(%s::text[]) WITH ORDINALITY AS query (vector, place)
CROSS JOIN LATERAL (
    SELECT number, -(vector <#> query.vector::vector) AS score, text FROM {table}
    ORDER BY vector <#> query.vector::vector, number LIMIT %s
) AS found ORDER BY query.place, found.score DESC, found.number
"""
"""``<#>`` is the negative inner product."""
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(to_regclass('quire.rows_' || id))), 0)::bigint
FROM quire.collections WHERE tenant = %s
"""


class _Table(NamedTuple):
    name: sql.Identifier
    dimensions: int


class PostgresStore:
    """See ``VectorStore``. ``address``: ``postgresql://...``, of a role that may create a schema,
    and the extension ``vector`` if it is not there. The first call connects."""

    at_once = NUM_THREADS

    def __init__(self, address: str) -> None:
        self._node = uuid.uuid4().hex
        self._threads = StoreThreads(NUM_THREADS)
        self._connections = PostgresConnections(address, self._node, self._prepare)
        self._has_cleaned = False
        self._faults = FaultLog(logger, "the PostgreSQL vector store")
        self._tables: dict[CollectionPlace, _Table] = {}
        self._ended = set[int]()
        """Programs that have ended and whose collections are not deleted yet."""
        self._lock = threading.Lock()

    async def put(self, place: CollectionPlace, rows: VectorRows) -> None:
        await self._run(lambda connection: self._put(connection, place, rows))

    async def search(self, place: CollectionPlace, vectors: F32, num: int) -> list[list[FoundRow]]:
        return await self._run(lambda connection: self._search(connection, place, vectors, num))

    async def drop(self, place: CollectionPlace) -> bool:
        return await self._run(lambda connection: self._drop(connection, place))

    async def names(self, tenant: TenantId) -> list[str]:
        return await self._run(
            lambda connection: self._names(connection, CollectionPlace(tenant, None, ""))
        )

    def end(self, program: ProgramId) -> None:
        with self._lock:
            self._ended.add(int(program))
            for place in [one for one in self._tables if one.program == program]:
                del self._tables[place]
        self._threads.later(self._delete_ended)

    def close(self) -> None:
        self._connections.end_calls()
        self._threads.close()
        self._connections.close()

    # -- on a thread -------------------------------------------------------------------------------

    async def _run(self, job: Callable[[Any], T]) -> T:
        result = await self._threads.run(lambda: self._tried(job))
        if self._ended:  # the database could not be reached when they ended, and can be now
            self._threads.later(self._delete_ended)
        return result

    def _delete_ended(self) -> None:
        """Delete the collections of ended programs. What fails is tried again behind the next call
        that succeeds."""
        with self._lock:
            ended, self._ended = self._ended, set[int]()
        if not ended:
            return
        condition = sql.SQL("node = {} AND program = ANY({})").format(self._node, sorted(ended))
        try:
            self._tried(lambda connection: _delete(connection, condition))
        except QuireError:
            with self._lock:
                self._ended |= ended
            raise

    def _tried(self, job: Callable[[Any], T]) -> T:
        """Run ``job`` and return its result; run it once more if the connection was lost. Every job
        may run twice."""
        began = monotonic()
        ends_at = began + ANSWER_S
        try:
            return self._once(job, ends_at)
        except errors.QueryCanceled as exc:
            raise self._away(f"a statement took more than {STATEMENT_S} s", began) from exc
        except (psycopg.OperationalError, psycopg.InterfaceError, errors.UndefinedTable):
            self._connections.check_keeper()
            with self._lock:
                self._tables.clear()  # another node may have dropped one
        except psycopg.Error as exc:
            raise self._unusable(exc, began) from exc
        try:
            return self._once(job, ends_at)
        except errors.DiskFull as exc:
            raise CapacityError(f"the PostgreSQL vector store is full: {exc}") from exc
        except psycopg.Error as exc:
            raise self._unusable(exc, began) from exc

    def _once(self, job: Callable[[Any], T], ends_at: float) -> T:
        connection = self._connections.of_thread(ends_at)
        with connection.transaction():
            result = job(connection)
        self._faults.works()
        return result

    def _unusable(self, exc: psycopg.Error, began: float) -> EngineLost:
        return self._away(" ".join(str(exc).split()), began)

    def _away(self, why: str, began: float) -> EngineLost:
        """Log ``why`` the database cannot be used, and return the error for whoever asked.
        ``began``: when the call began, by ``monotonic``."""
        self._faults.fails(why)
        return EngineLost(_AWAY, waited_s=round(monotonic() - began, 1))

    def _prepare(self, connection: Any) -> None:
        """Create our tables, and the first time delete the collections of nodes that are gone.
        Later, behind a restart of the database, the other nodes may not have their locks yet."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('quire', 0))")
            connection.execute(_SCHEMA)
        if not self._has_cleaned:
            self._delete_gone(connection)
            self._has_cleaned = True

    def _delete_gone(self, connection: Any) -> None:
        sure = sql.SQL(_SURE).format(unsure_s=float(UNSURE_S))
        nodes = sql.SQL("SELECT DISTINCT node FROM quire.collections WHERE node <> '' AND {}")
        rows = connection.execute(nodes.format(sure))
        for (node,) in rows.fetchall():
            if node == self._node:
                continue
            with connection.transaction():
                taken = f"SELECT pg_try_advisory_xact_lock({LOCK_KEY})"
                if connection.execute(taken, (node,)).fetchone()[0]:
                    _delete(connection, sql.SQL("node = {} AND {}").format(node, sure))

    def _put(self, connection: Any, place: CollectionPlace, rows: VectorRows) -> None:
        dimensions = rows.vectors.shape[1]
        table = self._table(connection, place)
        if table is None:
            check_room(place, len(rows.texts), dimensions)
            table = self._created(connection, place, dimensions)
        check_dimensions(place, dimensions, table.dimensions)
        outside = "SELECT count(*) FROM {table} WHERE number < %s OR number >= %s"
        numbers = rows.numbers
        (num_others,) = connection.execute(
            _of(table, outside), (numbers.start, numbers.stop)
        ).fetchone()
        check_room(place, num_others + len(numbers), dimensions)
        (num_bytes,) = connection.execute(_SIZE, (place.tenant,)).fetchone()
        check_disk(num_bytes, rows)
        values = (list(numbers), _written(rows.vectors), list(rows.texts))
        connection.execute(_of(table, _PUT), values)

    def _search(
        self, connection: Any, place: CollectionPlace, vectors: F32, num: int
    ) -> list[list[FoundRow]]:
        table = self._table(connection, place)
        if table is None:
            raise unknown(place)
        check_dimensions(place, vectors.shape[1], table.dimensions)
        found: list[list[FoundRow]] = [[] for _ in vectors]
        rows = connection.execute(_of(table, _SEARCH), (_written(vectors), num))
        for query, *row in rows.fetchall():
            found[query - 1].append(FoundRow(*row))
        return found

    def _drop(self, connection: Any, place: CollectionPlace) -> bool:
        with self._lock:
            self._tables.pop(place, None)
        condition = sql.SQL("tenant = {} AND node = {} AND program = {} AND name = {}")
        return _delete(connection, condition.format(*self._columns(place))) > 0

    def _names(self, connection: Any, place: CollectionPlace) -> list[str]:
        rows = connection.execute(
            "SELECT name FROM quire.collections WHERE tenant = %s AND node = %s AND program = %s",
            self._columns(place)[:3],
        )
        return sorted(name for (name,) in rows.fetchall())

    def _table(self, connection: Any, place: CollectionPlace) -> _Table | None:
        with self._lock:
            if place in self._tables:
                return self._tables[place]
        row = connection.execute(
            "SELECT id, dimensions FROM quire.collections "
            "WHERE tenant = %s AND node = %s AND program = %s AND name = %s",
            self._columns(place),
        ).fetchone()
        return None if row is None else self._known(place, *row)

    def _created(self, connection: Any, place: CollectionPlace, dimensions: int) -> _Table:
        """Create the collection, or find the one that another thread or node has just created."""
        check_number(place, len(self._names(connection, place)))
        row = connection.execute(
            "INSERT INTO quire.collections (tenant, node, program, name, dimensions) "
            "VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING id",
            (*self._columns(place), dimensions),
        ).fetchone()
        if row is None:
            found = self._table(connection, place)
            if found is None:
                raise EngineLost(f"collection {place.name!r} was dropped meanwhile: try again")
            return found
        table = _Table(sql.Identifier("quire", f"rows_{row[0]}"), dimensions)
        made = "CREATE TABLE {table} (number bigint PRIMARY KEY, vector vector, text text NOT NULL)"
        connection.execute(_of(table, made))
        return table  # it enters the cache after it is committed

    def _known(self, place: CollectionPlace, number: int, dimensions: int) -> _Table:
        table = _Table(sql.Identifier("quire", f"rows_{number}"), dimensions)
        with self._lock:
            self._tables[place] = table
        return table

    def _columns(self, place: CollectionPlace) -> tuple[str, str, int, str]:
        if place.program is None:
            return place.tenant, "", 0, place.name
        return place.tenant, self._node, int(place.program), place.name


def _of(table: _Table, text: str) -> sql.Composed:
    return sql.SQL(text).format(table=table.name)


def _delete(connection: Any, condition: sql.Composable) -> int:
    """Delete the collections for which ``condition`` holds; return their number."""
    deletion = sql.SQL("DELETE FROM quire.collections WHERE {} RETURNING id").format(condition)
    numbers = connection.execute(deletion).fetchall()
    for (number,) in numbers:
        table = sql.Identifier("quire", f"rows_{number}")
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
    return len(numbers)


def _written(vectors: F32) -> list[str]:
    """The vectors in pgvector's form, with all digits."""
    return ["[" + ",".join(map(repr, row)) + "]" for row in vectors.tolist()]
