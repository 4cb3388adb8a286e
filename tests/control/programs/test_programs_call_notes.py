"""Which messages have carried a call: runs of numbers, and how many are kept apart."""

from __future__ import annotations

import pytest
from control_world import World

from quire.control.programs.call_notes import (
    MAX_SPANS,
    forget_messages,
    message_spans,
    note_message,
)
from quire.control.programs.program import Entry
from quire.core.ids import ProgramId


@pytest.fixture
def entry() -> Entry:
    world = World()
    world.program(1)
    world.issue(1, world.alloc([1]), world.decode([1], [1, 2], 2))
    program = world.controller._table.get(ProgramId(1))
    assert program is not None
    (entry,) = program.entries.values()
    forget_messages(entry)
    return entry


def test_numbers_that_follow_one_another_are_one_run(entry: Entry) -> None:
    assert message_spans(entry) == ()
    for number in (3, 4, 4, 5, 9, 10, 20):
        note_message(entry, number, float(number))
    assert message_spans(entry) == ((3, 5), (9, 10), (20, 20))
    assert entry.sent_s == 3.0
    forget_messages(entry)
    note_message(entry, 0, 50.0)
    assert message_spans(entry) == ((0, 0),)
    assert entry.sent_s == 50.0


def test_the_last_run_is_drawn_out_when_there_are_too_many(entry: Entry) -> None:
    for number in range(0, 4 * MAX_SPANS, 2):
        note_message(entry, number, 0.0)
    spans = message_spans(entry)
    assert len(spans) == MAX_SPANS
    assert spans[-2:] == ((2 * MAX_SPANS - 4,) * 2, (2 * MAX_SPANS - 2, 4 * MAX_SPANS - 2))
