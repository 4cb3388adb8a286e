"""``PostgresStore``: collections in a PostgreSQL database with pgvector, searched without an index.

Only this module imports psycopg. Each collection is a table of the schema ``quire`` with a number
as its name; the table ``collections`` has the numbers by tenant and name. A node holds a lock in
the database as long as it lives. Collections of programs whose node holds no lock belonged to a
node that was killed; the next node that starts deletes them.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from quire.core.errors import CapacityError, ConfigError, EngineLost, QuireError
from quire.core.ids import ProgramId, TenantId
from quire.node.store_threads import StoreThreads
from quire.programs.vectors import CollectionPlace, FoundRow, VectorRows
from quire.programs.vectors.store import F32, check_dimensions, check_number, check_room, unknown

try:
    import psycopg
    from psycopg import errors, sql
except ImportError as exc:  # pragma: no cover - depends on the environment
    raise ConfigError(
        f"a PostgreSQL vector store needs psycopg ({exc}): pip install 'quire[postgres]'"
    ) from exc

T = TypeVar("T")

NUM_THREADS = 4
CONNECT_S = 10
CALL_S = 60
"""The most seconds that one statement may take."""

_SCHEMA = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE SCHEMA IF NOT EXISTS quire;
CREATE TABLE IF NOT EXISTS quire.collections (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text NOT NULL, node text NOT NULL,
    program bigint NOT NULL, name text NOT NULL, dimensions integer NOT NULL,
    UNIQUE (tenant, node, program, name)
)
"""
_LOCK_KEY = "hashtextextended('quire node ' || %s, 0)"
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


class _Table(NamedTuple):
    name: sql.Identifier
    dimensions: int


class PostgresStore:
    """See ``VectorStore``. ``address``: ``postgresql://...``, of a role that may create a schema,
    and the extension ``vector`` if it is not there. The first call connects."""

    at_once = NUM_THREADS

    def __init__(self, address: str) -> None:
        self._address = address
        self._node = uuid.uuid4().hex
        self._threads = StoreThreads(NUM_THREADS)
        self._of_thread = threading.local()
        self._connections: list[Any] = []
        self._keeper: Any = None
        """Holds the lock of this node."""
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
        self._threads.close()
        for connection in (*self._connections, self._keeper):
            if connection is not None:
                connection.close()
        self._connections.clear()
        self._keeper = None

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
        try:
            return self._once(job)
        except (psycopg.OperationalError, psycopg.InterfaceError, errors.UndefinedTable):
            with self._lock:
                self._tables.clear()  # another node may have dropped one
        try:
            return self._once(job)
        except errors.DiskFull as exc:
            raise CapacityError(f"the PostgreSQL vector store is full: {exc}") from exc
        except psycopg.Error as exc:
            words = " ".join(str(exc).split())
            raise EngineLost(
                f"the PostgreSQL vector store cannot be used now ({words}): check that the "
                "database of --vector-store runs and can be reached, then try again"
            ) from exc

    def _once(self, job: Callable[[Any], T]) -> T:
        connection = self._connected()
        with connection.transaction():
            return job(connection)

    def _connected(self) -> Any:
        with self._lock:
            if self._keeper is None or self._keeper.closed:
                self._keeper = self._open()
                self._keeper.execute(f"SELECT pg_advisory_lock({_LOCK_KEY})", (self._node,))
        found = getattr(self._of_thread, "connection", None)
        if found is None or found.closed:
            found = self._of_thread.connection = self._connect()
            self._connections.append(found)
        return found

    def _open(self) -> Any:
        """Connect, create our tables, and delete the collections of nodes that are gone."""
        connection = self._connect()
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('quire', 0))")
            connection.execute(_SCHEMA)
        rows = connection.execute("SELECT DISTINCT node FROM quire.collections WHERE node <> ''")
        for (node,) in rows.fetchall():
            if node == self._node:
                continue
            with connection.transaction():
                taken = f"SELECT pg_try_advisory_xact_lock({_LOCK_KEY})"
                if connection.execute(taken, (node,)).fetchone()[0]:
                    _delete(connection, sql.SQL("node = {}").format(node))
        return connection

    def _connect(self) -> Any:
        options = f"-c statement_timeout={CALL_S * 1000} -c client_min_messages=warning"
        return psycopg.connect(
            self._address, autocommit=True, connect_timeout=CONNECT_S, options=options
        )

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
