"""What one pass of a loop asks for goes out together, in order."""

from __future__ import annotations

import asyncio

from quire.node.control.gathering import Gathering


async def test_one_pass_is_handed_over_once() -> None:
    got: list[list[int]] = []
    gathering = Gathering(got.append)

    async def ask(number: int) -> None:
        gathering.add(number)

    await asyncio.gather(*(ask(number) for number in range(3)))
    await asyncio.sleep(0)
    assert got == [[0, 1, 2]]
    gathering.add(3)
    await asyncio.sleep(0)
    assert got == [[0, 1, 2], [3]]


async def test_hurry_hands_over_at_once_and_once() -> None:
    got: list[list[int]] = []
    gathering = Gathering(got.append)
    gathering.hurry()
    gathering.add(1)
    gathering.hurry()
    assert got == [[1]]
    await asyncio.sleep(0)
    assert got == [[1]]


def test_outside_a_loop_nothing_is_held_back() -> None:
    got: list[list[int]] = []
    gathering = Gathering(got.append)
    gathering.add(1)
    gathering.hurry()
    assert got == [[1]]
