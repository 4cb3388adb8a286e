"""The documents of a query, and their texts.

Owns the bounds of a query's documents. Files of other kinds than text are read by the node before a
graph is built, because the graph's size depends on their texts.
"""

from __future__ import annotations

import base64
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from quire.core.errors import InvalidArgument
from quire.programs.services.documents import KINDS, MAX_FILE_BYTES, DocumentKind, kind_of

MAX_DOCUMENTS = 1024
MAX_CHARS = 16 << 20
"""The most characters of the texts of all documents of a query."""
MAX_BASE64_CHARS = 64 << 20
"""The most characters of all documents of a query that come as base64."""

Document = Mapping[str, str]


class ReadDocument(Protocol):
    """``Api.read_document``, or its replacement where there is no node."""

    async def __call__(self, content: bytes, *, name: str, kind: DocumentKind) -> str: ...


_FORM = '{"name": text, "text": text} or {"name": text, "base64": text}'


def checked_documents(given: Any) -> list[dict[str, str]]:
    """``given`` as a list of ``{"name": ..., "text": ...}`` with plain texts, within the bounds.

    Raises:
        InvalidArgument: another form, too many, empty, too large, or a document that must be read
            first.
    """
    checked = checked_files(given)
    for one in checked:
        if not is_text(one):
            raise _refused(
                f"has {one['name']!r}, whose text is not read yet: use run_query or "
                "workflow(app), which read it, or api.read_document"
            )
    return checked


def checked_files(given: Any) -> list[dict[str, str]]:
    """Documents of any kind, each as text or base64, within the bounds. Raises as
    ``checked_documents``."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise _refused(f"is {type(given).__name__}: give a list of documents")
    if not 1 <= len(given) <= MAX_DOCUMENTS:
        raise _refused(f"has {len(given)} documents: give 1 to {MAX_DOCUMENTS}")
    for place, one in enumerate(given):
        _check(place, one)
    for field, most in (("text", MAX_CHARS), ("base64", MAX_BASE64_CHARS)):
        num_chars = sum(len(one.get(field, "")) for one in given)
        if num_chars > most:
            raise _refused(f"has {num_chars} characters; at most {most} are allowed: give fewer")
    return [dict(one) for one in given]


def is_text(document: Document) -> bool:
    """Whether the document is a text, which needs no reading."""
    return "text" in document and _kind(document) == "text"


async def texts_read(read_document: ReadDocument, given: Any) -> list[dict[str, str]]:
    """The documents as plain texts; files of other kinds are read.

    Raises:
        InvalidArgument: as ``checked_documents``, or a document that cannot be read.
        ConfigError: the node lacks the extra that reads a kind.
    """
    read: list[dict[str, str]] = []
    for one in checked_files(given):
        if is_text(one):
            read.append(one)
            continue
        content = _content(one)
        text = await read_document(content, name=one["name"], kind=_kind(one))
        read.append({"name": one["name"], "text": text, "kind": "text"})
    return checked_documents(read)


def _content(document: Document) -> bytes:
    if "text" in document:
        return document["text"].encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(document["base64"], validate=True)
    except ValueError as exc:
        raise _refused(f"has {document['name']!r}, whose base64 is damaged ({exc})") from exc


def _kind(document: Document) -> DocumentKind:
    given = next((kind for kind in KINDS if kind == document.get("kind")), None)
    return given or kind_of(document["name"])


def _check(place: int, one: Any) -> None:
    fields: set[str] = set(one.keys()) if isinstance(one, Mapping) else set()
    forms = ({"name", "text"}, {"name", "base64"})
    if fields - {"kind"} not in forms or not all(isinstance(one[f], str) for f in fields):
        raise _refused(
            f"[{place}] is {reprlib.repr(one)}: give {_FORM}, if you like with 'kind'; no address "
            "is fetched, so send the content of the document"
        )
    if one.get("kind", "text") not in KINDS:
        raise _refused(f"[{place}] is of kind {one['kind']!r}: give one of {', '.join(KINDS)}")
    if not (one.get("text") or one.get("base64", "")).strip():
        raise _refused(f"[{place}] ({one['name']!r}) is empty: leave it out")
    if len(one.get("base64", "")) > MAX_FILE_BYTES * 4 // 3 + 4:
        raise _refused(
            f"[{place}] ({one['name']!r}) has more than {MAX_FILE_BYTES} bytes: divide it"
        )
    if _kind(one) == "pdf" and "text" in one:
        raise _refused(f"[{place}] ({one['name']!r}) is a PDF given as text: give it as 'base64'")


def _refused(text: str) -> InvalidArgument:
    return InvalidArgument(f"documents {text}", param="documents")
