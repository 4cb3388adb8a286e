"""Makes the texts of the paced queries as token ids: how long each is, and which texts begin alike.

Lengths of the paper: an instruction has about 60 tokens, a chunk 256 with an overlap of 30, found
entities are four. Assumed: a question and each expanded query have 16 tokens (an expanded one is
written with 4 of JSON), an entity has 64. ``ANSWER_TOKENS`` was chosen so that one query of
advanced RAG takes 4.1 s under LlamaDist (Fig. 3), and is frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from zlib import crc32

from quire.programs.workflow.graphs.prompts import PromptPart

CHARS_PER_TOKEN = 4
QUESTION_TOKENS = 16
QUERY_TOKENS = 20
CHUNK_TOKENS, OVERLAP_TOKENS = 256, 30
NEIGHBOURS = 4
SITUATE_TOKENS = 32
"""What a light model writes about a chunk."""
VERDICT_TOKENS = 2
"""Of the judge."""
ANSWER_TOKENS = 8
LENGTHS: Mapping[str, int] = MappingProxyType(
    {
        "question": QUESTION_TOKENS,
        "answer": ANSWER_TOKENS,
        "answers": ANSWER_TOKENS,
        "draft": ANSWER_TOKENS,
        "context": CHUNK_TOKENS,
        "chunks": CHUNK_TOKENS,
        "around": CHUNK_TOKENS + NEIGHBOURS * (CHUNK_TOKENS - OVERLAP_TOKENS),
        "found": 4 * 64,
    }
)
"""Of the values of parts of prompts, by the part's name before its place in a list."""
_VOCABULARY = 32_000


def length_of(part: PromptPart) -> int:
    if part.name is None:
        return -(-len(part.text) // CHARS_PER_TOKEN)
    return LENGTHS[part.name.partition(".")[0]]


def tokens_of(part: PromptPart, value: str) -> list[int]:
    """Return the tokens of a text. ``value`` says whose text a named part is: two that are equal
    have equal tokens."""
    first = crc32((part.text if part.name is None else value).encode())
    return [(first + 7919 * place) % _VOCABULARY for place in range(length_of(part))]
