"""Latencies as they are counted from events and actions."""

from __future__ import annotations

from quire.core.actions import Action, Deliver, Fail, QueuePlaced
from quire.core.calls import CloseQueue, Issue
from quire.core.commands import Decode
from quire.core.decoding import DecodeChunk, SamplerSpec, StopSpec
from quire.core.errors import ErrorRecord
from quire.core.events import Called, EngineDown, Event, Tick
from quire.core.ids import CommandId, EngineId, ProgramId, QueueId
from quire.node.latency import EngineLatencies, Histogram, LatencyObserver

PROGRAM, QUEUE, ENGINE = ProgramId(1), QueueId(1), EngineId("e")


def decode(number: int) -> Decode:
    return Decode(
        id=CommandId(number),
        context=[],
        output=[],
        tokens=[1],
        position=0,
        sampler=SamplerSpec(),
        stop=StopSpec(8),
    )


def chunk(number: int, num_tokens: int, *, last: bool = False) -> Deliver:
    reply = DecodeChunk(list(range(num_tokens)))
    return Deliver(program=PROGRAM, command=CommandId(number), reply=reply, last=last)


def observe(*history: tuple[Event, list[Action]]) -> EngineLatencies:
    observer = LatencyObserver()
    placed = QueuePlaced(program=PROGRAM, queue=QUEUE, engine=ENGINE)
    for event, actions in history:
        is_first = isinstance(event, Called)
        observer.observe(event, [placed, *actions] if is_first else actions)
    return observer.snapshot()[ENGINE]


def issued(*numbers: int) -> Event:
    commands = [decode(number) for number in numbers]
    return Called(time_s=1.0, program=PROGRAM, call=Issue(QUEUE, commands))


def test_a_decode_in_three_chunks() -> None:
    found = observe(
        (issued(1), []),
        (Tick(time_s=1.5), [chunk(1, 1)]),
        (Tick(time_s=2.5), [chunk(1, 4)]),
        (Tick(time_s=3.0), [chunk(1, 0, last=True)]),
    )
    assert found.time_to_first_token.sum_s == 0.5
    assert found.time_to_first_token.num_observations == 1
    assert found.inter_token.num_observations == 4
    assert found.inter_token.sum_s == 1.0
    assert found.request.sum_s == 2.0
    assert (found.num_finished, found.num_failed, found.num_cancelled) == (1, 0, 0)


def test_failed_and_cancelled_decodes_count_but_have_no_latency() -> None:
    def fail(number: int, code: str) -> Fail:
        return Fail(program=PROGRAM, command=CommandId(number), error=ErrorRecord(code, ""))

    ends: list[Action] = [fail(1, "engine_lost"), fail(2, "program_cancelled")]
    found = observe((issued(1, 2), []), (Tick(time_s=2.0), ends))
    assert (found.num_finished, found.num_failed, found.num_cancelled) == (0, 1, 1)
    assert found.request.num_observations == 0


def test_a_duration_on_a_bound_lies_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for duration_s in (0.5, 1.0, 1.5, 99.0):
        histogram.observe(duration_s)
    assert histogram.snapshot().counts == (2, 1, 1)


def test_a_request_counts_for_the_engine_on_which_it_began() -> None:
    """And the next one where its queue is by then."""
    observer, other = LatencyObserver(), EngineId("other")
    placed = QueuePlaced(program=PROGRAM, queue=QUEUE, engine=ENGINE)
    moved = QueuePlaced(program=PROGRAM, queue=QUEUE, engine=other)
    lost = EngineDown(time_s=1.5, engine=ENGINE, error=ErrorRecord("engine_lost", "gone"))
    observer.observe(issued(1), [placed])
    observer.observe(lost, [moved])
    observer.observe(Tick(time_s=2.0), [chunk(1, 1, last=True)])
    observer.observe(issued(2), [])
    observer.observe(Tick(time_s=3.0), [chunk(2, 1, last=True)])
    found = observer.snapshot()
    assert (found[ENGINE].num_finished, found[ENGINE].request.sum_s) == (1, 1.0)
    assert (found[other].num_finished, found[other].request.sum_s) == (1, 2.0)


def test_what_control_refuses_on_a_closed_queue_counts_for_no_engine() -> None:
    refused = ErrorRecord("unknown_handle", "the queue is closed")
    observer = LatencyObserver()
    placed = QueuePlaced(program=PROGRAM, queue=QUEUE, engine=ENGINE)
    observer.observe(issued(1), [placed])
    observer.observe(Called(time_s=3.0, program=PROGRAM, call=CloseQueue(QUEUE)), [])
    fail = Fail(program=PROGRAM, command=CommandId(2), error=refused)
    observer.observe(issued(2), [fail])
    assert observer.snapshot()[ENGINE].num_failed == 0


def test_a_decode_that_does_not_stream_has_a_first_token_too() -> None:
    reply = DecodeChunk([1, 2, 3, 4, 5], first_token_after_s=0.5)
    whole = Deliver(program=PROGRAM, command=CommandId(1), reply=reply)
    found = observe((issued(1), []), (Tick(time_s=3.5), [whole]))
    assert found.time_to_first_token.sum_s == 0.5
    assert found.time_to_first_token.num_observations == 1
    assert (found.inter_token.num_observations, found.inter_token.sum_s) == (4, 2.0)
    assert found.request.sum_s == 2.5


def test_one_token_alone_has_nothing_between_tokens() -> None:
    reply = DecodeChunk([1], first_token_after_s=0.5)
    whole = Deliver(program=PROGRAM, command=CommandId(1), reply=reply)
    found = observe((issued(1), []), (Tick(time_s=3.5), [whole]))
    assert found.time_to_first_token.sum_s == 0.5
    assert found.inter_token.num_observations == 0
