"""HTML and PDF files become text in processes with limits; a file that exceeds one is refused by
name."""

from __future__ import annotations

import asyncio
import socket
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents_made import page_of, pdf_of

from quire.core.errors import ConfigError, Draining, InvalidArgument
from quire.core.piped_process import PipedProcess
from quire.node.documents import reading_worker
from quire.node.documents.process import WORKER, ReadingLimits, ReadingProcess
from quire.node.documents.readers import DocumentReaders

FACTS = [f"The job of person {n} is baker of the town number {n}." for n in range(6)]


@pytest.fixture(scope="module")
def process() -> Iterator[ReadingProcess]:
    made = ReadingProcess(ReadingLimits(max_chars=2000, max_memory_bytes=512 << 20))
    yield made
    made.close()


def test_the_main_text_of_a_page_is_read(process: ReadingProcess) -> None:
    text = process.read("a.html", "html", page_of(*FACTS))
    assert all(fact in text for fact in FACTS)
    assert not any(word in text for word in ("Home", "Imprint", "let x"))


def test_all_text_is_read_of_a_page_without_a_main_one(process: ReadingProcess) -> None:
    assert process.read("a.html", "html", b"Kabo is\n a baker.<script>no()</script>") == (
        "Kabo is a baker."
    )


def test_the_text_of_each_page_of_a_pdf_is_read(process: ReadingProcess) -> None:
    text = process.read("a.pdf", "pdf", pdf_of([FACTS[0], FACTS[1]]))
    assert text.split("\n\n") == FACTS[:2]


def test_characters_that_nobody_can_store_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reading_worker.READERS, "pdf", lambda file: "a\0b \ud834")
    assert reading_worker.read("pdf", b"", 100) == "a?b ?"


def test_a_pdf_that_needs_no_password_to_be_read_is_read(process: ReadingProcess) -> None:
    assert process.read("a.pdf", "pdf", pdf_of([FACTS[0]], password="")) == FACTS[0]


def bomb() -> bytes:
    """A page whose content is 160 MiB of nothing, packed twice."""
    packed = zlib.compress(zlib.compress(bytes(160 << 20), 1))
    content = pdf_of(["x"]).replace(b"BT /F1 12 Tf 20 200 Td (x) Tj ET", b"@")
    head, _, tail = content.partition(b"@")
    start = head.rindex(b"<<")
    filters = b"<< /Filter [/FlateDecode /FlateDecode] /Length %d >>\nstream\n"
    return head[:start] + filters % len(packed) + packed + tail


@pytest.mark.parametrize(
    ("kind", "file", "message"),
    [
        ("html", b"<html><body></body></html>", "has no text: leave it out"),
        ("html", b"<!-- -->", "has no text: leave it out"),
        (
            "html",
            page_of("word " * 500),
            "has 2506 characters of text; at most 2000 are read: divide it",
        ),
        ("pdf", b"%PDF-1.7 nothing", "cannot be read as PDF, it may be damaged: "),
        ("pdf", b"no pdf", "cannot be read as PDF, it may be damaged: "),
        ("pdf", pdf_of(["", ""]), "has no text on its 2 pages: they may be pictures"),
        ("pdf", pdf_of([]), "has no text: leave it out"),
        ("pdf", pdf_of(["secret"], password="1"), "is encrypted: remove its password"),
        ("pdf", bomb(), "cannot be read as PDF|takes too much memory to read"),
    ],
    ids=["empty", "comment", "large", "cut", "other", "pictures", "pageless", "encrypted", "bomb"],
)
def test_what_cannot_be_read_is_refused_by_name(
    process: ReadingProcess, kind: str, file: bytes, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"the document 'that one' ({message})"):
        process.read("that one", kind, file)
    assert process.read("next", "html", page_of(FACTS[0])).endswith(FACTS[0])


def html_that_points_to(address: str, secret: Path) -> bytes:
    """Everything in a page that a browser or an XML parser would fetch."""
    return (
        f'<!DOCTYPE html PUBLIC "x" "{address}/dtd" [<!ENTITY own SYSTEM "file://{secret}">'
        f'<!ENTITY % far SYSTEM "{address}/entity"> %far;]>'
        f'<html xmlns:xi="http://www.w3.org/2001/XInclude"><head><base href="{address}/">'
        f'<meta http-equiv="refresh" content="0;url={address}/meta">'
        f'<link rel="canonical" href="{address}/canonical"><link rel="stylesheet" href="/css">'
        f'<script src="{address}/script"></script></head><body><article><p>{FACTS[0]} &own;</p>'
        f'<img src="{address}/img"><iframe src="{address}/frame"></iframe>'
        f'<object data="{address}/object"></object>'
        f'<xi:include href="file://{secret}" parse="text"/>'
        f"<p>{FACTS[1]}</p></article></body></html>"
    ).encode()


def pdf_that_points_to(address: str, secret: Path) -> bytes:
    """A page that is in another file and opens an address, beside one with a text."""
    content = pdf_of(FACTS[:2])
    head, _, tail = content.partition(b"BT /F1 12 Tf 20 200 Td (" + FACTS[1].encode())
    start = head.rindex(b"<<")
    elsewhere = f"<< /F (file://{secret}) /URI ({address}/uri) /FS /URL /Length "
    return (
        head[:start]
        + head[start:].replace(b"<< /Length ", elsewhere.encode(), 1)
        + (b"BT /F1 12 Tf 20 200 Td (" + FACTS[1].encode() + tail)
    )


@pytest.mark.parametrize("kind", ["html", "pdf"])
def test_nothing_is_fetched_that_a_document_points_to(
    process: ReadingProcess, kind: str, tmp_path: Path
) -> None:
    """Neither at a private address nor from a file of this machine."""
    secret = tmp_path / "secret"
    secret.write_text("the key is 1234")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        made = html_that_points_to if kind == "html" else pdf_that_points_to
        text = process.read(f"{address}/a.{kind}", kind, made(address, secret))
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert FACTS[0] in text
    assert "1234" not in text


@pytest.mark.parametrize("depth", [200, 300, 1500])
def test_the_text_inside_many_elements_is_read(process: ReadingProcess, depth: int) -> None:
    inside = f"{'<div>' * depth}<p>{FACTS[1]}</p>{'</div>' * depth}"
    for page in (f"<article><p>{FACTS[0]}</p>{inside}</article>", f"{FACTS[0]} {inside}"):
        text = process.read("deep.html", "html", f"<html><body>{page}</body></html>".encode())
        assert FACTS[0] in text
        assert FACTS[1] in text, "the part that lies deep is missing"


@pytest.mark.parametrize("page", ["<div>" * 300 + "{}", "<table><tr><td>{}</table>"])
def test_a_page_that_names_no_charset_is_read_as_utf_8(process: ReadingProcess, page: str) -> None:
    """Also where its tree is read here: if it is deep, or without a main part."""
    text = process.read("a.html", "html", page.format("Zoë lives in Zürich.").encode())
    assert "Zoë lives in Zürich." in text


def test_elements_inside_too_many_are_refused(process: ReadingProcess) -> None:
    with pytest.raises(InvalidArgument, match="has elements that are nested too deeply"):
        process.read("deep.html", "html", b"<p>first</p>" + b"<div>" * 20_000 + b"deep")
    assert process.read("next", "html", page_of(FACTS[0])).endswith(FACTS[0])


@pytest.mark.parametrize(
    ("charset", "wrong"), [("none-such", b""), ("shift_jis", b"\x81\xff"), ("gb2312", b"\xff\xff")]
)
def test_wrong_bytes_and_unknown_charsets_are_not_taken_for_depth(
    process: ReadingProcess, charset: str, wrong: bytes
) -> None:
    head = f'<html><head><meta charset="{charset}"></head><body><p>{FACTS[0]} '.encode()
    page = head + wrong + f"</p><p>{FACTS[1]}</p></body></html>".encode()
    text = process.read("old.html", "html", page)
    assert FACTS[0] in text
    assert FACTS[1] in text


def test_a_file_that_takes_too_long_ends_its_process_alone() -> None:
    process = ReadingProcess(ReadingLimits(max_file_s=0.01))  # less than loading the parser takes
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=r"'a\.pdf' .* more than 0.01 s of processor"):
            process.read("a.pdf", "pdf", pdf_of([FACTS[0]]))
        assert process.pid is None


def test_a_kind_whose_package_is_missing_names_the_extra() -> None:
    run = f"import sys, runpy; sys.modules['pypdf'] = None; runpy.run_path({WORKER[-1]!r}, None,"
    process = ReadingProcess(command=(WORKER[0], "-c", f"{run} '__main__')"))
    with pytest.raises(ConfigError, match=r"PDF documents \('a\.pdf'\) .* 'quire\[workflows\]'"):
        process.read("a.pdf", "pdf", pdf_of([FACTS[0]]))
    process.close()


def test_a_document_whose_process_was_just_closed_is_refused() -> None:
    class ClosedAtOnce(ReadingProcess):
        def _running(self) -> PipedProcess:
            process = super()._running()
            self.close()
            return process

    with pytest.raises(InvalidArgument, match=r"'a\.pdf' cannot be read"):
        ClosedAtOnce().read("a.pdf", "pdf", b"%PDF")


async def test_documents_that_are_being_read_are_refused_when_the_readers_close() -> None:
    started = threading.Event()

    class Stuck(ReadingProcess):
        def read(self, name: str, kind: str, file: bytes) -> str:
            self._running()
            started.set()
            return super().read(name, kind, file)

    stuck = (WORKER[0], "-c", "import time; time.sleep(1000)")
    readers = DocumentReaders(lambda: Stuck(command=stuck))
    reading = asyncio.create_task(readers.read("a.pdf", "pdf", b"%PDF"))
    await asyncio.to_thread(started.wait)
    await asyncio.to_thread(readers.close)
    with pytest.raises(InvalidArgument, match=r"'a\.pdf' cannot be read"):
        await reading
    with pytest.raises(Draining, match="reads no further documents"):
        await readers.read("b.pdf", "pdf", b"%PDF")


async def test_documents_are_read_side_by_side() -> None:
    readers = DocumentReaders()
    try:
        files = [("a.pdf", "pdf", pdf_of([FACTS[0]])), ("b.html", "html", page_of(FACTS[1]))]
        texts = await asyncio.gather(*(readers.read(*one) for one in files))
        assert [FACTS[place] in text for place, text in enumerate(texts)] == [True, True]
    finally:
        await asyncio.to_thread(readers.close)
