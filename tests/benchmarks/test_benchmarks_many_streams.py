"""What the clients of many streams have seen, as figures."""

from __future__ import annotations

import pytest

from benchmarks.engine.many_streams import LIMITS, OUTPUT, Round, rows_of, seen_by_clients
from benchmarks.http.stream_client import Streamed


def answer(start_s: float, first_s: float, num_events: int = OUTPUT) -> Streamed:
    """Its first token comes ``first_s`` after its start, the others 0.01 s apart."""
    return Streamed(start_s, [first_s + 0.01 * number for number in range(num_events)])


def test_the_wait_runs_from_the_first_start() -> None:
    seen = seen_by_clients([answer(5.0, 0.1), answer(5.2, 0.3)])
    assert seen["ttft_p50_ms"] == pytest.approx(300)
    assert seen["ttft_p99_ms"] == pytest.approx(496)
    assert seen["gap_p50_ms"] == pytest.approx(10)
    assert seen["tokens_per_s"] == pytest.approx(2 * OUTPUT / 0.65)


def test_events_of_several_tokens_are_counted() -> None:
    seen = seen_by_clients([answer(0, 0.1), answer(0, 0.1, OUTPUT - 4)])
    assert seen["events_per_answer"] == OUTPUT - 2
    assert seen["gap_p50_ms"] == pytest.approx(10)


def test_an_answer_in_one_event_is_refused() -> None:
    with pytest.raises(SystemExit, match="an answer came as one event"):
        seen_by_clients([answer(0, 0.1), answer(0, 0.1, 1)])


def test_the_share_is_of_the_machines_best_rate_and_the_ratio_of_one_round() -> None:
    def rounds(*waits_ms: float) -> list[Round]:
        return [{"ttft_p99_ms": wait} for wait in waits_ms]

    limits: list[Round] = [{"limit_ms": 50}, {"limit_ms": 40}]
    results = {
        "quire": rounds(100, 200),
        "vllm": rounds(400, 600),
        "vllm-float32": rounds(200, 200),
        LIMITS: limits,
    }
    ours, bf16, float32 = rows_of("tiny", results)
    assert [one["best_peer"] for one in (ours, bf16, float32)] == ["vllm-float32"] * 3
    assert ours["over_best_peer"]["low"] == 0.5
    assert ours["over_best_peer"]["high"] == 1.0
    assert ours["share_of_limit"] == pytest.approx(40 / 150, abs=1e-3)
    assert bf16["over_best_peer"]["median"] == 2.5


def test_without_a_peer_there_is_no_ratio() -> None:
    limits: list[Round] = [{"limit_ms": 50}]
    (only,) = rows_of("tiny", {"quire": [{"ttft_p99_ms": 100}], LIMITS: limits})
    assert only["over_best_peer"] is None
