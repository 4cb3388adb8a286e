"""``quire replay`` on logs that are equal, cut off, diverging, or no logs at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_invoke import invoke

from quire.core.actions import SetTimer
from quire.core.config import EngineConfig, NodeConfig
from quire.core.events import ProgramStarted, Tick
from quire.core.ids import ModelId, ProgramId, TenantId
from quire.node.control.control_factory import make_controller
from quire.node.control.recorder import EventRecorder

Capture = pytest.CaptureFixture[str]

CONFIG = NodeConfig((EngineConfig(source="x", name=ModelId("x")),))
_INVENTED = SetTimer(at_s=9.0)
EVENTS = (
    Tick(time_s=1.0),
    ProgramStarted(
        time_s=2.0, program=ProgramId(1), tenant=TenantId("default"), form="inferlet", name="p"
    ),
    Tick(time_s=3.0),
)


def record(path: Path, *, truthful: bool) -> None:
    """A log of three events; an untruthful one claims an action that control never took."""
    controller = make_controller(CONFIG.scheduler, CONFIG.tenants)
    recorder = EventRecorder(path, CONFIG)
    for event in EVENTS:
        actions = controller.handle(event)
        recorder.observe(event, actions if truthful else [*actions, *actions, _INVENTED])
    recorder.close()


def test_a_log_that_replays_equal(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    record(path, truthful=True)
    ran = invoke(capsys, "replay", str(path))
    assert ran.code == 0
    assert "3 events" in ran.out
    assert "the same actions throughout" in ran.out
    assert "cut off" not in ran.out


def test_a_log_that_was_cut_off(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    record(path, truthful=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    ran = invoke(capsys, "replay", str(path))
    assert ran.code == 0
    assert "2 events" in ran.out
    [num_cut] = re.findall(r"cut off: its last (\d+) bytes", ran.out)
    path.write_bytes(whole[: -3 - int(num_cut)])  # all that was left out
    assert "cut off" not in invoke(capsys, "replay", str(path)).out


def test_the_first_difference_is_named(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    record(path, truthful=False)
    ran = invoke(capsys, "replay", str(path))
    assert ran.code == 1
    assert "differs at event 0, time 1.000000 s" in ran.out
    assert "Tick" in ran.out


def test_no_log_at_all(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    path.write_bytes(b"")
    ran = invoke(capsys, "replay", str(path))
    assert ran.code == 2
    assert "no event log of Quire: name a file that --record" in " ".join(ran.err.split())
