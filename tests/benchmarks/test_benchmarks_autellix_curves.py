"""Load curves that go on from an earlier run's file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.autellix import curves, sweep
from benchmarks.autellix.playing import Task
from quire.simulation.studies import StudyResult


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    labels: list[str] = []
    play = sweep.play_all

    def note(tasks: list[Task], *more: object) -> list[StudyResult]:
        labels.extend(task.label for task in tasks)
        return play(tasks, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(sweep, "play_all", note)
    return labels


def run(out: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> list[sweep.Row]:
    trace = ["--workloads", "bfcl", "--programs", "1", "--seeds", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["curves.py", *trace, *more])
    curves.main()
    rows: list[sweep.Row] = json.loads((out / "autellix-curves-bfcl.json").read_text())["rows"]
    return rows


def test_further_loads_are_played_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: list[str]
) -> None:
    monkeypatch.setattr(curves, "SYSTEMS", {one: curves.SYSTEMS[one] for one in ("fcfs", "plas")})
    first = run(tmp_path, monkeypatch, "--loads", "0.5")
    played.clear()
    both = run(tmp_path, monkeypatch, "--systems", "fcfs", "--further", "--loads", "0.5", "2")
    assert played == ["bfcl, one at a time", "bfcl at 2, seed 1, fcfs"]
    assert [(one["system"], one["load"]) for one in both] == [
        ("plas", 0.5),
        ("fcfs", 0.5),
        ("fcfs", 2.0),
    ]
    assert all(row in both for row in first)


def test_a_file_of_other_loads_is_refused_and_both_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: list[str]
) -> None:
    run(tmp_path, monkeypatch, "--loads", "0.5")
    for more in (
        ["--systems", "fcfs", "--loads", "0.5", "2"],  # would lack loads of the others
        ["--further", "--loads", "2"],  # would lose those of the file
    ):
        with pytest.raises(SystemExit, match=r"'loads': \[0.5\].*run without --systems"):
            run(tmp_path, monkeypatch, *more)
