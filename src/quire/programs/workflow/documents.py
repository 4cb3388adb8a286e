"""Documents as a query brings them, and their texts.

Owns the bounds of what a query may bring, and which kinds of documents this release reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.core.errors import InvalidArgument

MAX_DOCUMENTS = 1024
MAX_CHARS = 16 << 20
"""Characters of all documents of a query."""
_TEXT_SUFFIXES = (".txt", ".md", ".markdown")
_NOT_YET = (".html", ".htm", ".pdf")


def checked_documents(given: Any) -> list[dict[str, str]]:
    """``[{"name": ..., "text": ...}]`` within the bounds.

    Raises:
        InvalidArgument: another form, too many, empty, too large, or of a kind that this release
            cannot read.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise _refused(f"is {type(given).__name__}: give a list of documents")
    if not 1 <= len(given) <= MAX_DOCUMENTS:
        raise _refused(f"has {len(given)} documents: give 1 to {MAX_DOCUMENTS}")
    num_chars = 0
    for place, one in enumerate(given):
        _check(place, one)
        num_chars += len(one["text"])
    if num_chars > MAX_CHARS:
        raise _refused(f"has {num_chars} characters; at most {MAX_CHARS} are allowed: give fewer")
    return [{"name": one["name"], "text": one["text"]} for one in given]


def parsed(document: Mapping[str, str]) -> dict[str, str]:
    """The document as plain text. Text and Markdown are used as they are.

    Raises:
        InvalidArgument: another kind of document.
    """
    name = document["name"]
    if name.lower().endswith(_NOT_YET):
        raise _refused(
            f"has {name!r}, and this release reads text and Markdown alone: convert it first"
        )
    if "." in name and not name.lower().endswith(_TEXT_SUFFIXES):
        raise _refused(f"has {name!r}: give names that end in {', '.join(_TEXT_SUFFIXES)}")
    return dict(document)


def _check(place: int, one: Any) -> None:
    fields = one.keys() if isinstance(one, Mapping) else set[str]()
    if set(fields) != {"name", "text"} or not all(isinstance(one[f], str) for f in fields):
        raise _refused(f'[{place}] must be {{"name": text, "text": text}}')
    if not one["text"].strip():
        raise _refused(f"[{place}] ({one['name']!r}) is empty: leave it out")
    parsed(one)


def _refused(text: str) -> InvalidArgument:
    return InvalidArgument(f"documents {text}", param="documents")
