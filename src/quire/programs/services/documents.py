"""One program's access to the node's readers of documents.

Owns the kinds of documents, the suffixes of their names, and the bounds of one file. Text is read
here; for other kinds the node has processes with limits (``ReadFile``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Protocol, get_args

from quire.core.errors import InvalidArgument
from quire.programs.services.operations import ProgramService, operation

DocumentKind = Literal["text", "html", "pdf"]
KINDS: tuple[DocumentKind, ...] = get_args(DocumentKind)
MAX_FILE_BYTES = 32 << 20
_PDF_START = b"%PDF-"
SUFFIXES: Mapping[str, DocumentKind] = MappingProxyType(
    {
        ".txt": "text", ".md": "text", ".markdown": "text",
        ".html": "html", ".htm": "html", ".xhtml": "html", ".pdf": "pdf",
    }
)  # fmt: skip


class ReadFile(Protocol):
    """The node's processes that read documents."""

    async def __call__(self, name: str, kind: str, file: bytes) -> str: ...


def kind_of(name: str) -> DocumentKind:
    """The kind of a document by the suffix of its name; without one it is text.

    Raises:
        InvalidArgument: the suffix is not known.
    """
    end = name.lower().rfind(".")
    suffix = name[end:].lower() if end > 0 else ".txt"
    if suffix not in SUFFIXES:
        raise InvalidArgument(
            f"the document {name!r} is of no known kind: give names that end in "
            f"{', '.join(SUFFIXES)}, or convert it to text",
            param="documents",
        )
    return SUFFIXES[suffix]


class DocumentService(ProgramService):
    """Reads a program's documents one after the other, so that programs take turns."""

    def __init__(self, read_file: ReadFile) -> None:
        self._read_file = read_file
        self._turn = asyncio.Lock()

    @operation("documents.read")
    async def read(self, content: bytes, name: str, kind: DocumentKind) -> str:
        if not content:
            raise InvalidArgument(
                f"the document {name!r} is empty: leave it out", param="documents"
            )
        if len(content) > MAX_FILE_BYTES:
            raise InvalidArgument(
                f"the document {name!r} has {len(content)} bytes; at most {MAX_FILE_BYTES} are "
                "read: divide it",
                param="documents",
            )
        if kind == "text":
            return decoded(name, content)
        async with self._turn:
            return await self._read_file(name, kind, content)


def decoded(name: str, content: bytes) -> str:
    """The text of a file in UTF-8.

    Raises:
        InvalidArgument: it is in another encoding, or a PDF.
    """
    if content.startswith(_PDF_START):
        raise InvalidArgument(
            f"the document {name!r} is a PDF, and read as text it would be nonsense: give it a "
            "name that ends in .pdf, or its kind",
            param="documents",
        )
    if b"\0" in content:
        raise InvalidArgument(
            f"the document {name!r} has NUL characters, as files that are no text in UTF-8 have: "
            "convert it, or give its kind by its name",
            param="documents",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidArgument(
            f"the document {name!r} is no text in UTF-8 ({exc.reason} at byte {exc.start}): "
            "convert it, or give its kind by its name",
            param="documents",
        ) from exc
