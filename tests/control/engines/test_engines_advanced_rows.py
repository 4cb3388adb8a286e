"""The rows of decodes that go on: as they are, and the same arrays while nothing about them is
new."""

from __future__ import annotations

from control_world import queue_alone

from quire.control.engines.advanced_rows import AdvancedRows
from quire.control.engines.decode_run import DecodeRun
from quire.control.memory.append_cursor import AppendCursor, Prefix
from quire.control.memory.memory import Memory
from quire.control.memory.operations import OperationList
from quire.control.programs.program import Entry
from quire.core.batch import AdvanceRows
from quire.core.commands import Decode
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.ids import CommandId, EngineId, ProgramId, SequenceId, TenantId
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool


def run(sequence: int, epoch: int) -> DecodeRun:
    """A decode without pages, of which the sequence alone counts."""
    operations = OperationList()
    info = FakeEngine(fake_pool(num_blocks=4)).info
    memory = Memory(EngineId("fake"), info, operations)
    prefix = Prefix(False, None)
    cursor = AppendCursor([], prefix, TenantId("t"), ProgramId(1), memory, operations)
    sampler = SamplerSpec()
    command = Decode(
        id=CommandId(1),
        context=[],
        output=[],
        tokens=[1],
        position=0,
        sampler=sampler,
        stop=StopSpec(2),
    )
    made = DecodeRun(Entry(command, queue_alone(1), 0.0), command, b"", [], cursor, sampler, 2)
    made.sequence, made.epoch = SequenceId(sequence), epoch
    return made


def told(rows: AdvanceRows | None) -> tuple[list[int], list[int], list[int]]:
    assert rows is not None
    return rows.sequences.tolist(), rows.epochs.tolist(), rows.max_steps.tolist()


def test_nothing_goes_on() -> None:
    assert AdvancedRows().rows([], []) is None


def test_the_arrays_of_the_last_message_serve_the_next_one() -> None:
    rows = AdvancedRows()
    first = rows.rows([run(3, 8), run(1, 9)], [1, 1])
    again = rows.rows([run(3, 8), run(1, 9)], [1, 1])
    assert told(first) == told(again) == ([3, 1], [8, 9], [1, 1])
    assert first is not None
    assert again is not None
    assert again.sequences is first.sequences
    assert again.epochs is first.epochs
    assert again.max_steps is first.max_steps


def test_a_sequence_that_was_opened_anew_is_another_one() -> None:
    rows = AdvancedRows()
    rows.rows([run(3, 8), run(1, 9)], [1, 1])
    assert told(rows.rows([run(3, 10), run(1, 9)], [1, 1])) == ([3, 1], [10, 9], [1, 1])
    assert told(rows.rows([run(1, 9)], [1])) == ([1], [9], [1])


def test_steps_change_without_the_sequences_and_stay_what_they_were() -> None:
    rows = AdvancedRows()
    steps = [4, 4]
    before = rows.rows([run(3, 8), run(1, 9)], steps)
    steps[1] = 2
    assert told(rows.rows([run(3, 8), run(1, 9)], steps)) == ([3, 1], [8, 9], [4, 2])
    assert told(before) == ([3, 1], [8, 9], [4, 4])
