"""The store of a node: a worker thread with the database, and one program's view of it.

Owns the thread. A job takes some tens of microseconds; callers on any loop await it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from quire.core.errors import CapacityError, ConfigError, InvalidArgument, ProgramTerminated
from quire.programs.services.operations import Identity, ProgramService, operation
from quire.programs.services.store_table import EntryPlace, Kind, StoreLimits, StoreTable

T = TypeVar("T")

FILE_NAME = "store.sqlite"


class Store:
    """``directory``: where the database is kept; in memory for ``None``. ``now_s``: Unix time.

    The thread starts with the first job; ``close`` waits for the last one.
    """

    def __init__(
        self,
        directory: Path | None = None,
        now_s: Callable[[], float] = time.time,
        limits: StoreLimits | None = None,
    ) -> None:
        self._directory = directory
        self._now_s = now_s
        self._limits = limits
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="quire-store")
        self._table: StoreTable | None = None
        self._closed = False

    async def run(self, job: Callable[[StoreTable, float], T]) -> T:
        """Run ``job(table, now_s)`` on the worker. Cancelling the wait does not cancel the job.

        Raises:
            CapacityError: the disk is full or fails; earlier data stays.
        """
        if self._closed:
            raise ProgramTerminated("the node's store is closed: the node is stopping")
        return await asyncio.wrap_future(self._worker.submit(self._run, job))

    def _run(self, job: Callable[[StoreTable, float], T]) -> T:
        try:
            return job(self._opened(), self._now_s())
        except sqlite3.Error as exc:
            raise CapacityError(
                f"the node's store cannot be used now: {exc}: check whether its disk is full"
            ) from exc

    def open(self) -> None:
        """Open the database now, so that errors are reported when the node starts. Blocks.

        Raises:
            ConfigError: it cannot be opened.
        """
        self._worker.submit(self._opened).result()

    def _opened(self) -> StoreTable:
        if self._table is None:
            path = None
            if self._directory is not None:
                try:
                    self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                except OSError as exc:
                    raise ConfigError(
                        f"the data directory {self._directory} cannot be created: {exc}"
                    ) from exc
                path = self._directory / FILE_NAME
            self._table = StoreTable(path, self._limits)
        return self._table

    def close(self) -> None:
        """Close the database. Blocks until all jobs have ended. Idempotent."""
        if not self._closed:
            self._closed = True
            self._worker.submit(self._close)
        self._worker.shutdown()

    def _close(self) -> None:
        if self._table is not None:
            self._table.close()


class StoreService(ProgramService):
    """One program's access to the store: under its tenant and its capabilities.

    Values are transported as JSON text and stored in a canonical form, so that equal values compare
    equal.
    """

    def __init__(self, identity: Identity, store: Store) -> None:
        self._tenant = identity.tenant
        self._allowed = identity.capabilities
        self._store = store

    def _place(self, kind: Kind, store: str, key: str) -> EntryPlace:
        self._allowed.check_store(store)
        return EntryPlace(self._tenant, kind, store, key)

    @operation("store.put")
    async def put(self, store: str, key: str, value: str, ttl_s: float | None) -> None:
        place, content = self._place("value", store, key), canonical(value)
        await self._store.run(lambda table, now_s: table.put(place, content, ttl_s, now_s))

    @operation("store.get")
    async def get(self, store: str, key: str) -> str | None:
        place = self._place("value", store, key)
        content = await self._store.run(lambda table, now_s: table.get(place, now_s))
        return None if content is None else content.decode()

    @operation("store.compare_and_set")
    async def compare_and_set(
        self, store: str, key: str, expected: str | None, value: str | None, ttl_s: float | None
    ) -> bool:
        place = self._place("value", store, key)
        old = None if expected is None else canonical(expected)
        new = None if value is None else canonical(value)
        return await self._store.run(
            lambda table, now_s: table.compare_and_set(place, old, new, ttl_s, now_s)
        )

    @operation("store.delete")
    async def delete(self, kind: Kind, store: str, key: str) -> bool:
        place = self._place(kind, store, key)
        return await self._store.run(lambda table, now_s: table.delete(place, now_s))

    @operation("store.list")
    async def list_keys(
        self, kind: Kind, store: str, prefix: str, after: str, limit: int
    ) -> list[str]:
        self._allowed.check_store(store)
        return await self._store.run(
            lambda table, now_s: table.keys(self._tenant, kind, store, prefix, after, limit, now_s)
        )

    @operation("blob.put")
    async def put_blob(self, store: str, key: str, content: bytes, ttl_s: float | None) -> None:
        place = self._place("blob", store, key)
        await self._store.run(lambda table, now_s: table.put(place, content, ttl_s, now_s))

    @operation("blob.get")
    async def get_blob(self, store: str, key: str) -> bytes | None:
        place = self._place("blob", store, key)
        return await self._store.run(lambda table, now_s: table.get(place, now_s))


def canonical(text: str) -> bytes:
    """JSON ``text`` in the canonical form in which values are stored and compared."""
    try:
        value: Any = json.loads(text, parse_constant=_refuse)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as exc:
        raise InvalidArgument(f"the value is not JSON: {exc}") from exc


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON value")
