"""Progress of ``quire sim`` and of the reading of logs: lines on stderr also without a terminal,
how many, what they say, and what Ctrl-C leaves."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest
from cli_invoke import invoke
from test_cli_replay import record

from quire.cli import progress_lines
from quire.cli.sim import command as sim
from quire.cli.sim import nodes as sim_nodes
from quire.cli.sim import progress as sim_progress
from quire.cli.sim.progress import SimProgress
from quire.simulation.progress import RunProgress

Capture = pytest.CaptureFixture[str]

SMALL = ("sim", "--workload", "bfcl", "--programs", "3", "--seed", "1")
NODES = ("sim", "--nodes", "1", "--programs", "3", "--seed", "1")


class Hands:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_every_ten_seconds_tells_the_share_the_speed_and_the_rest(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim_progress, "in_use", lambda: True)
    clock = Hands()
    progress = SimProgress("plas", "programs", clock)
    for seconds, num_calls in ((10, 3), (14, 30), (20, 100), (29, 110), (30, 150)):
        clock.now_s = 100.0 + seconds
        progress(RunProgress(7.4, num_calls // 10, 40, num_calls, 400))
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.splitlines() == [
        "plas: 1 % (3 of 400 calls, 0 of 40 programs), 7 s of virtual time; 0.3 calls/s",
        "plas: 25 % (100 of 400 calls, 10 of 40 programs), 7 s of virtual time; 5.0 calls/s, "
        "about 60 s left",
        "plas: 38 % (150 of 400 calls, 15 of 40 programs), 7 s of virtual time; 5.0 calls/s, "
        "about 50 s left",
    ]


@pytest.mark.parametrize("in_use", [None, False])
def test_control_as_python_is_told_once(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, in_use: bool | None
) -> None:
    monkeypatch.setattr(sim_progress, "in_use", lambda: in_use)
    clock = Hands()
    progress = SimProgress("plas", "programs", clock)
    for _ in range(2):
        clock.now_s += 10
        progress(RunProgress(7.0, 1, 4, 1, 8))
    first, second = capsys.readouterr().err.splitlines()
    assert "'quire compile'" in first
    assert "'quire compile'" not in second


@pytest.mark.parametrize(
    ("arguments", "told"), [(SMALL, "100 % (26 of 26 calls, 3 of 3 programs)"),
                            (NODES, "100 % (3 of 3 requests)")]
)  # fmt: skip
def test_a_pipe_is_told_and_the_result_stays_the_same(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], told: str
) -> None:
    monkeypatch.setattr(progress_lines, "INTERVAL_S", inf)
    quiet = invoke(capsys, *arguments)
    assert " of virtual time" not in quiet.err
    monkeypatch.setattr(progress_lines, "INTERVAL_S", 0.0)
    ran = invoke(capsys, *arguments)
    assert ran.out == quiet.out
    assert told in ran.err


def _stopped(real: Any, num_whole: int, *found: RunProgress) -> Any:
    """``real``, of which each run after ``num_whole`` is interrupted after telling ``found``."""
    begun = 0

    def examine(*arguments: Any, progress: SimProgress) -> Any:
        nonlocal begun
        begun += 1
        if begun <= num_whole:
            return real(*arguments, progress=progress)
        for one in found:
            progress(one)
        raise KeyboardInterrupt

    return examine


def test_ctrl_c_leaves_the_policies_that_are_done(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped = _stopped(sim.examine, 1, RunProgress(9.0, 1, 3, 13, 52))
    monkeypatch.setattr(sim, "examine", stopped)
    file = tmp_path / "out.json"
    policies = ("--policy", "fcfs", "--policy", "plas", "--policy", "srpt")
    ran = invoke(capsys, *SMALL, *policies, "--output", str(file))
    assert ran.code == 130
    assert "fcfs" in ran.out
    assert "plas" not in ran.out
    assert "plas: interrupted at 25 % (13 of 52 calls, 1 of 3 programs), 9 s" in ran.err
    assert "srpt" not in ran.err
    assert not file.exists(), "half a comparison is none"


def test_ctrl_c_before_anything_has_ended(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "examine", _stopped(sim.examine, 0))
    ran = invoke(capsys, *SMALL)
    assert (ran.code, ran.out) == (130, "")
    assert "fcfs: interrupted before its first call had ended" in ran.err


def test_ctrl_c_leaves_the_strategies_that_are_done(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = _stopped(sim_nodes.examine_cluster, 1, RunProgress(9.0, 1, 3, 1, 3))
    monkeypatch.setattr(sim_nodes, "examine_cluster", stopped)
    ran = invoke(capsys, *NODES, "--strategy", "data_parallel", "--strategy", "least_used")
    assert ran.code == 130
    assert "data_parallel" in ran.out
    assert "least_used: interrupted at 33 % (1 of 3 requests), 9 s" in ran.err


def test_a_long_log_tells_how_far_it_is(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "events.log"
    record(path, truthful=True)
    monkeypatch.setattr(progress_lines, "INTERVAL_S", 0.0)
    ran = invoke(capsys, "replay", str(path))
    assert "the same actions throughout" in ran.out
    assert ran.err.splitlines() == [
        f"{path}: 1 event, 0 s of the log",
        f"{path}: 2 events, 1 s of the log",
        f"{path}: 3 events, 2 s of the log",
    ]
