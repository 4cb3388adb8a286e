"""HTML and PDF files become text in processes with limits; a file that exceeds one is refused by
name."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress

import pytest
from documents_made import page_of, pdf_of

from quire.core.errors import ConfigError, Draining, InvalidArgument
from quire.core.piped_process import PipedProcess
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


def test_elements_inside_one_another_do_no_harm(process: ReadingProcess) -> None:
    with suppress(InvalidArgument):
        process.read("deep.html", "html", b"<div>" * 20_000 + b"deep")
    assert process.read("next", "html", page_of(FACTS[0])).endswith(FACTS[0])


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
