"""What the engine's scripts print: ratios with fair peers, and shares of the machine's limit."""

from __future__ import annotations

import pytest

from benchmarks.engine import generation, ttft
from benchmarks.generation_rounds import Report, RoundOutcome, Workload
from benchmarks.machine_limits import Limits
from benchmarks.step_limits import format_of

LIMITS = Limits({1: 1e9}, {"f32": 1e10, "bf16": 1e10, "int8": 4e10})
CONTENDERS = ("quire", "quire-int8", "vllm", "llamacpp-q8_0")


def outcome(prompt: int) -> RoundOutcome:
    """Two rounds in which everything takes a second, or one prompt."""
    report: Report = {"first_s": 1, "step_s": 1, "total_s": 2, "cpu_s": 3, "num_tokens": 64}
    reports = {who: [report, report] for who in CONTENDERS}
    return RoundOutcome("small", Workload(1, prompt, 64), reports, LIMITS)


def test_a_step_is_printed_with_its_peer_and_its_own_share() -> None:
    found = outcome(generation.PROMPT)
    line = generation.row(found, generation.STEP)
    assert line["best_peer"] == "vllm"
    assert line["ahead_of"]["quire-int8"].keys() == {"llamacpp-q8_0"}
    shares = {who: one["median"] for who, one in line["share_of_limit"].items()}
    assert shares["quire"] == shares["vllm"]
    assert shares["quire-int8"] < shares["llamacpp-q8_0"] < shares["quire"]
    expected = generation.limit_s(found, generation.STEP, format_of("quire"))
    assert shares["quire"] == pytest.approx(expected, rel=1e-2)
    assert line["at_most"] == pytest.approx(1 / expected, rel=1e-2)
    rows = {row["contender"]: row for row in generation.shown(line, generation.STEP)}
    assert rows["quire"]["over"] == "vllm 1.0x"
    assert rows["quire-int8"]["over"] == "llamacpp-q8_0 1.0x"
    assert rows["limit"]["share of the limit"] == 1


def test_a_generation_is_held_against_the_limit_of_all_of_it() -> None:
    found = outcome(generation.PROMPT)
    line = generation.row(found, generation.RATE)
    expected = generation.limit_s(found, generation.RATE, format_of("quire")) / 2
    assert line["share_of_limit"]["quire"]["median"] == pytest.approx(expected, rel=1e-2)
    assert line["tok/s"]["quire"]["median"] == 32


def test_the_first_token_is_printed_with_a_share_and_processor_time() -> None:
    found = outcome(ttft.PROMPT)
    line = ttft.row("small", found, {"vllm": [{"cold_s": 0.3, "hit_s": 0.1}]})
    for who in CONTENDERS:
        expected = ttft.limit_s(found, who)
        assert line["share_of_limit"][who]["median"] == pytest.approx(expected, rel=1e-2)
    assert line["share_of_limit"]["quire-int8"] != line["share_of_limit"]["quire"]
    first, *_, last = ttft.shown(line)
    assert (first["contender"], first["cold ms"], first["processor ms"]) == ("quire", 1e3, 3e3)
    assert first["over"] == "vllm 1.0x"
    assert (last["contender"], last["cold ms"], last["hit ms"]) == ("vllm, http", 300, 100)
    assert first.keys() == last.keys()
