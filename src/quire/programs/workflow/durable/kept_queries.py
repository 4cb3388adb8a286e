"""``KeptQueries``: the files of a node's queries with an id, in its data directory.

Owns the place and the lifetime of a query's file, and how much a tenant may store. Must not know
what a query is. Blocks on disk; for any thread.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quire.core.errors import CapacityError, InvalidArgument, QuotaExceeded, UnknownHandle
from quire.core.ids import TenantId
from quire.core.kept_queries_config import KeptQueriesConfig
from quire.programs.services.names import check_name
from quire.programs.workflow.durable.query_file import (
    FRAME_BYTES,
    QueryFile,
    disk_errors,
    write_whole,
)

_OPEN, _FINISHED = ".query", ".done"
_SHARE = 8
"""The part of a tenant's free room that is given out until its files are looked at again: as many
nodes may have the data directory."""


@dataclass(frozen=True, slots=True)
class QueryPlace:
    """A query of a tenant: ``key`` is the id that its client has given it."""

    tenant: TenantId
    workflow: str
    key: str


class OpenQuery:
    """One query that is being answered. ``frames``: the stored frames; empty for a new query."""

    def __init__(self, kept: KeptQueries, place: QueryPlace, file: QueryFile | None,
                 frames: Sequence[bytes]) -> None:  # fmt: skip
        self._kept, self._place, self._file = kept, place, file
        self.frames = frames

    @property
    def num_bytes(self) -> int:
        return 0 if self._file is None else self._file.num_bytes

    def append(self, content: bytes) -> None:
        """See ``QueryFile.append``.

        Raises:
            QuotaExceeded: the query, or its tenant, stores too much.
        """
        assert self._file is not None, "a finished query does nothing more"
        self._kept.make_room(self._place, self.num_bytes, len(content) + FRAME_BYTES)
        self._file.append(content, self._kept.now_s())

    def finish(self, contents: Sequence[bytes]) -> None:
        """Keep only these frames: the query has ended."""
        assert self._file is not None, "a finished query does nothing more"
        write_whole(self._file.path.with_suffix(_FINISHED), contents, self._kept.now_s())
        _unlink(self._file.path)
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()


class KeptQueries:
    """The files of all tenants. ``directory``: the node's data directory; None: queries cannot be
    stored. ``now_s``: Unix time."""

    def __init__(
        self,
        directory: Path | None,
        config: KeptQueriesConfig,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._directory = None if directory is None else directory / "queries"
        self._config = config
        self._lock = threading.Lock()
        self._room: dict[Path, int] = {}
        """Bytes that a tenant's queries may add, by its folder, before its files are looked at."""
        self.now_s = now_s

    def open(self, place: QueryPlace, *, must_exist: bool = False) -> OpenQuery:
        """Open the file of a query. The caller must close it.

        Raises:
            InvalidArgument: the node stores no queries, or the id is not valid.
            UnknownHandle: ``must_exist``, and nothing is stored.
            CapacityError: the query is being answered.
            QuotaExceeded: the tenant stores too many queries.
        """
        path = self._path(place)
        self._drop_expired(path.parent)
        finished = path.with_suffix(_FINISHED)
        if finished.exists():
            _unlink(path)
            file = QueryFile(finished, self.now_s())
            file.close()
            return OpenQuery(self, place, None, file.frames)
        if not path.exists():
            if must_exist:
                raise self._unknown(place)
            self._check_number(path.parent)
            with disk_errors():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = QueryFile(path, self.now_s())
        return OpenQuery(self, place, file, file.frames)

    def delete(self, place: QueryPlace) -> None:
        """Delete a query. Raises ``UnknownHandle`` if nothing is stored, ``CapacityError`` if the
        query is being answered."""
        path = self._path(place)
        found = [one for one in (path, path.with_suffix(_FINISHED)) if one.exists()]
        if not found:
            raise self._unknown(place)
        for one in found:
            _remove(one)

    def drop_expired(self) -> None:
        """Delete the expired queries of all tenants."""
        if self._directory is not None and self._directory.is_dir():
            for folder in self._directory.iterdir():
                self._drop_expired(folder)

    def make_room(self, place: QueryPlace, held_bytes: int, num_bytes: int) -> None:
        """Make room for ``num_bytes`` more of a query that has ``held_bytes``. If its tenant would
        exceed its limit, the tenant's finished queries are deleted, the oldest first.

        Raises:
            QuotaExceeded: this is not enough, or the query would exceed its own limit.
        """
        config = self._config
        if held_bytes + num_bytes > config.max_query_bytes:
            raise QuotaExceeded(
                f"with {num_bytes} bytes more the query would keep "
                f"{held_bytes + num_bytes}; at most {config.max_query_bytes} are allowed: ask it "
                "without an id, or divide it"
            )
        folder = self._path(place).parent
        with self._lock:
            if num_bytes <= self._room.get(folder, 0):
                self._room[folder] -= num_bytes
                return
            total = self._shrunk(folder, config.max_bytes - num_bytes) + num_bytes
            self._room[folder] = max(0, config.max_bytes - total) // _SHARE
        if total > config.max_bytes:
            raise QuotaExceeded(
                f"the unfinished queries of this tenant would keep {total} bytes; at most "
                f"{config.max_bytes} are allowed: delete some, or wait until they expire"
            )

    def _shrunk(self, folder: Path, most: int) -> int:
        """Delete finished queries of a tenant until it has at most ``most`` bytes, or none is left;
        return the bytes that it has then."""
        files = _files(folder)
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= most:
                break
            if path.suffix == _FINISHED:
                _unlink(path)
                total -= size
        return total

    def _path(self, place: QueryPlace) -> Path:
        """The file of a query, named by hashes, because names may contain any characters."""
        if self._directory is None:
            raise InvalidArgument(
                "this node keeps no queries, because it has no data directory: start it with "
                "--data-dir, or ask without an id",
                param="query_id",
            )
        check_name("query id", place.key)
        tenant = hashlib.sha256(place.tenant.encode()).hexdigest()[:32]
        name = f"{place.workflow}\0{place.key}"
        query = hashlib.sha256(name.encode()).hexdigest()[:32]
        return self._directory / tenant / f"{query}{_OPEN}"

    def _check_number(self, folder: Path) -> None:
        files = _files(folder)
        too_many = max(0, len(files) + 1 - self._config.max_queries)
        finished = [path for _, _, path in files if path.suffix == _FINISHED][:too_many]
        for path in finished:
            _unlink(path)
        if len(finished) < too_many:
            raise QuotaExceeded(
                f"{self._config.max_queries} unfinished queries of this tenant are kept, as many "
                "as are allowed: finish or delete some"
            )

    def _drop_expired(self, folder: Path) -> None:
        for changed_s, _, path in _files(folder):
            if self.now_s() - changed_s > self._config.ttl_s:
                with suppress(CapacityError):  # it is being answered
                    _remove(path)

    def _unknown(self, place: QueryPlace) -> UnknownHandle:
        return UnknownHandle(
            f"nothing is kept of a query {place.key!r} of {place.workflow}: it was never asked "
            f"here, or more than {self._config.ttl_s:g} s ago",
            param="query_id",
        )


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """The files of a tenant: time of the last change, size and path, the oldest first."""
    found: list[tuple[float, int, Path]] = []
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
    return sorted(found)


def _unlink(path: Path) -> None:
    with disk_errors():
        path.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Delete a file. Raises ``CapacityError`` if the query is being answered, or the disk fails."""
    if path.suffix == _OPEN:
        with suppress(InvalidArgument):  # damaged, which does not matter any more
            QueryFile(path, path.stat().st_mtime).close()
    _unlink(path)
