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


def test_calls_that_follow_others_come_later_and_all_else_stays() -> None:
    at_once = sweep.Trace("bfcl", 3, [1], [0.5]).study(ENGINE, 0.5, 1)
    later = sweep.Trace("bfcl", 3, [1], [0.5], wait_s=2.0).study(ENGINE, 0.5, 1)
    (plans, times_s), (waiting, same_s) = at_once.drawn(), later.drawn()
    assert list(times_s) == list(same_s)
    for plan, other in zip(plans, waiting, strict=True):
        assert [call.wait_s for call in other.calls] == [0.0, *[2.0] * (len(plan.calls) - 1)]
        assert plan.prompt_lengths == other.prompt_lengths
        assert [one.num_output for one in plan.calls] == [one.num_output for one in other.calls]
