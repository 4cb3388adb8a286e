"""``FolderSearch``: the search engine over the files of a directory.

Owns which files are read, and the threads of the index. Files are read once, when the node starts;
an index in the data directory keeps what has not changed since.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from quire.core.errors import ConfigError, EngineLost, InvalidArgument, QuireError
from quire.core.scratch import ScratchDirectory
from quire.node.search.index import IndexedFile, TextIndex
from quire.node.search.passages import passages, title_of
from quire.node.store_threads import StoreThreads
from quire.programs.search import SearchResult
from quire.programs.services.documents import MAX_FILE_BYTES, SUFFIXES, DocumentService, ReadFile

logger = logging.getLogger(__name__)

NUM_THREADS = 4
MAX_FILES = 1 << 16
MAX_PASSAGES = 1 << 18
"""The limit of one directory; at the limit, a question of common words takes about a second."""


class FolderSearch:
    """See ``SearchEngine``. ``directory``: its text, Markdown, HTML and PDF files are read, those
    of folders within it too; hidden files and links are left out. ``data_dir``: where the index is
    kept (None: a temporary directory, removed at the end).

    Raises:
        ConfigError: no such directory, or no file in it that can be read.
    """

    name = "fts5"
    at_once = NUM_THREADS

    def __init__(self, directory: Path, data_dir: Path | None, read_file: ReadFile) -> None:
        self._directory = directory
        if not any(_files(directory)):
            raise ConfigError(
                f"--search {directory}: {_why_none(directory)}; an address of a SearXNG server "
                "begins with http:// or https://"
            )
        self._reader = DocumentService(read_file)
        self._threads = StoreThreads(NUM_THREADS, "search index")
        self._data_dir = data_dir
        self._temporary: ScratchDirectory | None = None
        self._index: TextIndex | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Read new and changed files; return when all can be searched.

        Raises:
            ConfigError: nothing could be read, or there is too much.
        """
        folder = self._data_dir
        if folder is None:
            self._temporary = ScratchDirectory("search")
            folder = self._temporary.path
        folder /= "search"
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(os.fsencode(self._directory.resolve())).hexdigest()
        index = await self._threads.run(lambda: TextIndex(folder / f"{digest[:32]}.sqlite"))
        self._index = index
        known = await self._threads.run(index.files)
        seen = set[str]()
        for file in _files(self._directory):
            path = file.relative_to(self._directory).as_posix()
            try:
                status = file.stat()
            except OSError:
                continue  # it has been deleted meanwhile
            seen.add(path)
            if len(seen) > MAX_FILES:
                raise ConfigError(
                    f"--search {self._directory}: over {MAX_FILES} files: give a smaller directory"
                )
            before = known.get(path)
            now = IndexedFile(path, status.st_size, status.st_mtime_ns)
            if before is None or before._replace(error=None) != now or before.error is not None:
                await self._read(index, file, now)
        for path in known.keys() - seen:
            await self._threads.run(lambda path=path: index.remove(path))  # type: ignore[misc]
        num = await self._threads.run(index.num_passages)
        if not num:
            raise ConfigError(
                f"--search {self._directory}: no file could be read, see the warnings above: give "
                "a directory with texts"
            )
        if num > MAX_PASSAGES:
            raise ConfigError(
                f"--search {self._directory}: {num} passages; at most {MAX_PASSAGES} are searched: "
                "give a smaller directory"
            )
        text = "%s can be searched: passages %d, files %d"
        logger.info(text, self._directory, num, len(seen))

    async def _read(self, index: TextIndex, file: Path, now: IndexedFile) -> None:
        try:
            if now.size > MAX_FILE_BYTES:
                raise InvalidArgument(f"it has {now.size} bytes, at most {MAX_FILE_BYTES} are read")
            content = await asyncio.to_thread(file.read_bytes)
            kind = SUFFIXES[file.suffix.lower()]
            text = await self._reader.read(content, now.path, kind)
        except (QuireError, OSError) as exc:
            if isinstance(exc, ConfigError):
                raise
            logger.warning("%s is not searched: %s", file, exc)
            unread = now._replace(error=str(exc))
            await self._threads.run(lambda: index.put(unread, "", ()))
            return
        title = title_of(file.name, text)
        await self._threads.run(lambda: index.put(now, title, passages(text)))

    async def search(self, query: str, top_k: int) -> list[SearchResult]:
        index = self._index
        if index is None:
            raise EngineLost("the search index is being made: ask again")
        return await self._threads.run(lambda: index.search(query, top_k))

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._threads.close()
        if self._index is not None:
            self._index.close()
        if self._temporary is not None:
            self._temporary.close()


def _files(directory: Path) -> Iterator[Path]:
    """The files of known kinds, in the order of their names."""
    for folder, folders, names in os.walk(directory, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            is_plain = file.is_file() and not file.is_symlink() and not name.startswith(".")
            if is_plain and file.suffix.lower() in SUFFIXES:
                yield file


def _why_none(directory: Path) -> str:
    if not directory.exists():
        return "no such directory"
    if not directory.is_dir():
        return "not a directory"
    return f"it has no file that ends in {', '.join(SUFFIXES)}"
