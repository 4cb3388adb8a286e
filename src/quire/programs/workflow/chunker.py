"""Cuts texts into overlapping chunks of tokens.

A token is a word or a mark, found without any model, so that the number of chunks is known before
an engine is called. A chunk is an exact piece of its text. Its length is bounded too: every
``MAX_TOKEN_CHARS`` characters of a longer word, or of white space, count as a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from quire.core.errors import InvalidArgument

MAX_TOKEN_CHARS = 64
"""The length of the longest common word, a SHA-256 digest in hexadecimal."""
_TOKEN = re.compile(rf"\w{{1,{MAX_TOKEN_CHARS}}}|[^\w\s]|\s{{{MAX_TOKEN_CHARS}}}")
MAX_CHUNKS = 65_536


def chunks(text: str, size: int, overlap: int) -> Iterator[str]:
    """The chunks of ``text``: ``size`` tokens each, ``overlap`` of them shared with the chunk
    before; the last may be shorter. A text without tokens has no chunk."""
    starts = [match.span() for match in _TOKEN.finditer(text)]
    for first in _firsts(len(starts), size, overlap):
        last = min(first + size, len(starts)) - 1
        yield text[starts[first][0] : starts[last][1]]


def with_surroundings(
    text: str, size: int, overlap: int, neighbours: int
) -> Iterator[tuple[str, str]]:
    """Each of the ``chunks`` with the piece of ``text`` from the first to the last of the
    ``neighbours + 1`` chunks around it: as many before it as after it, as far as the text allows.
    If the text has fewer chunks, the piece is the whole text."""
    places = [match.span() for match in _TOKEN.finditer(text)]
    firsts = _firsts(len(places), size, overlap)
    lasts = [min(first + size, len(places)) - 1 for first in firsts]
    for number, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
        begin = max(0, min(number - neighbours // 2, len(firsts) - 1 - neighbours))
        end = min(begin + neighbours, len(firsts) - 1)
        around = text[places[firsts[begin]][0] : places[lasts[end]][1]]
        yield text[places[first][0] : places[last][1]], around


def num_chunks(text: str, size: int, overlap: int) -> int:
    """The number of ``chunks``.

    Raises:
        InvalidArgument: more than ``MAX_CHUNKS``.
    """
    num_tokens = sum(1 for _ in _TOKEN.finditer(text))
    num = len(_firsts(num_tokens, size, overlap))
    if num > MAX_CHUNKS:
        raise InvalidArgument(
            f"a document of {num_tokens} tokens has {num} chunks; at most {MAX_CHUNKS} are "
            "allowed: raise chunk_size or divide the document",
            param="documents",
        )
    return num


def _firsts(num_tokens: int, size: int, overlap: int) -> range:
    """The first token of each chunk; a chunk that would only repeat the overlap is left out."""
    step = size - overlap
    return range(0, max(num_tokens - overlap, min(num_tokens, 1)), step)
