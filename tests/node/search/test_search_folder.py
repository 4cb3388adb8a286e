"""The index of a directory: what is found, what is read again, and what it refuses."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Self

import pytest
from documents_made import page_of

from quire.core.errors import ConfigError, Draining, EngineFault, EngineLost, QuotaExceeded
from quire.node.documents.readers import DocumentReaders
from quire.node.search import folder, index
from quire.node.search.folder import FolderSearch
from quire.node.search.index import match_expression
from quire.node.search.passages import PASSAGE_TOKENS, passages, title_of
from quire.programs.search.engine import MAX_TEXT_CHARS

FACTS = {
    "people.md": "# People\n\nThe job of Lin is doctor.\nThe job of Ida is pilot.\n",
    "sub/cities.txt": "Oslo is the capital of Norway.\n\nÅse lives in Málaga.",
    "sub/.hidden.md": "The job of Lin is hidden.",
    ".git/notes.md": "The job of Lin is secret.",
    **{f"job{n}.txt": f"The job of P{n} is to wait." for n in range(3)},
    "picture.png": "The job of Lin is a picture.",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "texts"
    for name, text in FACTS.items():
        file = made / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return made


class Searching:
    """``async with Searching(directory) as found:`` then ``await found("words")``."""

    def __init__(self, directory: Path, data_dir: Path | None = None) -> None:
        self._readers = DocumentReaders()
        self.read: list[str] = []
        self.engine = FolderSearch(directory, data_dir, self._noted)

    async def _noted(self, name: str, kind: str, file: bytes) -> str:
        self.read.append(name)
        return await self._readers.read(name, kind, file)

    async def __aenter__(self) -> Self:
        try:
            await self.engine.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.engine.close()
        self._readers.close()

    async def __call__(self, query: str, top_k: int = 4) -> list[tuple[str, str]]:
        return [(one.address, one.text) for one in await self.engine.search(query, top_k)]


async def test_passages_are_found_by_their_rarest_words(directory: Path) -> None:
    async with Searching(directory) as found:
        (best,) = await found.engine.search("What is the JOB of Lin?", 1)
        assert (best.title, best.address) == ("People", "people.md")
        assert best.text == "# People\nThe job of Lin is doctor.\nThe job of Ida is pilot."
        assert best.score > 0
        texts = [one[0] for one in await found("the job and the capital", 9)]
        assert texts[0] == "sub/cities.txt"
        assert len(texts) == 5
        assert await found("malaga") == await found("Málaga lives") != []
        assert (await found("doctors"))[0][0] == "people.md", "the ends of words do not count"
        assert await found("picture secret hidden") == []


@pytest.mark.parametrize(
    "query",
    [
        '"', "job*", "NEAR(job lin)", "title:job", "job AND", "NOT job", "(job", "job -lin ^x",
        "'; DROP TABLE passages; --", "\0job", "a" * 2048, "\ud800 job", "😀", "NULL",
    ],
)  # fmt: skip
async def test_a_query_is_words_whatever_marks_it_has(directory: Path, query: str) -> None:
    async with Searching(directory) as found:
        results = await found(query)
        assert bool(results) == ("job" in query.lower())


def test_the_words_of_a_query_are_bounded_and_each_counts_once() -> None:
    assert match_expression("One, one TWO.") == '"one" OR "two"'
    assert match_expression("...") is None
    many = match_expression(" ".join(f"w{n}" for n in range(1000)))
    assert many is not None
    assert many.count(" OR ") == index.MAX_TERMS - 1


async def test_what_has_not_changed_is_not_read_again(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("trafilatura", reason="needs the extra 'workflows'")
    page = directory / "a.html"
    page.write_bytes(page_of("The age of Lin is 41."))
    async with Searching(directory, tmp_path) as found:
        assert found.read == ["a.html"]
        ((name, text),) = await found("age", 1)
        assert (name, text.splitlines()[-1]) == ("a.html", "The age of Lin is 41.")
    (directory / "people.md").unlink()
    (directory / "sub/cities.txt").write_text("Rome is old.", encoding="utf-8")
    async with Searching(directory, tmp_path) as found:
        assert found.read == []
        assert await found("age Lin") == [("a.html", text)]
        assert await found("capital doctor Norway") == []
        assert await found("Rome") == [("sub/cities.txt", "Rome is old.")]
    page.write_bytes(page_of("The age of Lin is 42."))
    os.utime(page, ns=(1, 1))
    async with Searching(directory, tmp_path) as found:
        assert found.read == ["a.html"]
        assert await found("41 42") == [("a.html", text.replace("41", "42"))]


async def test_a_file_that_cannot_be_read_is_left_out_and_named(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "MAX_FILE_BYTES", 100)
    (directory / "latin.txt").write_bytes(b"Lin \xff\xfe")
    (directory / "empty.md").write_bytes(b"")
    (directory / "large.md").write_text("Lin " * 99, encoding="utf-8")
    (directory / "link.md").symlink_to(directory / "people.md")
    with caplog.at_level(logging.WARNING):
        async with Searching(directory) as found:
            assert [one[0] for one in await found("Lin")] == ["people.md"]
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "latin.txt is not searched: the document 'latin.txt' is no text in UTF-8" in told
    assert "empty.md is not searched: the document 'empty.md' is empty" in told
    assert "large.md is not searched: it has 396 bytes, at most 100 are read" in told
    assert "link.md" not in told


async def test_a_directory_without_a_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"it has no file that ends in \.txt, \.md"):
        Searching(tmp_path)
    with pytest.raises(ConfigError, match=r"no such directory; an address .* begins with http"):
        Searching(tmp_path / "none")
    with pytest.raises(ConfigError, match="not a directory"):
        Searching(tmp_path / "a.png")
    (tmp_path / "a.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="no file could be read, see the warnings above"):
        async with Searching(tmp_path):
            raise AssertionError("it cannot start")


async def test_a_kind_of_file_that_the_node_cannot_read_is_refused_with_the_remedy(
    directory: Path,
) -> None:
    (directory / "a.pdf").write_bytes(b"%PDF-1.7")

    async def lacking(name: str, kind: str, file: bytes) -> str:
        raise ConfigError(f"{kind} documents ({name!r}) need an extra")

    engine = FolderSearch(directory, None, lacking)
    with pytest.raises(ConfigError, match=r"pdf documents \('a\.pdf'\) need an extra"):
        await engine.start()
    await engine.close()


async def test_too_much_to_index_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "MAX_PASSAGES", 1)
    with pytest.raises(ConfigError, match="5 passages; at most 1 are searched"):
        async with Searching(directory):
            raise AssertionError("it cannot start")
    monkeypatch.setattr(folder, "MAX_FILES", 1)
    with pytest.raises(ConfigError, match="over 1 files: give a smaller directory"):
        async with Searching(directory):
            raise AssertionError("it cannot start")


async def test_a_query_may_not_take_for_ever(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MAX_QUERY_S", -1.0)
    monkeypatch.setattr(index, "_STEPS_BETWEEN_LOOKS", 1)
    async with Searching(directory) as found:
        with pytest.raises(QuotaExceeded, match=r"takes more than -1 s .* fewer and rarer words"):
            await found("job")
        monkeypatch.setattr(index, "MAX_QUERY_S", 60.0)
        assert await found("job")


async def test_an_index_that_is_damaged_or_of_another_version_is_told_or_made_anew(
    directory: Path, tmp_path: Path
) -> None:
    async with Searching(directory, tmp_path) as found:
        assert await found("job")
    (file,) = (tmp_path / "search").glob("*.sqlite")
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version = 0")
        database.execute("DELETE FROM files")
    database.close()
    async with Searching(directory, tmp_path) as found:
        assert len(await found("job", 9)) == 4, "none of the old index is left"
        with sqlite3.connect(file) as database:
            database.execute("DROP TABLE passages")
        database.close()
        with pytest.raises(EngineFault, match=r"cannot be read .* delete its folder 'search'"):
            await found("job")
    file.write_bytes(b"no database " * 999)
    with pytest.raises(ConfigError, match=r"the search index .* cannot be used .* delete it"):
        async with Searching(directory, tmp_path):
            raise AssertionError("it cannot start")


async def test_before_its_start_and_behind_its_end_it_says_so(directory: Path) -> None:
    found = Searching(directory)
    with pytest.raises(EngineLost, match="the search index is being made"):
        await found("job")
    async with found:
        assert await found("job")
    with pytest.raises(Draining, match="its search index is closed"):
        await found("job")


def test_passages_are_whole_lines_and_long_lines_are_cut() -> None:
    lines = [f"The job of P{n} is x." for n in range(9)]
    made = list(passages("\n\n".join(lines)))
    assert [one.count("\n") + 1 for one in made] == [4, 4, 1]
    assert "\n".join(made) == "\n".join(lines)
    long = " ".join(f"w{n}" for n in range(3 * PASSAGE_TOKENS))
    cut = list(passages(f"first\n{long}\nlast"))
    assert cut[0] == "first"
    assert cut[-1] == "last"
    assert all(len(one.split()) <= PASSAGE_TOKENS for one in cut)
    assert set(" ".join(cut[1:-1]).split()) == set(long.split())
    assert [len(one) for one in passages("x" * (MAX_TEXT_CHARS + 1))] == [MAX_TEXT_CHARS, 1]
    assert list(passages(" \n\t\n")) == []


def test_a_title_is_the_first_heading_or_the_files_name() -> None:
    assert title_of("a.md", "text\n## The heading \n# Later") == "The heading"
    assert title_of("people.old.txt", "#no heading") == "people.old"
