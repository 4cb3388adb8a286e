"""The frames that a program has not taken at one node go to the next one, in order."""

from __future__ import annotations

import asyncio

import pytest

from quire.cluster.passing.sent_frames import SentFrames
from quire.core.errors import EngineLost
from quire.server.programs.attachments import frames_taken


async def through(frames: SentFrames, *given: str) -> None:
    for frame in given:
        await frames.put(frame)
        assert await frames.next() == frame


async def test_what_was_not_taken_is_sent_again_before_what_is_new() -> None:
    frames = SentFrames()
    await through(frames, "one", "two", "three")
    frames.go_on(1)
    later = asyncio.create_task(frames.put("four"))
    assert [await frames.next() for _ in range(3)] == ["two", "three", "four"]
    await later
    frames.go_on(3)
    await through(frames, "five")
    frames.go_on(0)
    assert await frames.next() == "five"


async def test_one_frame_waits_and_its_successor_is_held_back() -> None:
    frames = SentFrames()
    await frames.put("one")
    later = asyncio.create_task(frames.put("two"))
    await asyncio.sleep(0)
    assert not later.done()
    frames.go_on(0)
    assert await frames.next() == "one"
    await later


async def test_what_is_kept_is_bounded_and_a_gap_is_said() -> None:
    frames = SentFrames(max_kept=8)
    await through(frames, "aaaa", "bbbb", "cccc")
    with pytest.raises(EngineLost, match="took 0 frames: attach again"):
        frames.go_on(0)
    frames.go_on(1)
    assert [await frames.next() for _ in range(2)] == ["bbbb", "cccc"]
    await through(frames, "a frame above the bound")
    frames.go_on(2)
    assert await frames.next() == "a frame above the bound"


async def test_a_node_cannot_have_taken_more_than_was_sent() -> None:
    frames = SentFrames()
    await through(frames, "one")
    with pytest.raises(EngineLost, match="took 2 frames"):
        frames.go_on(2)


def test_a_node_that_does_not_say_what_it_took_is_not_believed() -> None:
    assert frames_taken("the program has moved; frames taken here: 12") == 12
    with pytest.raises(EngineLost, match="does not say"):
        frames_taken("going away")
