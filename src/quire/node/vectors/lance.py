"""``LanceStore``: collections as LanceDB tables on disk, searched without an index.

Owns the directory. Only this module imports LanceDB. A collection is a folder that is named by the
SHA-256 of its name, in a folder of its tenant or program, so that no name reaches a file path.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from quire.core.errors import CapacityError, ConfigError, QuotaExceeded
from quire.core.ids import ProgramId, TenantId
from quire.core.scratch import ScratchDirectory
from quire.node.fault_log import FaultLog
from quire.node.store_threads import StoreThreads
from quire.programs.vectors import CollectionPlace, FoundRow, VectorRows
from quire.programs.vectors.store import (
    F32,
    check_dimensions,
    check_disk,
    check_number,
    check_room,
    unknown,
)

try:
    import lancedb
    import pyarrow as pa
except ImportError as exc:  # pragma: no cover - depends on the environment
    raise ConfigError(
        f"the vector store 'lance' needs LanceDB ({exc}): pip install 'quire[workflows]'"
    ) from exc

logger = logging.getLogger(__name__)

T = TypeVar("T")

NUM_THREADS = 1
_TABLE, _NAME = "rows", "name"
_MAX_FILES = 64
"""Fragments of a table after which they are joined: each ``put`` writes one."""


class LanceStore:
    """See ``VectorStore``. ``directory``: ``None`` for a temporary one, removed at the end. Shared
    collections stay in it; those of programs that ended with their node are removed when it
    starts."""

    at_once = NUM_THREADS

    def __init__(self, directory: Path | None = None) -> None:
        self._temporary: ScratchDirectory | None = None
        if directory is None:
            self._temporary = ScratchDirectory("vectors")
            directory = self._temporary.path
        self._directory = directory
        shutil.rmtree(self._directory / "programs", ignore_errors=True)
        self._threads = StoreThreads(NUM_THREADS)
        self._tables: dict[Path, Any] = {}
        self._num_puts: Counter[Path] = Counter()
        self._sizes: dict[TenantId, dict[Path, int]] = {}
        """Bytes of the folders of each tenant that has put rows, those of its programs included."""
        self._faults = FaultLog(logger, "LanceDB")

    async def put(self, place: CollectionPlace, rows: VectorRows) -> None:
        await self._run(lambda: self._put(place, rows))

    async def search(self, place: CollectionPlace, vectors: F32, num: int) -> list[list[FoundRow]]:
        return await self._run(lambda: self._search(place, vectors, num))

    async def drop(self, place: CollectionPlace) -> bool:
        return await self._run(lambda: self._drop(self._folder(place)))

    async def names(self, tenant: TenantId) -> list[str]:
        around = self._folder(CollectionPlace(tenant, None, "")).parent
        return await self._run(lambda: sorted(one.read_text("utf-8") for one in _named(around)))

    def end(self, program: ProgramId) -> None:
        self._threads.later(lambda: self._drop(self._directory / "programs" / str(program)))

    def close(self) -> None:
        self._threads.close()
        self._tables.clear()
        if self._temporary is not None:
            self._temporary.close()

    async def _run(self, job: Callable[[], T]) -> T:
        try:
            result = await self._threads.run(job)
        except (OSError, RuntimeError) as exc:  # LanceDB raises both for its files
            self._faults.fails(str(exc))
            reason = getattr(exc, "strerror", None) or "its files cannot be read or written"
            raise CapacityError(
                f"the LanceDB vector store cannot be used now ({reason}): check that its folder, "
                "'vectors' in --data-dir, can be written and has room, or drop the collection if "
                "its files are damaged (the node's log has more)"
            ) from exc
        self._faults.works()
        return result

    # -- on the thread -----------------------------------------------------------------------------

    def _put(self, place: CollectionPlace, rows: VectorRows) -> None:
        folder, dimensions = self._folder(place), rows.vectors.shape[1]
        table = self._table(folder)
        if table is None:
            check_room(place, len(rows.texts), dimensions)
            check_number(place, len(_named(folder.parent)))
            table = self._made(folder, place.name, dimensions)
        check_dimensions(place, dimensions, _dimensions(table))
        numbers = rows.numbers
        inside = f"number >= {numbers.start} AND number < {numbers.stop}"
        num_replaced = table.count_rows(inside)
        check_room(place, table.count_rows() - num_replaced + len(numbers), dimensions)
        self._check_disk(place, folder, table, rows)
        if num_replaced:
            table.delete(inside)
        table.add(_arrow(rows))
        self._num_puts[folder] += 1
        if self._num_puts[folder] % _MAX_FILES == 0:
            _join(table)
        self._sizes[place.tenant][folder] = _num_bytes(folder)

    def _check_disk(
        self, place: CollectionPlace, folder: Path, table: Any, rows: VectorRows
    ) -> None:
        sizes = self._sizes.get(place.tenant)
        if sizes is None:
            shared = self._folder(CollectionPlace(place.tenant, None, "")).parent
            sizes = {one.parent: _num_bytes(one.parent) for one in _named(shared)}
            self._sizes[place.tenant] = sizes
        try:
            check_disk(sum(sizes.values()), rows)
        except QuotaExceeded:  # files of rows that were replaced may still be there
            _join(table)
            sizes[folder] = _num_bytes(folder)
            check_disk(sum(sizes.values()), rows)

    def _search(self, place: CollectionPlace, vectors: F32, num: int) -> list[list[FoundRow]]:
        table = self._table(self._folder(place))
        if table is None:
            raise unknown(place)
        check_dimensions(place, vectors.shape[1], _dimensions(table))
        return [_nearest(table, vector_D, num) for vector_D in vectors]

    def _drop(self, folder: Path) -> bool:
        """Remove ``folder``: a collection, or all collections of a program."""
        for one in [one for one in self._tables if one == folder or folder in one.parents]:
            del self._tables[one]
            self._num_puts.pop(one, None)
        for sizes in self._sizes.values():
            for one in [one for one in sizes if one == folder or folder in one.parents]:
                del sizes[one]
        existed = folder.exists()
        shutil.rmtree(folder, ignore_errors=True)
        return existed

    def _made(self, folder: Path, name: str, dimensions: int) -> Any:
        shutil.rmtree(folder, ignore_errors=True)  # a node may have been killed right here
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        schema = _schema(dimensions)
        table = lancedb.connect(str(folder)).create_table(_TABLE, schema=schema)
        (folder / _NAME).write_text(name, "utf-8")  # last: without it there is no collection
        self._tables[folder] = table
        return table

    def _table(self, folder: Path) -> Any:
        if folder not in self._tables and (folder / _NAME).exists():
            try:
                self._tables[folder] = lancedb.connect(str(folder)).open_table(_TABLE)
            except ValueError as exc:
                raise OSError(f"{folder}: {exc}") from exc  # its files are missing
        return self._tables.get(folder)

    def _folder(self, place: CollectionPlace) -> Path:
        owner = Path("tenants", _digest(place.tenant))
        if place.program is not None:
            owner = Path("programs", str(place.program))
        return self._directory / owner / _digest(place.name)


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _named(folder: Path) -> list[Path]:
    """The files with the names of the collections in ``folder``."""
    return list(folder.glob(f"*/{_NAME}"))


def _join(table: Any) -> None:
    """Join the fragments of a table, and remove the files of rows that are replaced: without this
    LanceDB keeps them for a week. Nobody else reads them: the store has one thread."""
    table.optimize(cleanup_older_than=timedelta(milliseconds=1))


def _num_bytes(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())


def _schema(dimensions: int) -> Any:
    vector = pa.list_(pa.float32(), dimensions)
    return pa.schema([("number", pa.int64()), ("vector", vector), ("text", pa.string())])


def _dimensions(table: Any) -> int:
    size: int = table.schema.field("vector").type.list_size
    return size


def _arrow(rows: VectorRows) -> Any:
    dimensions = rows.vectors.shape[1]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.vectors.ravel()), dimensions)
    columns = [pa.array(rows.numbers, pa.int64()), vectors, pa.array(rows.texts, pa.string())]
    return pa.table(columns, schema=_schema(dimensions))


def _nearest(table: Any, vector_D: F32, num: int) -> list[FoundRow]:
    query = table.search(vector_D).distance_type("dot").bypass_vector_index()
    columns = query.select(["number", "text", "_distance"]).limit(num).to_arrow().to_pydict()
    scores = (1 - distance for distance in columns["_distance"])  # distance = 1 - product
    found = map(FoundRow, columns["number"], scores, columns["text"])
    return sorted(found, key=lambda row: (-row.score, row.number))
