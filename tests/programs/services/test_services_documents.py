"""A program's access to the readers of documents: kinds, bounds, one document after the other."""

from __future__ import annotations

import asyncio

import pytest

from quire.core.errors import InvalidArgument
from quire.programs.services import documents
from quire.programs.services.documents import DocumentService, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.MD", "text"), ("a", "text"), (".hidden", "text"), ("b.c.HTM", "html"), ("d.pdf", "pdf")],
)
def test_the_end_of_a_name_tells_the_kind(name: str, kind: str) -> None:
    assert kind_of(name) == kind


async def test_what_is_no_document_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unused(name: str, kind: str, file: bytes) -> str:
        raise AssertionError("nothing of this is for a process")

    service = DocumentService(unused)
    assert await service.read("\ufeffäh".encode(), "a.txt", "text") == "äh"
    for content, message in [
        (b"%PDF-1.4 ...", r"'a\.txt' is a PDF, and read as text it would be nonsense"),
        ("text".encode("utf-16-le"), r"'a\.txt' has NUL characters, as files that are no text"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            await service.read(content, "a.txt", "text")
    monkeypatch.setattr(documents, "MAX_FILE_BYTES", 3)
    for content, message in [
        (b"", r"'a\.txt' is empty"),
        (b"four", r"'a\.txt' has 4 bytes; at most 3 are read: divide it"),
        (b"\xff", r"'a\.txt' is no text in UTF-8 \(invalid start byte at byte 0\)"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            await service.read(content, "a.txt", "text")
    with pytest.raises(InvalidArgument, match=r"'a\.docx' is of no known kind"):
        kind_of("a.docx")


async def test_documents_of_a_program_are_read_one_after_the_other() -> None:
    begun: list[str] = []
    go_on = asyncio.Event()

    async def read_file(name: str, kind: str, file: bytes) -> str:
        begun.append(name)
        await go_on.wait()
        return name

    one, other = DocumentService(read_file), DocumentService(read_file)
    reading = [
        asyncio.create_task(service.read(b"%PDF", name, "pdf"))
        for service, name in [(one, "a"), (one, "b"), (other, "c")]
    ]
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun == ["a", "c"]
    go_on.set()
    assert await asyncio.gather(*reading) == ["a", "b", "c"]
