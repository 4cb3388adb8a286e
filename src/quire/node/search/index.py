"""``TextIndex``: passages of files in a table of SQLite FTS5, found by their words.

Owns the database file and the form of a query. Its calls block; ``FolderSearch`` has the threads.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from quire.core.errors import ConfigError, EngineFault, QuotaExceeded
from quire.programs.search import SearchResult

VERSION = 1
"""The version of the tables and of the cutting of files; an index of another version is rebuilt."""
MAX_TERMS = 64
"""The most words of a query; further ones are ignored."""
MAX_QUERY_S = 5.0
_STEPS_BETWEEN_LOOKS = 20_000
"""Steps of SQLite's virtual machine between two looks at the clock."""

_WORD = re.compile(r"\w+")
_TABLES = """
CREATE TABLE files (
    path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, first INTEGER, stop INTEGER, error TEXT
);
CREATE VIRTUAL TABLE passages USING fts5(
    title, text, path UNINDEXED, tokenize = 'porter unicode61 remove_diacritics 2'
);
"""
_SEARCH = """
SELECT title, path, text, -rank FROM passages WHERE passages MATCH ? ORDER BY rank, rowid LIMIT ?
"""
"""``rank`` is the negative BM25."""


class IndexedFile(NamedTuple):
    """A file as it was when it was read. ``error``: why it has no passages."""

    path: str
    size: int
    mtime_ns: int
    error: str | None = None


class TextIndex:
    """``file``: the database, which is made if it is not there or of another version. One thread
    changes it, before any searches; searches may run on many.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._of_thread = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        try:
            self._writer = self._prepared()
        except sqlite3.Error as exc:
            raise ConfigError(
                f"the search index {file} cannot be used ({exc}): delete it, or check the data "
                "directory; SQLite needs FTS5"
            ) from exc

    def _prepared(self) -> sqlite3.Connection:
        writer = sqlite3.connect(self._file, check_same_thread=False)
        (version,) = writer.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            for table in ("passages", "files"):
                writer.execute(f"DROP TABLE IF EXISTS {table}")
            writer.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        return writer

    # -- changes -----------------------------------------------------------------------------------

    def files(self) -> dict[str, IndexedFile]:
        """The files in the index, by path."""
        rows = self._writer.execute("SELECT path, size, mtime_ns, error FROM files")
        return {row[0]: IndexedFile(*row) for row in rows}

    def put(self, file: IndexedFile, title: str, passages: Iterable[str]) -> int:
        """Add a file, or replace the one with its path; return the number of its passages."""
        with self._writer as writer:
            self._remove(file.path)
            (last,) = writer.execute("SELECT max(rowid) FROM passages").fetchone()
            first = (last or 0) + 1
            rows = [(first + n, title, text, file.path) for n, text in enumerate(passages)]
            writer.executemany(
                "INSERT INTO passages (rowid, title, text, path) VALUES (?, ?, ?, ?)", rows
            )
            writer.execute(
                "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?)",
                (file.path, file.size, file.mtime_ns, first, first + len(rows), file.error),
            )
        return len(rows)

    def remove(self, path: str) -> None:
        with self._writer:
            self._remove(path)

    def _remove(self, path: str) -> None:
        row = self._writer.execute("SELECT first, stop FROM files WHERE path = ?", (path,))
        found = row.fetchone()
        if found is not None:
            self._writer.execute("DELETE FROM passages WHERE rowid >= ? AND rowid < ?", found)
            self._writer.execute("DELETE FROM files WHERE path = ?", (path,))

    def num_passages(self) -> int:
        (num,) = self._writer.execute("SELECT sum(stop - first) FROM files").fetchone()
        return num or 0

    # -- searches ----------------------------------------------------------------------------------

    def search(self, query: str, top_k: int) -> list[SearchResult]:
        """The passages that have the rarest of the query's words most often (BM25).

        Raises:
            QuotaExceeded: it takes longer than ``MAX_QUERY_S``.
            EngineFault: the file is damaged or gone.
        """
        terms = match_expression(query)
        if terms is None:
            return []
        ends_s = time.monotonic() + MAX_QUERY_S
        try:
            connection = self._connected()
            connection.set_progress_handler(lambda: time.monotonic() > ends_s, _STEPS_BETWEEN_LOOKS)
            rows = connection.execute(_SEARCH, (terms, top_k)).fetchall()
        except sqlite3.OperationalError as exc:
            if str(exc) != "interrupted":
                raise self._damaged(exc) from exc
            raise QuotaExceeded(
                f"search: the query takes more than {MAX_QUERY_S:g} s in this index: give fewer "
                "and rarer words"
            ) from exc
        except sqlite3.Error as exc:
            raise self._damaged(exc) from exc
        return [SearchResult(*row) for row in rows]

    def _damaged(self, error: sqlite3.Error) -> EngineFault:
        return EngineFault(
            f"the search index cannot be read ({error}): start the node again, and if that does "
            "not help delete its folder 'search' in the data directory"
        )

    def _connected(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._of_thread, "connection", None)
        if found is None:
            address = f"{self._file.resolve().as_uri()}?mode=ro"
            found = sqlite3.connect(address, uri=True, check_same_thread=False)
            self._of_thread.connection = found
            with self._lock:
                self._opened.append(found)
        return found

    def close(self) -> None:
        """Close the database; no search may be running. Idempotent."""
        with self._lock:
            for connection in (*self._opened, self._writer):
                connection.close()
            self._opened.clear()


def match_expression(query: str) -> str | None:
    """The FTS5 expression for any of the words of ``query``; None if it has none. Every word is
    quoted, so that none is read as an operator."""
    words = dict.fromkeys(word.casefold() for word in _WORD.findall(query))
    terms = [f'"{word}"' for word in list(words)[:MAX_TERMS]]
    return " OR ".join(terms) or None
