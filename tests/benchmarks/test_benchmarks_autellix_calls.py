"""What figures are made of the calls of a simulated run."""

from __future__ import annotations

from benchmarks.autellix.call_records import binned, by_output, by_prompt, live_calls
from quire.core.ids import CommandId, EngineId, ModelId, ProgramId, ThreadId
from quire.core.tracing import CallRecord


def call(
    arrival_s: float = 0.0,
    end_s: float = 1.0,
    *,
    waiting_s: float = 0.0,
    num_generated: int = 1,
    num_cached: int = 0,
    num_prefilled: int = 1,
) -> CallRecord:
    return CallRecord(
        program=ProgramId(1),
        command=CommandId(1),
        kind="decode",
        model=ModelId("model"),
        engine=EngineId("model#0"),
        thread=ThreadId(0),
        arrival_s=arrival_s,
        sent_s=arrival_s,
        first_token_s=arrival_s,
        end_s=end_s,
        waiting_s=waiting_s,
        service_s=2.0,
        num_prefilled_tokens=num_prefilled,
        num_cached_tokens=num_cached,
        num_generated_tokens=num_generated,
        num_preemptions=0,
        idle_since_s=None,
        messages=(),
        outcome="done",
    )


def test_calls_under_way_are_counted_by_the_time_that_they_take_of_each_part() -> None:
    found = live_calls([call(0.0, 4.0), call(1.0, 2.0), call(3.5, 4.0)], 2)
    assert found == [(1.0, 1.5), (3.0, 1.25)]


def test_ranges_begin_at_their_edges_and_those_without_any_are_left_out() -> None:
    pairs = [(1.0, 2.0), (9.0, 4.0), (10.0, 6.0), (500.0, 8.0), (0.5, 99.0)]
    assert binned(pairs, (1, 10, 20, 100)) == [(1, 3.0), (10, 6.0), (100, 8.0)]


def test_waiting_is_held_against_service_and_hits_against_the_whole_prompt() -> None:
    calls = [
        call(waiting_s=1.0, num_generated=5, num_cached=3, num_prefilled=1),
        call(waiting_s=3.0, num_generated=50, num_cached=30, num_prefilled=30),
    ]
    assert by_output(calls, (1, 10)) == [(1, 0.5), (10, 1.5)]
    assert by_prompt(calls, (1, 10), lambda _: True) == [(1, 0.75), (10, 0.5)]
    assert by_prompt(calls, (1, 10), lambda one: one.num_generated_tokens > 5) == [(10, 0.5)]
