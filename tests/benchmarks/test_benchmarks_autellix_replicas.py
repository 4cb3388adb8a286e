"""One number of engines is compared with another on the same programs."""

from __future__ import annotations

import pytest

from benchmarks.autellix.replicas import Share, groups, interval, of_linear, task_of


def test_a_group_unites_the_programs_of_smaller_groups() -> None:
    ones, twos = groups(60, 1, 8, seed=3), groups(60, 2, 8, seed=3)
    assert twos == [one // 2 for one in ones]
    assert groups(60, 8, 8, seed=3) == [0] * 60
    assert len(set(ones)) == 8


def test_the_groups_of_engines_serve_every_program_once_at_its_time() -> None:
    whole = task_of(Share(4, 0, 0.9, 2), num_each=5, most=4).study.drawn()
    parts = [
        task_of(Share(1, group, 0.9, 2), num_each=5, most=4).study.drawn() for group in range(4)
    ]
    served = [pair for plans, times_s in parts for pair in zip(times_s, plans, strict=True)]
    assert sorted(served, key=lambda pair: pair[0]) == list(zip(whole[1], whole[0], strict=True))


def _rows(ms_of: dict[tuple[int, int, float], float]) -> list[dict[str, float]]:
    return [
        {"engines": engines, "seed": seed, "load": load, "ms_per_token": ms}
        for (engines, seed, load), ms in ms_of.items()
    ]


def test_of_linear_is_the_mean_of_ratios_within_a_seed() -> None:
    rows = _rows(
        {
            (1, 1, 0.5): 50, (1, 1, 1.0): 100, (2, 1, 0.5): 50, (2, 1, 1.0): 100,
            (1, 2, 0.5): 50, (1, 2, 1.0): 100, (2, 2, 0.5): 25, (2, 2, 1.0): 50, (2, 2, 2.0): 100,
        }
    )  # fmt: skip
    assert of_linear(rows, 2, slo_s=0.07) == interval([1.0, 2.0])


def test_of_linear_is_a_bound_where_a_curve_does_not_reach_the_latency() -> None:
    rows = _rows({(1, 1, 0.5): 50, (1, 1, 1.0): 100, (2, 1, 0.5): 40, (2, 1, 1.0): 60})
    assert of_linear(rows, 2, slo_s=0.07).startswith(">")


def test_the_interval_is_that_of_students_t() -> None:
    assert interval([1.0, 2.0, 3.0]) == "2.000 ± 2.484"
    with pytest.raises(ValueError, match="mean requires"):
        interval([])
