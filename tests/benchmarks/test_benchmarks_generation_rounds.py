"""Whom Quire's contenders are compared with."""

from __future__ import annotations

import pytest

from benchmarks.generation_rounds import Report, RoundOutcome, Workload
from benchmarks.machine_limits import Limits


def outcome(**times_s: float) -> RoundOutcome:
    """Two rounds in which each contender's step takes ``times_s``."""
    reports: dict[str, list[Report]] = {
        name.replace("_", "-", 1): [{"step_s": time_s}] * 2 for name, time_s in times_s.items()
    }
    return RoundOutcome("tiny", Workload(1, 8, 8), reports, Limits({1: 1.0}, {}))


def test_weights_of_fewer_bits_are_compared_with_each_other() -> None:
    found = outcome(quire=2.0, quire_int8=1.5, vllm=6.0, vllm_float32=4.0, llamacpp_q8_0=3.0)
    assert found.best_peer("step_s", larger_is_better=False) == "vllm-float32"
    ratios = found.comparisons("step_s", larger_is_better=False)
    medians = {
        who: {peer: one.median for peer, one in peers.items()} for who, peers in ratios.items()
    }
    assert medians == {"quire": {"vllm-float32": 2.0}, "quire-int8": {"llamacpp-q8_0": 2.0}}


def test_both_types_of_llama_cpp_are_stated() -> None:
    found = outcome(quire_int8=2.0, llamacpp_q8_0=5.0, llamacpp_q4_0=3.0)
    ratios = found.comparisons("step_s", larger_is_better=False)["quire-int8"]
    assert {peer: one.median for peer, one in ratios.items()} == pytest.approx(
        {"llamacpp-q8_0": 2.5, "llamacpp-q4_0": 1.5}
    )


def test_without_peers_nothing_is_compared() -> None:
    assert outcome(quire=2.0).comparisons("step_s", larger_is_better=False) == {"quire": {}}
