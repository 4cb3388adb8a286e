"""Keys and values of tenants in one SQLite database, with quotas and times to live.

Owns the tables. Synchronous and without a clock: the time is an argument. Used by one thread at a
time.
"""

from __future__ import annotations

import math
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

from quire.core.errors import ConfigError, InvalidArgument, QuotaExceeded
from quire.core.ids import TenantId
from quire.programs.services.disk_reserve import DiskReserve
from quire.programs.services.names import check_name

Kind = Literal["value", "blob"]

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE entries (
    tenant TEXT NOT NULL, kind TEXT NOT NULL, store TEXT NOT NULL, key TEXT NOT NULL,
    content BLOB NOT NULL, num_bytes INTEGER NOT NULL, expires_s REAL,
    PRIMARY KEY (tenant, kind, store, key)
);
CREATE INDEX entries_by_end ON entries (expires_s) WHERE expires_s IS NOT NULL;
CREATE TABLE usage (tenant TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL, num_keys INTEGER NOT NULL);
CREATE TRIGGER added AFTER INSERT ON entries BEGIN
    INSERT INTO usage VALUES (new.tenant, new.num_bytes, 1) ON CONFLICT (tenant) DO UPDATE
    SET num_bytes = num_bytes + new.num_bytes, num_keys = num_keys + 1;
END;
CREATE TRIGGER removed AFTER DELETE ON entries BEGIN
    UPDATE usage SET num_bytes = num_bytes - old.num_bytes, num_keys = num_keys - 1
    WHERE tenant = old.tenant;
END;
CREATE TRIGGER changed AFTER UPDATE ON entries BEGIN
    UPDATE usage SET num_bytes = num_bytes + new.num_bytes - old.num_bytes
    WHERE tenant = new.tenant;
END;
"""
_PUT = """
INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, kind, store, key) DO UPDATE
SET content = excluded.content, num_bytes = excluded.num_bytes, expires_s = excluded.expires_s
"""
_ONE = "tenant = ? AND kind = ? AND store = ? AND key = ?"
_ALIVE = "(expires_s IS NULL OR expires_s > ?)"


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Sizes in bytes, which include the key. ``max_bytes`` and ``max_keys``: those of one
    tenant."""

    max_value_bytes: int = 1 << 20
    max_blob_bytes: int = 64 << 20
    max_bytes: int = 1 << 30
    max_keys: int = 1_000_000
    max_listed: int = 10_000


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """The place of an entry: a tenant's key of one kind in one of its stores."""

    tenant: TenantId
    kind: Kind
    store: str
    key: str

    def check(self) -> None:
        check_name("store", self.store)
        check_name("key", self.key)

    @property
    def columns(self) -> tuple[str, str, str, str]:
        return self.tenant, self.kind, self.store, self.key


class StoreTable:
    """``path``: the database file, created if it does not exist; in memory for ``None``.

    Raises:
        ConfigError: the file is not a database of this release.
    """

    def __init__(self, path: Path | None, limits: StoreLimits | None = None) -> None:
        self.limits = limits or StoreLimits()
        self._reserve = None if path is None else DiskReserve(path.with_suffix(".reserve"))
        try:
            self._database = sqlite3.connect(
                ":memory:" if path is None else path, isolation_level=None
            )
            self._prepare()
        except sqlite3.Error as exc:
            raise ConfigError(f"the store {path} cannot be opened: {exc}") from exc
        if self._reserve is not None:
            self._reserve.hold()

    def _prepare(self) -> None:
        database = self._database
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA busy_timeout = 5000")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            database.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        elif version != SCHEMA_VERSION:
            raise ConfigError(
                f"the store has format {version}, this release reads {SCHEMA_VERSION}: use another "
                "data directory, or the release that wrote it"
            )

    def close(self) -> None:
        self._database.close()

    def put(self, place: EntryPlace, content: bytes, ttl_s: float | None, now_s: float) -> None:
        """Set the entry, for ``ttl_s`` seconds or without an end.

        Raises:
            InvalidArgument: an invalid name, a value that is too large, or an invalid time to live.
            QuotaExceeded: the tenant holds too much.
        """
        place.check()
        num_bytes = self._check_size(place, content)
        if ttl_s is not None and not (ttl_s > 0 and math.isfinite(ttl_s)):
            raise InvalidArgument(f"a time to live of {ttl_s} s: give more than 0, or None")
        with self._transaction():
            self._drop_expired(now_s)
            self._check_quota(place, num_bytes)
            expires_s = None if ttl_s is None else now_s + ttl_s
            self._database.execute(_PUT, (*place.columns, content, num_bytes, expires_s))
        if self._reserve is not None:
            self._reserve.hold()

    def get(self, place: EntryPlace, now_s: float) -> bytes | None:
        place.check()
        row = self._database.execute(
            f"SELECT content FROM entries WHERE {_ONE} AND {_ALIVE}", (*place.columns, now_s)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def delete(self, place: EntryPlace, now_s: float) -> bool:
        """Delete the entry; return whether it existed. On a full disk this uses the reserved
        space."""
        place.check()
        try:
            return self._delete(place, now_s)
        except sqlite3.OperationalError as exc:
            is_full = exc.sqlite_errorcode == sqlite3.SQLITE_FULL
            if not is_full or self._reserve is None or not self._reserve.give_up():
                raise
        try:
            return self._delete(place, now_s)
        finally:
            self._write_back()
            self._reserve.hold()

    def _delete(self, place: EntryPlace, now_s: float) -> bool:
        with self._transaction():
            self._drop_expired(now_s)
            deleted = self._database.execute(f"DELETE FROM entries WHERE {_ONE}", place.columns)
            return deleted.rowcount > 0

    def _write_back(self) -> None:
        """Truncate the write-ahead log, so that the next deletion is written at its start."""
        with suppress(sqlite3.OperationalError):  # the disk has no space for that either
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def compare_and_set(
        self,
        place: EntryPlace,
        expected: bytes | None,
        content: bytes | None,
        ttl_s: float | None,
        now_s: float,
    ) -> bool:
        """Set (``None``: delete) the entry if it is ``expected`` (``None``: absent); return
        whether it was set."""
        if self.get(place, now_s) != expected:  # atomic, because one thread uses the table
            return False
        if content is None:
            self.delete(place, now_s)
        else:
            self.put(place, content, ttl_s, now_s)
        return True

    def keys(
        self, tenant: TenantId, kind: Kind, store: str, prefix: str, after: str, limit: int,
        now_s: float,
    ) -> list[str]:  # fmt: skip
        """Keys that begin with ``prefix`` and follow ``after``, sorted, at most ``limit``."""
        check_name("store", store)
        for text in (prefix, after):
            if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
                raise InvalidArgument(f"{text!r} is not valid text: give a prefix or key as text")
        if not 1 <= limit <= self.limits.max_listed:
            raise InvalidArgument(
                f"a list of {limit} keys: choose 1 to {self.limits.max_listed}, and continue with "
                "after=..."
            )
        rows = self._database.execute(
            "SELECT key FROM entries WHERE tenant = ? AND kind = ? AND store = ? AND key >= ? "
            f"AND key > ? AND {_ALIVE} ORDER BY key LIMIT ?",
            (tenant, kind, store, prefix, after, now_s, limit),
        )
        # Keys with the prefix are adjacent in the order of their UTF-8. A filter in SQL would scan
        # all later keys, while every tenant's programs wait for this thread.
        return [key for (key,) in takewhile(lambda row: row[0].startswith(prefix), rows)]

    def usage(self, tenant: TenantId) -> tuple[int, int]:
        """Bytes and keys of a tenant; expired entries are included until the next write."""
        row = self._database.execute(
            "SELECT num_bytes, num_keys FROM usage WHERE tenant = ?", (tenant,)
        ).fetchone()
        return (0, 0) if row is None else (int(row[0]), int(row[1]))

    # -- inside ------------------------------------------------------------------------------------

    def _transaction(self) -> sqlite3.Connection:
        self._database.execute("BEGIN IMMEDIATE")
        return self._database  # ``with`` commits, or rolls back on an error

    def _drop_expired(self, now_s: float) -> None:
        self._database.execute("DELETE FROM entries WHERE expires_s <= ?", (now_s,))

    def _check_size(self, place: EntryPlace, content: bytes) -> int:
        limits = self.limits
        limit = limits.max_blob_bytes if place.kind == "blob" else limits.max_value_bytes
        if len(content) > limit:
            raise InvalidArgument(
                f"a {place.kind} of {len(content)} bytes; at most {limit} are allowed: store it "
                "in parts"
            )
        return len(content) + len(place.key.encode())

    def _check_quota(self, place: EntryPlace, num_bytes: int) -> None:
        row = self._database.execute(
            f"SELECT num_bytes FROM entries WHERE {_ONE}", place.columns
        ).fetchone()
        held_bytes, held_keys = self.usage(place.tenant)
        new_bytes = held_bytes + num_bytes - (0 if row is None else row[0])
        new_keys = held_keys + (row is None)
        if new_bytes > self.limits.max_bytes or new_keys > self.limits.max_keys:
            raise QuotaExceeded(
                f"the stores of this tenant hold {held_bytes} bytes under {held_keys} keys; with "
                f"{num_bytes} more they exceed {self.limits.max_bytes} bytes or "
                f"{self.limits.max_keys} keys: delete some first",
                max_bytes=self.limits.max_bytes,
                max_keys=self.limits.max_keys,
            )
