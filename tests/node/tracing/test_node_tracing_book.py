"""Which calls, messages and programs the book keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.core.events import ProgramStarted
from quire.core.ids import CommandId, EngineId, ModelId, ProgramForm, ProgramId, TenantId, ThreadId
from quire.core.tracing import CallRecord, MessageRecord, TransferRecord
from quire.node.tracing.book import ProgramTrace, TraceBook, TraceLimits
from quire.node.tracing.reading import MAX_PROGRAMS, TracedProgram, carriers, waits


def start(
    book: TraceBook, program: int, parent: int | None = None, form: ProgramForm = "inferlet"
) -> None:
    above = None if parent is None else ProgramId(parent)
    book.program_started(
        ProgramStarted(
            time_s=0.0,
            program=ProgramId(program),
            tenant=TenantId("t"),
            form=form,
            name=f"p{program}",
            parent=above,
        )
    )


def call(program: int, command: int, **fields: Any) -> CallRecord:
    known: dict[str, Any] = {
        "kind": "decode",
        "model": ModelId("m"),
        "engine": EngineId("m#0"),
        "thread": ThreadId(0),
        "arrival_s": 0.0,
        "sent_s": 0.0,
        "first_token_s": None,
        "end_s": 1.0,
        "waiting_s": 0.0,
        "service_s": 1.0,
        "num_prefilled_tokens": 1,
        "num_cached_tokens": 0,
        "num_generated_tokens": 1,
        "num_preemptions": 0,
        "idle_since_s": None,
        "messages": (),
        "outcome": "done",
    }
    return CallRecord(program=ProgramId(program), command=CommandId(command), **(known | fields))


def message(number: int, engine: str = "m#0") -> MessageRecord:
    return MessageRecord(
        engine=EngineId(engine),
        number=number,
        sent_s=float(number),
        start_s=float(number),
        end_s=number + 1.0,
        num_commands=1,
        num_tokens=1,
    )


def trace_of(book: TraceBook, program: int) -> ProgramTrace:
    found = book.read(ProgramId(program))
    assert found is not None
    return found


def commands(book: TraceBook, program: int) -> list[int]:
    return [one.command for one in trace_of(book, program).calls]


def test_the_latest_calls_of_a_program_are_kept_and_all_are_counted() -> None:
    book = TraceBook(TraceLimits(max_calls=3))
    start(book, 1)
    for command in range(5):
        book.call_ended(call(1, command))
    assert commands(book, 1) == [2, 3, 4]
    assert trace_of(book, 1).num_calls == 5


def test_the_node_keeps_the_latest_of_all_programs_together() -> None:
    book = TraceBook(TraceLimits(max_calls=3, max_node_calls=6))
    start(book, 1)
    start(book, 2)
    for command in range(4):
        book.call_ended(call(1, command))
    assert commands(book, 1) == [1, 2, 3]
    for command in range(4):
        book.call_ended(call(2, command))
    # eight have ended and six count: of the first two, one was lost to the program's own limit
    assert commands(book, 1) == [2, 3]
    assert commands(book, 2) == [1, 2, 3]
    for command in range(4, 14):
        book.call_ended(call(2, command))
    assert commands(book, 1) == []
    assert commands(book, 2) == [11, 12, 13]


def test_what_is_kept_is_what_the_reference_promises() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "http.md"
    promised = " ".join(page.read_text(encoding="utf-8").split())
    limits = TraceLimits()
    assert (
        f"keeps the latest {limits.max_calls} calls of each program (`num_calls` counts all), the "
        f"latest {limits.max_node_calls:,} of all programs, as many transfers of each program and "
        f"{limits.max_node_transfers:,} of all, and the latest {limits.max_messages:,} messages of "
        "each engine."
    ) in promised
    assert limits.max_transfers == limits.max_calls
    assert f"of ended sessions the latest {limits.max_ended_sessions:,} are kept." in promised
    assert f"the programs below it follow, at most {MAX_PROGRAMS} in all." in promised
    assert limits.max_children == MAX_PROGRAMS


def test_a_launched_program_is_kept_until_it_is_forgotten() -> None:
    book = TraceBook()
    start(book, 1)
    book.program_ended(ProgramId(1), 2.0, "finished")
    book.call_ended(call(1, 1))
    trace = trace_of(book, 1)
    assert (trace.end_s, trace.reason, len(trace.calls)) == (2.0, "finished", 1)
    book.forget([ProgramId(1)])
    assert book.read(ProgramId(1)) is None
    book.call_ended(call(1, 2))
    assert book.read(ProgramId(1)) is None, "a late call does not bring it back"


def test_of_sessions_that_have_ended_the_latest_are_kept() -> None:
    book = TraceBook(TraceLimits(max_ended_sessions=2))
    for program in (1, 2, 3, 4):
        start(book, program, form="session")
    for program in (1, 2, 3):
        book.program_ended(ProgramId(program), 1.0, "finished")
    kept = [program for program in (1, 2, 3, 4) if book.read(ProgramId(program)) is not None]
    assert kept == [2, 3, 4]


def test_a_program_that_was_not_launched_after_all_is_not_kept() -> None:
    book = TraceBook()
    start(book, 1)
    book.program_ended(ProgramId(1), 0.0, "refused")
    assert book.read(ProgramId(1)) is None


def test_a_family_is_found_level_by_level_and_bounded() -> None:
    book = TraceBook(TraceLimits(max_children=2))
    start(book, 1)
    start(book, 2, parent=1)
    start(book, 3, parent=2)
    start(book, 4, parent=1)
    assert book.family([ProgramId(1)], 10) == [1, 2, 4, 3]
    assert book.family([ProgramId(1)], 2) == [1, 2]
    start(book, 5, parent=1)
    assert book.family([ProgramId(1)], 10) == [1, 4, 5], "the latest children"


def test_the_latest_messages_of_each_engine_are_kept() -> None:
    book = TraceBook(TraceLimits(max_messages=2))
    for number in range(4):
        book.message_ended(message(number))
    book.message_ended(message(9, "other#0"))
    numbers = {engine: [one.number for one in kept] for engine, kept in book.messages().items()}
    assert numbers == {"m#0": [2, 3], "other#0": [9]}


def test_messages_are_those_that_carried_a_call_once_each() -> None:
    kept = {
        EngineId("m#0"): [message(number) for number in range(10)],
        EngineId("other#0"): [message(number, "other#0") for number in range(10)],
    }
    calls = [
        call(1, 1, messages=((1, 2), (5, 5))),
        call(1, 2, messages=((2, 3),)),
        call(1, 3, engine=None),
        call(1, 4, messages=((8, 20),)),
    ]
    assert [(one.engine, one.number) for one in carriers(calls, kept)] == [
        ("m#0", number) for number in (1, 2, 3, 5, 8, 9)
    ]
    assert carriers(calls, {}) == []


def traced(
    calls: list[CallRecord], under_way: tuple[CallRecord, ...] = (), end_s: float | None = None
) -> TracedProgram:
    book = TraceBook()
    start(book, 1)
    for one in calls:
        book.call_ended(one)
    if end_s is not None:
        book.program_ended(ProgramId(1), end_s, "finished")
    return TracedProgram("prog-1", trace_of(book, 1), under_way)


@pytest.mark.parametrize("idle_since_s", [None, 4.9995])
def test_a_call_that_follows_at_once_ends_no_wait(idle_since_s: float | None) -> None:
    one = call(1, 1, arrival_s=5.0, end_s=6.0, idle_since_s=idle_since_s)
    assert waits(traced([one], end_s=6.0)) == []


def test_waits_are_the_times_between_calls_and_since_the_last() -> None:
    first = call(1, 1, end_s=1.0)
    third = call(1, 3, arrival_s=9.0, end_s=10.0, idle_since_s=7.0)
    second = call(1, 2, arrival_s=4.0, end_s=7.0, idle_since_s=1.0)
    open_call = call(1, 4, arrival_s=12.0, end_s=None, outcome=None, idle_since_s=10.0)
    ended = [first, third, second]
    assert waits(traced(ended)) == [(1.0, 4.0), (7.0, 9.0), (10.0, None)]
    assert waits(traced(ended, end_s=11.0)) == [(1.0, 4.0), (7.0, 9.0)]
    assert waits(traced(ended, (open_call,))) == [(1.0, 4.0), (7.0, 9.0), (10.0, 12.0)]


def transfer(program: int | None, num_blocks: int) -> TransferRecord:
    return TransferRecord(
        program=None if program is None else ProgramId(program),
        engine=EngineId("m#0"),
        direction="out",
        num_blocks=num_blocks,
        num_bytes=64 * num_blocks,
        start_s=0.0,
        end_s=1.0,
    )


def test_transfers_of_a_program_are_kept_apart_from_its_calls() -> None:
    book = TraceBook(TraceLimits(max_transfers=2))
    start(book, 1)
    book.call_ended(call(1, 1))
    for num_blocks in (1, 2, 3):
        book.transfer_ended(transfer(1, num_blocks))
    book.transfer_ended(transfer(None, 9))
    book.transfer_ended(transfer(7, 9))
    assert [one.num_blocks for one in trace_of(book, 1).transfers] == [2, 3]
    assert commands(book, 1) == [1]
