"""The wire codec: exact round trips, and every hostile frame becomes a ``ProtocolMismatch``."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from quire.core.actions import Action, Deliver, Fail
from quire.core.batch import (
    AdvanceRows,
    Batch,
    CloseReceives,
    CloseSequences,
    CopySlots,
    DropTables,
    EmbedRows,
    ExtendSequence,
    OpenReceive,
    OpenSequence,
    RepositionSlots,
    SendSlots,
    SwapIn,
    WriteEntries,
    WriteTable,
)
from quire.core.batch_result import BatchResult
from quire.core.calls import Issue
from quire.core.commands import AllocPages, Decode
from quire.core.decoding import DecodeChunk, Processor, SamplerSpec, StopSpec
from quire.core.errors import ErrorRecord, ProtocolMismatch
from quire.core.events import BatchCompleted, Called, Event
from quire.core.exchange import SendTarget
from quire.core.wire import PROTOCOL_VERSION, Codec

quick = settings(max_examples=60, deadline=None, database=None)
small = st.integers(0, 2**31 - 1)


def i32(max_size: int = 5) -> st.SearchStrategy[Any]:
    return hnp.arrays(np.int32, st.integers(0, max_size))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b))
    if isinstance(a, msgspec.Struct):
        return type(a) is type(b) and all(
            same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


operations = st.one_of(
    st.builds(
        WriteTable,
        table=small,
        start=small,
        blocks=i32(),
        visible=hnp.arrays(np.uint64, st.integers(0, 4)),
    ),
    st.builds(
        WriteEntries,
        tables=i32(),
        entries=i32(),
        blocks=i32(),
        visible=hnp.arrays(np.uint64, st.integers(0, 4)),
    ),
    st.builds(CopySlots, source=i32(), target=i32()),
    st.builds(RepositionSlots, slots=i32(), positions=i32()),
    st.builds(OpenReceive, lease=small, key=st.binary(max_size=16), slots=i32()),
    st.builds(CloseReceives, leases=st.lists(small, max_size=3)),
    st.builds(
        SendSlots,
        send=small,
        slots=i32(),
        target=st.builds(
            SendTarget, address=st.text(), lease=small, key=st.binary(max_size=16), first=small
        ),
    ),
    st.builds(SwapIn, transfers=i32(), host_blocks=i32(), blocks=i32()),
    st.builds(DropTables, tables=st.lists(small, max_size=3)),
    st.builds(CloseSequences, sequences=st.lists(small, max_size=3)),
    st.builds(ExtendSequence, sequence=small, limit=small),
    st.builds(
        OpenSequence,
        sequence=small,
        epoch=small,
        table=small,
        cursor=small,
        limit=small,
        position=small,
        sampler=st.just(
            SamplerSpec((Processor("temperature", {"temperature": 0.5}),), greedy=False, seed=7)
        ),
        stop=st.builds(StopSpec, max_tokens=small, strings=st.tuples(st.binary(max_size=4))),
        history=i32(),
    ),
)
messages = st.builds(
    Batch,
    serial=small,
    num_steps=st.integers(1, 9),
    operations=st.lists(operations, max_size=4),
    embeds=st.none() | st.builds(EmbedRows, tokens=i32(), embeds=i32()),
    advance=st.none() | st.builds(AdvanceRows, sequences=i32(), epochs=i32(), max_steps=i32()),
)


@quick
@given(batch=messages)
def test_a_batch_comes_back_as_it_went(batch: Batch) -> None:
    codec: Codec[Batch] = Codec(Batch)
    frames = [bytes(frame) for frame in codec.encode(batch)]
    back = codec.decode(frames)
    assert same(back, batch)
    assert [bytes(frame) for frame in codec.encode(back)] == frames


def test_events_and_actions_are_tagged_unions() -> None:
    events: Codec[Event] = Codec(Event)
    issued = Called(
        time_s=1.5,
        program=1,
        call=Issue(
            2,
            [
                AllocPages(id=1, pages=[1]),
                Decode(
                    id=2,
                    context=[1],
                    output=[1],
                    tokens=[3],
                    position=0,
                    sampler=SamplerSpec(),
                    stop=StopSpec(4),
                ),
            ],
        ),
    )
    step = BatchCompleted(time_s=2.0, engine="e", result=BatchResult(serial=3, elapsed_s=0.25))
    for event in (issued, step):
        assert same(events.decode(events.encode(event)), event)
    actions: Codec[Action] = Codec(Action)
    chunk = DecodeChunk([1, 2], finish_reason="stop", matched=b"\n")
    for action in (
        Deliver(program=1, command=2, reply=chunk),
        Deliver(program=1, command=2),
        Fail(program=1, command=2, error=ErrorRecord("x", "y", True, {"num_free": 3})),
    ):
        assert actions.decode(actions.encode(action)) == action


def test_empty_arrays_of_a_result_are_not_sent() -> None:
    codec: Codec[BatchResult] = Codec(BatchResult)
    bare = BatchResult(serial=3, elapsed_s=0.25)
    assert len(codec.encode(bare)) == 1
    assert same(codec.decode(codec.encode(bare)), bare)
    sampled = BatchResult(serial=3, elapsed_s=0.25, samples=np.arange(2, dtype=np.int32))
    assert len(codec.encode(sampled)) == 2
    assert same(codec.decode(codec.encode(sampled)), sampled)


@pytest.mark.parametrize("length", [4, 1 << 16])
def test_arrays_are_sent_in_their_own_order(length: int) -> None:
    """Arrays of any memory layout, small and large."""
    codec: Codec[EmbedRows] = Codec(EmbedRows)
    tokens, embeds = np.arange(2 * length, dtype=np.int32).reshape(length, 2).T
    back = codec.decode(codec.encode(EmbedRows(tokens=tokens[::-1], embeds=embeds)))
    np.testing.assert_array_equal(back.tokens, tokens[::-1])
    np.testing.assert_array_equal(back.embeds, embeds)


def test_decoded_arrays_cannot_be_written() -> None:
    codec: Codec[EmbedRows] = Codec(EmbedRows)
    rows = codec.decode(
        codec.encode(EmbedRows(tokens=np.arange(3, dtype=np.int32), embeds=np.arange(3)))
    )
    with pytest.raises(ValueError, match="read-only"):
        rows.tokens[0] = 9


def frames_of(batch: Batch) -> list[bytes]:
    return [bytes(frame) for frame in Codec[Batch](Batch).encode(batch)]


GOOD = frames_of(
    Batch(
        serial=1,
        embeds=EmbedRows(tokens=np.arange(4, dtype=np.int32), embeds=np.arange(4, dtype=np.int32)),
    )
)


def header(replace: Any) -> bytes:
    """The good header with its first array reference replaced."""
    version, batch = msgspec.msgpack.decode(GOOD[0])
    batch["embeds"]["tokens"] = replace
    return msgspec.msgpack.encode((version, batch))


HOSTILE = {
    "nothing": [],
    "an empty header": [b""],
    "another version": [msgspec.msgpack.encode((PROTOCOL_VERSION + 1, {})), *GOOD[1:]],
    "no version": [msgspec.msgpack.encode({"step": 1})],
    "another message": [msgspec.msgpack.encode((PROTOCOL_VERSION, {"type": "Nonsense"}))],
    "a missing field": [msgspec.msgpack.encode((PROTOCOL_VERSION, {"type": "Batch"}))],
    "a truncated header": [GOOD[0][:-3], *GOOD[1:]],
    "a missing frame": GOOD[:-1],
    "a truncated frame": [GOOD[0], GOOD[1][:-1], GOOD[2]],
    "frame 0": [header(["int32", [4], 0]), *GOOD[1:]],
    "frame -1": [header(["int32", [4], -1]), *GOOD[1:]],
    "frame 9": [header(["int32", [4], 9]), *GOOD[1:]],
    "a frame that is no number": [header(["int32", [4], "1"]), *GOOD[1:]],
    "an unknown dtype": [header(["object", [4], 1]), *GOOD[1:]],
    "a dtype of another size": [header(["int64", [4], 1]), *GOOD[1:]],
    "another shape": [header(["int32", [5], 1]), *GOOD[1:]],
    "a negative shape": [header(["int32", [-2, -2], 1]), *GOOD[1:]],
    "a shape that is no list": [header(["int32", 4, 1]), *GOOD[1:]],
    "a huge shape": [header(["int32", [2**62, 4], 1]), *GOOD[1:]],
    "an array that is no reference": [header(5), *GOOD[1:]],
    "brackets without end": [header(msgspec.Raw(b"\x91" * 100_000 + b"\x01")), *GOOD[1:]],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_frames_are_refused(name: str) -> None:
    with pytest.raises(ProtocolMismatch):
        Codec[Batch](Batch).decode(HOSTILE[name])


def test_the_refusal_of_another_version_says_which() -> None:
    frames = [msgspec.msgpack.encode((PROTOCOL_VERSION + 6, {}))]
    with pytest.raises(ProtocolMismatch, match=f"version {PROTOCOL_VERSION + 6}.*same release"):
        Codec[Batch](Batch).decode(frames)


@quick
@given(noise=st.lists(st.binary(max_size=40), max_size=4))
def test_noise_never_raises_anything_else(noise: list[bytes]) -> None:
    with pytest.raises(ProtocolMismatch):
        Codec[Batch](Batch).decode(noise)


@quick
@given(frame=st.integers(0, 2), at=st.integers(0, 500), value=st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_harmless(frame: int, at: int, value: int) -> None:
    frames = [bytearray(part) for part in GOOD]
    frames[frame][at % len(frames[frame])] = value
    try:
        batch = Codec[Batch](Batch).decode([bytes(part) for part in frames])
    except ProtocolMismatch:
        return
    assert isinstance(batch, Batch)


def test_a_message_that_cannot_be_encoded_is_a_bug_of_the_sender() -> None:
    with pytest.raises(TypeError, match="cannot send"):
        Codec[Any](Any).encode(object())
