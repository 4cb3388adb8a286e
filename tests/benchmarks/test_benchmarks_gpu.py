"""The script for a device keeps what it has measured, whatever fails."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"
MODULES = ("measure", "models", "outcome", "peers", "run", "shapes")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``benchmarks/gpu/run.py`` with the modules beside it, as when it is started as a script."""
    known = {name: sys.modules.pop(name, None) for name in MODULES}
    monkeypatch.syspath_prepend(str(FOLDER))
    yield import_module("run")
    for name, module in known.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


def options(**changes: Any) -> argparse.Namespace:
    values = {"models": ["a", "b", "c"], "no_peer": True, "smoke": True}
    return argparse.Namespace(**{**values, **changes})


def read(folder: Path) -> Any:
    return json.loads((folder / "gpu.json").read_text())


def test_a_model_that_fails_does_not_end_the_run(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def measure(name: str, *rest: Any) -> list[Any]:
        if name == "b":
            raise RuntimeError("CUDA error: no kernel image")
        if name == "c":
            seen.append(read(tmp_path))  # what a run that is cut off here leaves
        return [run.GpuMeasurement(name, "decode step", 1, 2.0, 0.5, peer_ms=5.0)]

    monkeypatch.setattr(run, "bandwidth", lambda *rest: 4.8e12)
    monkeypatch.setattr(run, "product_rate", lambda *rest: 7e14)
    monkeypatch.setattr(run, "measure_model", measure)
    outcome = run.GpuOutcome(tmp_path)
    shapes: dict[str, Any] = {"a": {}, "b": {}, "c": {}}
    run.measure_all(outcome, options(), run.SMOKE_SETTING, shapes, run.TimeBudget(60))
    (before,) = seen
    assert [line["model"] for line in before["lines"]] == ["a"]
    assert "no kernel image" in before["failures"]["b"]
    after = read(tmp_path)
    assert [line["model"] for line in after["lines"]] == ["a", "c"]
    assert after["bytes_per_s"] == 4.8e12
    table = (tmp_path / "gpu.md").read_text()
    assert "| a | decode step | 1 | 2.000 | 50% |  | 5.00 | 2.5 |" in table
    assert "b failed: `RuntimeError: CUDA error: no kernel image`" in table


def test_tests_that_take_too_long_leave_their_output(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_ends(command: Any, *, stdout: Any = None, **rest: Any) -> Any:
        if "pytest" not in command:
            return subprocess.CompletedProcess(command, 0, "abc", "")
        stdout.write("two.. of many\n")
        stdout.flush()
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(subprocess, "run", never_ends)
    outcome = run.GpuOutcome(tmp_path)
    run.run_tests(outcome, 1)
    assert outcome.tests == "cut off after 1 s (two.. of many)"
    assert read(tmp_path)["tests"] == outcome.tests
