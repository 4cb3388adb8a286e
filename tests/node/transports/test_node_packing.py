"""Messages as one frame: what goes in comes out, and what is damaged is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import ProtocolMismatch
from quire.node.transports.packing import pack, unpack


@given(st.lists(st.binary(max_size=40), max_size=12))
def test_frames_come_back(frames: list[bytes]) -> None:
    assert unpack(pack(frames)) == frames


def test_memory_is_packed_as_its_bytes() -> None:
    assert unpack(pack([b"a", memoryview(b"bcd")])) == [b"a", b"bcd"]


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=4), st.data())
def test_a_message_that_was_cut_is_refused(frames: list[bytes], data: st.DataObject) -> None:
    packed = pack(frames)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(ProtocolMismatch):
        unpack(packed[:cut])


@pytest.mark.parametrize("packed", [b"", b"junk", b"\xff" * 8, b"\xff" * 64, pack([b"x"]) + b"y"])
def test_what_was_not_packed_is_refused(packed: bytes) -> None:
    with pytest.raises(ProtocolMismatch):
        unpack(packed)
