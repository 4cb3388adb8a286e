"""The checks of places fail where they should: each break is one that the idle loop must find."""

import pytest

from quire.control.memory.blocks import NumberPool
from quire.control.memory.content import Content
from quire.control.memory.place_invariants import check_places
from quire.core.ids import BlockId


def resting(*blocks: int) -> list[Content]:
    contents = []
    for block in blocks:
        content = Content(None, canonical=True)
        content.block = BlockId(block)
        contents.append(content)
    return contents


def pool(num_taken: int) -> NumberPool:
    made = NumberPool(4)
    for _ in range(num_taken):
        made.take()
    return made


def test_contents_in_blocks_of_their_own_are_in_order() -> None:
    check_places(resting(0, 1), [], pool(2), [])


def test_two_contents_in_one_block_are_found() -> None:
    with pytest.raises(AssertionError, match="two contents share a"):
        check_places(resting(0, 0), [], pool(1), [])


def test_a_content_in_a_free_block_is_found() -> None:
    with pytest.raises(AssertionError, match="block is free"):
        check_places(resting(0, 1), [], pool(1), [])


def test_a_content_in_two_places_is_found() -> None:
    (content,) = resting(0)
    content.host_block = 0  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="in two places"):
        check_places([content], [], pool(1), [])
