"""What is sent as a few bytes stays within bounds of bytes and time when it is inflated."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from functools import cache
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import InvalidArgument, ProgramError
from quire.programs.services.content_coding import PIECE_BYTES, ContentDecoder
from quire.programs.services.network import HttpStream, Network, NetworkPolicy

TEXT = b"".join(b"%d quires make a ream, %d sheets\n" % (i * i, i % 7) for i in range(9000))
MIB = 1 << 20


def raw_deflate(content: bytes) -> bytes:
    return zlib.compress(content)[2:-4]


def twice(content: bytes) -> bytes:
    return gzip.compress(gzip.compress(content))


def in_members(content: bytes) -> bytes:
    return gzip.compress(content[:1000]) + gzip.compress(b"") + gzip.compress(content[1000:])


def decoded(coding: str, parts: Iterable[bytes]) -> bytes:
    decoder = ContentDecoder("GET url", coding)
    found = b"".join(piece for part in parts for piece in decoder.feed(part))
    decoder.end()
    return found


@cache
def encoded(encode: Callable[[bytes], bytes], content: bytes) -> bytes:
    """Once for all examples: compressing takes far longer than what is tested."""
    return encode(content)


CODINGS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("", bytes),
    ("identity", bytes),
    ("gzip", gzip.compress),
    ("X-GZip", gzip.compress),
    ("gzip", in_members),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("gzip, gzip", twice),
    ("deflate, identity, gzip", lambda content: gzip.compress(zlib.compress(content))),
]


@pytest.mark.parametrize(("coding", "encode"), CODINGS)
@given(cuts=st.lists(st.integers(0, 1 << 16), max_size=6))
def test_what_was_encoded_comes_back_however_its_bytes_come(
    coding: str, encode: Callable[[bytes], bytes], cuts: list[int]
) -> None:
    sent = encoded(encode, TEXT)
    bounds = [0, *sorted(cut % (len(sent) + 1) for cut in cuts), len(sent)]
    parts = [sent[a:b] for a, b in pairwise(bounds)]
    assert decoded(coding, parts) == TEXT
    assert decoded(coding, [b"%c" % byte for byte in encoded(encode, TEXT[:99])]) == TEXT[:99]


@pytest.mark.parametrize("coding", ["br", "gzip, zstd", "utf-8"])
def test_a_coding_that_is_not_read_is_refused_by_name(coding: str) -> None:
    with pytest.raises(ProgramError, match=f"content-encoding '{coding.split(', ')[-1]}'"):
        ContentDecoder("GET url", coding)


@pytest.mark.parametrize(
    ("coding", "sent"),
    [
        ("gzip", gzip.compress(TEXT)[:-3]),
        ("gzip", b"no gzip at all"),
        ("gzip", gzip.compress(TEXT) + b"rest"),
        ("deflate", zlib.compress(TEXT)[:50]),
        ("deflate", zlib.compress(TEXT) + b"rest"),
        ("deflate", b"\x78"),
        ("gzip, gzip", gzip.compress(gzip.compress(TEXT)[:-3])),
    ],
)
def test_what_is_damaged_or_cut_off_is_no_answer(coding: str, sent: bytes) -> None:
    with pytest.raises(ProgramError, match="content-encoding"):
        decoded(coding, [sent])


def test_no_answer_at_all_is_whole() -> None:
    assert decoded("gzip", []) == b""  # to HEAD, say
    assert len(raw_deflate(b"")) == 2
    assert decoded("deflate", [raw_deflate(b"")]) == b""


def test_a_piece_is_small_whatever_it_is_made_of() -> None:
    bomb = gzip.compress(bytes(64 * MIB))
    decoder = ContentDecoder("GET url", "gzip")
    sizes = []
    with pytest.raises(ProgramError, match="256 times"):
        sizes.extend(len(piece) for piece in decoder.feed(bomb))
    assert max(sizes) == PIECE_BYTES


def test_layers_are_counted() -> None:
    with pytest.raises(ProgramError, match="3 nested content-encodings"):
        ContentDecoder("GET url", "gzip, gzip, gzip")


def test_bytes_that_become_nothing_end() -> None:
    decoder = ContentDecoder("GET url", "gzip")
    named = b"\x1f\x8b\x08\x08" + bytes([1]) * MIB  # a file's name that does not end
    assert list(decoder.feed(named[:MIB])) == []
    with pytest.raises(ProgramError, match="decode to 0"):
        list(decoder.feed(named[4:]))


class Sent(httpx.AsyncByteStream):
    """What a server sends, without pausing."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


def answers(parts: Iterable[bytes], coding: str, policy: NetworkPolicy) -> Network:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Sent(parts), headers={"content-encoding": coding})

    return Network(httpx.AsyncClient(transport=httpx.MockTransport(handler)), policy)


async def read_whole(stream: HttpStream) -> None:
    while await stream.read() is not None:
        pass


@pytest.mark.parametrize(
    ("coding", "bomb"),
    [
        ("gzip", gzip.compress(bytes(64 * MIB))),
        ("deflate", zlib.compress(bytes(64 * MIB))),
        ("gzip, gzip", gzip.compress(gzip.compress(bytes(64 * MIB)))),
    ],
)
async def test_an_answer_that_inflates_takes_no_more_than_its_limit(
    coding: str, bomb: bytes
) -> None:
    network = answers([bomb], coding, NetworkPolicy(max_body_bytes=MIB))
    tracemalloc.start()
    try:
        with pytest.raises((InvalidArgument, ProgramError), match=r"larger than|256 times"):
            await network.request("GET", "http://host/")
        stream = await network.open("GET", "http://host/")
        with pytest.raises(ProgramError, match="256 times"):
            await read_whole(stream)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


async def test_the_time_limit_holds_while_inflating() -> None:
    """However fast the bytes come: the loop turns between two pieces."""
    member = gzip.compress(TEXT)
    policy = NetworkPolicy(timeout_s=0.001, max_body_bytes=1 << 40)
    network = answers([member] * 2000, "gzip", policy)
    with pytest.raises(ProgramError, match=r"no response within 0\.001 s"):
        await network.request("GET", "http://host/")
