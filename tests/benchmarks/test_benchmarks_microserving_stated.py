"""The stated A100 has the figures of Microserving's Table 3, and the comparisons compare."""

from __future__ import annotations

import pytest

from benchmarks.microserving.figure13 import BY_LOAD, against_best
from benchmarks.microserving.stated import (
    CHUNKED,
    NUM_LAYERS,
    NUM_NEW,
    PREFILL_MS,
    TOKEN_BYTES,
    TRANSFER_MS,
    a100,
    link,
)
from benchmarks.microserving.virtual import medians, over


@pytest.mark.parametrize("length", PREFILL_MS)
def test_computing_takes_what_the_paper_says(length: int) -> None:
    cost = a100(CHUNKED).cost
    pairs = NUM_NEW * (length - NUM_NEW) + NUM_NEW * (NUM_NEW + 1) / 2
    layer_s = (NUM_NEW * cost.prompt_token_s + pairs * cost.prompt_context_s) / NUM_LAYERS
    assert 1e3 * layer_s == pytest.approx(PREFILL_MS[length], rel=0.01)


@pytest.mark.parametrize("length", TRANSFER_MS)
def test_sending_takes_what_the_paper_says(length: int) -> None:
    cost = link()
    layer_s = cost.layer_s + length * TOKEN_BYTES / NUM_LAYERS / cost.bytes_per_s
    assert 1e3 * layer_s == pytest.approx(TRANSFER_MS[length], rel=0.01)


def test_prefill_takes_a_quarter_of_the_decode() -> None:
    cost = a100(CHUNKED).cost
    prefill_s = 3000 * cost.prompt_token_s + 3000 * 3001 / 2 * cost.prompt_context_s
    assert 100 * cost.pass_s / prefill_s == pytest.approx(4, abs=0.3)


def _row(contender: str, jct_s: float, rate: float = 1.0) -> dict[str, object]:
    return {
        "prompt": 3000, "contender": contender, "rate": rate, "JCT s": jct_s, "JCT p99 s": 2 * jct_s
    }  # fmt: skip


def test_the_load_is_compared_with_the_best_fixed_share() -> None:
    rows = [_row("0.1", 2.0), _row("0.2", 1.0), _row("0.3", 3.0), _row(BY_LOAD, 1.05)]
    mean, p99 = against_best(rows)
    assert (mean["best"], mean["by load over best"], mean["0.3 over 0.1"]) == ("0.2", 1.05, 1.5)
    assert p99["figure"] == "JCT p99 s"


def test_contenders_are_compared_at_equal_rates() -> None:
    rows = [_row("a", 3.0), _row("b", 2.0), _row("a", 5.0, rate=2.0)]
    [one] = over(rows, "JCT s", "a", "b")
    assert (one["rate"], one["ratio"]) == (1.0, 1.5)


def test_a_point_of_several_seeds_has_their_medians() -> None:
    rows = [
        {"seed": seed, "contender": name, "rate": 1.0, "failed": 1, "JCT s": jct_s}
        for name, times_s in (("DP", (3.0, 1.0, 2.0)), ("quire", (5.0, 4.0, 9.0)))
        for seed, jct_s in enumerate(times_s)
    ]
    found = medians(rows)
    assert [(row["contender"], row["JCT s"], row["failed"]) for row in found] == [
        ("DP", 2.0, 3),
        ("quire", 5.0, 3),
    ]
    assert all(row["seeds"] == 3 and "seed" not in row for row in found)
