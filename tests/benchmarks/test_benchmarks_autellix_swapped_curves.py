"""Throughput with blocks moved together over that with blocks moved one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.autellix.swapped_curves import BLOCK_S, SLOWER, contenders, gains, name_of


def test_contenders_of_a_policy_differ_in_the_time_of_a_block_alone() -> None:
    made = contenders()
    for times in (1, *SLOWER):
        engines = made[name_of("plas", times)].engines
        assert engines.cost.moved_block_s == times * BLOCK_S
        same = replace(engines, cost=replace(engines.cost, moved_block_s=BLOCK_S))
        assert same == made[name_of("plas", 1)].engines
        assert engines.host_tokens > engines.kv_tokens


def curve(system: str, seed: int, *latencies: tuple[float, float]) -> list[dict[str, Any]]:
    return [
        {"system": system, "seed": seed, "rate": rate, "latency_s": dict.fromkeys(
            ("mean", "p95", "p99"), latency_s)}
        for rate, latency_s in latencies
    ]  # fmt: skip


def test_gained_is_the_ratio_of_rates_at_one_latency() -> None:
    """Twice the latency alone is reached at a rate of 2 together, and of 1 with single moves."""
    rows = []
    for policy in ("mlfq", "plas", "quire"):
        for times in (1, *SLOWER):
            rate = 2.0 if times == 1 else 1.0
            rows += curve(name_of(policy, times), 1, (rate / 2, 1.0), (rate, 2.0), (2 * rate, 9.0))
    [first, *_] = gains(rows, alone_s=1.0)
    assert first["latency"] == "2 x alone"
    assert [first["programs/s"], first["gained over 3 x"]] == ["2", "2"]
