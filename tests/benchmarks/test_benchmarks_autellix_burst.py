"""Bursts: runs are named, and those of an earlier run are not played again."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from benchmarks.autellix import burst
from benchmarks.autellix.burst import Run
from benchmarks.autellix.playing import Task
from quire.simulation.studies import StudyResult


def test_a_run_is_a_policy_without_or_with_pauses() -> None:
    assert Run.named("fcfs") == Run("fcfs", "no")
    assert Run.named("quire+pauses") == Run("quire", "yes")
    for wrong in ("fcsf", "fcfs+", "fcfs+pause"):
        with pytest.raises(ArgumentTypeError, match=r"fcfs.*\+pauses"):
            Run.named(wrong)


def test_an_interrupted_burst_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[str] = []
    play = burst.play_all

    def note(tasks: list[Task], *more: object) -> list[StudyResult]:
        played.extend(task.label for task in tasks)
        return play(tasks, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(burst, "play_all", note)
    path = tmp_path / "rows.jsonl"
    runs = [Run("fcfs", "no"), Run("quire", "yes")]
    keys = [burst.key_of(3, 20, 1, run) for run in runs]
    first = burst.played(keys, 1, path)
    assert [(row["policy"], row["pauses"]) for row in first] == [("fcfs", "no"), ("quire", "yes")]
    assert played == ["seed 1, fcfs, pauses: no", "seed 1, quire, pauses: yes"]
    *_, last = path.read_text().splitlines(keepends=True)
    path.write_text(last)
    played.clear()
    assert burst.played(keys, 1, path) == first
    assert played == ["seed 1, fcfs, pauses: no"]
    played.clear()
    burst.played([burst.key_of(2, 20, 1, runs[1])], 1, path)
    assert len(played) == 1, "a burst of another size"
