"""A sweep of load curves that is interrupted goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.autellix import sweep
from benchmarks.autellix.playing import Task
from benchmarks.autellix.systems import ENGINE, SYSTEMS
from quire.simulation.studies import StudyResult

CONTENDERS = {name: sweep.Contender(SYSTEMS[name], ENGINE) for name in ("fcfs", "plas")}


def test_rows_of_an_earlier_run_are_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[str] = []
    play = sweep.play_all

    def note(tasks: list[Task], *more: object) -> list[StudyResult]:
        played.extend(task.label for task in tasks)
        return play(tasks, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(sweep, "play_all", note)
    path = tmp_path / "rows.jsonl"
    trace = sweep.Trace("bfcl", 1, [1], [0.5])
    first = sweep.sweep(trace, CONTENDERS, 10.0, 1, sweep.KeptRows(path))
    assert played == ["bfcl at 0.5, seed 1, fcfs", "bfcl at 0.5, seed 1, plas"]
    *_, last = path.read_text().splitlines(keepends=True)
    path.write_text(last)  # it was interrupted, or the first row is of other choices
    played.clear()
    assert sweep.sweep(trace, CONTENDERS, 10.0, 1, sweep.KeptRows(path)) == first
    assert played == ["bfcl at 0.5, seed 1, fcfs"]
    played.clear()
    twice = sweep.Trace("bfcl", 2, [1], [0.5])
    sweep.sweep(twice, {"plas": CONTENDERS["plas"]}, 10.0, 1, sweep.KeptRows(path))
    assert len(played) == 1, "a trace of another length"
