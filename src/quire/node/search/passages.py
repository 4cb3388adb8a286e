"""Cuts the text of a file into passages: what a search returns. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quire.programs.search.engine import MAX_TEXT_CHARS, MAX_TITLE_CHARS
from quire.programs.workflow.chunker import chunks

PASSAGE_TOKENS = 32
"""Words and marks of a passage, about as many as in a search result on the web."""
OVERLAP_TOKENS = 8
"""Tokens that two pieces share of a line that is longer than a passage."""

_TOKEN = re.compile(r"\w+|[^\w\s]")
_HEADING = re.compile(r"#{1,6}\s+(.+)")


def passages(text: str) -> Iterator[str]:
    """The passages of ``text``: whole lines of at most ``PASSAGE_TOKENS`` together; a longer line
    is cut. A passage has at most ``MAX_TEXT_CHARS``."""
    lines: list[str] = []
    num_tokens = 0
    for line in text.splitlines():
        length = sum(1 for _ in _TOKEN.finditer(line))
        if lines and num_tokens + length > PASSAGE_TOKENS:
            yield from _bounded("\n".join(lines))
            lines, num_tokens = [], 0
        if length > PASSAGE_TOKENS:
            for piece in chunks(line, PASSAGE_TOKENS, OVERLAP_TOKENS):
                yield from _bounded(piece)
        elif length:
            lines.append(line.strip())
            num_tokens += length
    if lines:
        yield from _bounded("\n".join(lines))


def title_of(name: str, text: str) -> str:
    """The first heading of a Markdown text, or the file's name without its end."""
    for line in text.splitlines()[:64]:
        found = _HEADING.match(line)
        if found:
            return found[1].strip()[:MAX_TITLE_CHARS]
    stem, _, end = name.rpartition(".")
    return (stem or end)[:MAX_TITLE_CHARS]


def _bounded(passage: str) -> Iterator[str]:
    """Cut a passage that has too many characters, as one long word may."""
    for start in range(0, len(passage), MAX_TEXT_CHARS):
        yield passage[start : start + MAX_TEXT_CHARS]
