"""What a holder knows of the slots of a page."""

from __future__ import annotations

import pytest

from quire.control.memory.content import Content
from quire.control.memory.pages import Page
from quire.core.ids import EngineId, PageId, QueueId


@pytest.mark.parametrize(
    ("mask", "is_canonical"), [(-1, True), (0b0011, True), (0b1110, False), (0b0001, False)]
)
def test_a_page_that_hides_no_written_slot_is_a_prefix(mask: int, is_canonical: bool) -> None:
    page = Page(PageId(0), EngineId("engine"), QueueId(0))
    page.content = Content(None, canonical=True)
    page.content.tokens = [1, 2]
    page.write(range(2))
    page.mask = mask
    assert page.is_canonical == page.is_plain == is_canonical


def test_positions_are_those_of_the_slots_however_they_were_written() -> None:
    page = Page(PageId(0), EngineId("engine"), QueueId(0))
    page.write(range(8, 12))
    page.truncate(3)
    page.write_next(20)
    page.write_next(21)
    page.write([30, 31])
    assert [*page.positions] == [8, 9, 10, 20, 21, 30, 31]
    page.truncate(4)
    page.write(range(40, 42))
    assert [*page.positions] == [8, 9, 10, 20, 40, 41]
    assert page.fill == 6


def test_two_pages_that_were_written_from_one_list_do_not_share_it() -> None:
    positions = [4, 5]
    pages = [Page(PageId(number), EngineId("engine"), QueueId(0)) for number in range(2)]
    for page in pages:
        page.write(positions)
    pages[0].write_next(6)
    assert [[*page.positions] for page in pages] == [[4, 5, 6], [4, 5]]


def test_positions_that_follow_one_another_are_a_range_and_are_not_kept_one_by_one() -> None:
    page = Page(PageId(0), EngineId("engine"), QueueId(0))
    assert page.positions == range(0)
    page.write_next(30)
    page.write_next(31)
    page.write(range(32, 35))
    assert page.positions == range(30, 35)
    page.truncate(2)
    page.write_next(32)
    assert page.positions == range(30, 33)
    page.write(range(40, 42))
    assert [*page.positions] == [30, 31, 32, 40, 41]
    page.truncate(0)
    page.write(range(7, 9))
    assert page.positions == range(7, 9)
