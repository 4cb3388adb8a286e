"""What the comparison with vLLM sends, and how it sums up what came."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.microserving import against_vllm
from benchmarks.microserving.against_vllm import (
    CONTENDERS,
    LOADS,
    MAX_TOKENS,
    VLLM,
    Answered,
    Load,
    medians_of,
    panels_of,
    plans_of,
    row_of,
    tokens_of,
    turns_of,
)
from quire.cluster.simulation import Lengths

LONG = Load(Lengths(2000, 1.0, "lognormal"), Lengths(2000, 1.0, "lognormal"), (1.0,))


@pytest.mark.parametrize("load", [*LOADS.values(), LONG])
def test_no_request_is_longer_than_the_model(load: Load) -> None:
    plans = plans_of(load, 1.0, 400, 0)
    lengths = [(len(plan.prompt), plan.num_output) for plan in plans]
    assert max(map(sum, lengths)) <= MAX_TOKENS
    assert min(map(min, lengths)) >= 1


def test_a_rate_is_that_of_one_server() -> None:
    plans = plans_of(LOADS["fig11"], 2.0, 4000, 0)
    assert plans[-1].at_s == pytest.approx(1000, rel=0.1)


def test_contenders_have_the_same_lengths_and_tokens_of_their_own() -> None:
    plan = plans_of(LOADS["fig10"], 1.0, 3, 5)[2]
    prompts = [tokens_of(plan, 2, 5, name) for name in CONTENDERS]
    prompts += [tokens_of(plan, 2, 6, VLLM), tokens_of(plan, 1, 5, VLLM)]
    assert {len(one) for one in prompts} == {len(plan.prompt)}
    assert len({tuple(one[:16]) for one in prompts}) == len(prompts)
    assert tokens_of(plan, 2, 5, VLLM) == prompts[CONTENDERS.index(VLLM)]


def test_each_round_begins_with_another_contender() -> None:
    assert [turns_of(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert sorted(turns_of(["a", "b", "c"], 2)) == ["a", "b", "c"]


def row(contender: str, jct_s: float, rate: float = 1.0) -> dict[str, object]:
    times = row_of([Answered(0.1, jct_s, 11), Answered(0.3, jct_s, 21, late_s=0.02)])
    return {"rate": rate, "seed": 0, "contender": contender, "of capacity": 0.5, **times}


def test_a_row_has_times_from_when_a_request_should_have_come() -> None:
    found = row("quire", 1.1)
    assert found["ttft ms mean"] == pytest.approx(200)
    assert found["tpot ms p99"] == pytest.approx(100), "ten steps in a second"
    assert found["tpot ms mean"] == pytest.approx(70)
    assert found["jct s mean"] == pytest.approx(1.1)
    assert found["latest client s"] == 0.02


def test_ratios_are_those_of_the_same_round() -> None:
    rows = [row("quire", 1.0), row(VLLM, 2.0), row("quire", 3.0), row(VLLM, 3.0)]
    ours, peer = medians_of(rows)
    assert ours["vLLM's jct s mean over its"] == "1.5 [1, 2]"
    assert peer["contender"] == VLLM
    assert not [name for name in peer if "over its" in name]


def test_a_drawing_has_the_medians_by_rate() -> None:
    rows = [row("quire", 1.0, 2.0), row("quire", 3.0, 1.0), row("quire", 2.0, 2.0)]
    jct = next(panel for panel in panels_of(rows) if panel.label == "jct s mean")
    assert jct.lines == {"quire": [(1.0, 3.0), (2.0, 1.5)]}


def test_without_vllm_it_ends_with_the_remedies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["against_vllm.py", "--cache", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"install\.py.*leave vLLM out: --only"):
        against_vllm.main()
