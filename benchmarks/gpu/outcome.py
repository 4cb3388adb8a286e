"""Keeps what a run on a device leaves behind: files that are complete after every model, so that a
run that is cut off or fails keeps what it has measured.

``gpu.json``: everything, for machines. ``gpu.md``: the table, for people. ``tests.txt``: the output
of the tests that take a device.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "tests/engine/cuda/test_cuda_gpu.py",
    "tests/engine/sampling/test_sampling_cuda.py",
    "tests/engine/cuda",
)
"""First those that need a device, then those that take one where there is one."""
PACKAGES = ("torch", "triton", "flashinfer-python", "transformers", "numpy", "pytest")


@dataclass
class GpuMeasurement:
    """One line of the table. ``share`` of the limit that was reached; ``peer_ms``: transformers'
    time."""

    model: str
    what: str
    batch: int
    ms: float
    share: float | None = None
    note: str = ""
    peer_ms: float | None = None


@dataclass
class GpuOutcome:
    """``limits``: bytes per second read, and operations per second of bf16 products, both None
    until measured. ``failures``: what could not be measured, and its traceback. ``tests``: what the
    tests that need a device came to."""

    folder: Path
    limits: tuple[float, float] | None = None
    lines: list[GpuMeasurement] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    tests: str = "not run"

    def failed(self, what: str) -> None:
        """Keep the exception that is being handled; the run goes on without ``what``."""
        self.failures[what] = traceback.format_exc()
        print(f"{what} failed:\n{self.failures[what]}", file=sys.stderr)
        self.write()

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        values = {
            "device": device_name(),
            "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}",
            "commit": _commit(),
            "python": platform.python_version(),
            "versions": {package: _version(package) for package in PACKAGES},
            "cuda": torch.version.cuda,
            "bytes_per_s": self.limits and self.limits[0],
            "operations_per_s": self.limits and self.limits[1],
            "lines": [asdict(line) for line in self.lines],
            "left_out": self.left_out,
            "failures": self.failures,
            "tests": self.tests,
        }
        (self.folder / "gpu.json").write_text(json.dumps(values, indent=1), encoding="utf-8")
        (self.folder / "gpu.md").write_text(self.table(), encoding="utf-8")

    def table(self) -> str:
        """Return a Markdown table with device, date, versions and results."""
        versions = ", ".join(f"{package} {_version(package)}" for package in PACKAGES[:4])
        limits = "its limits were not measured"
        if self.limits is not None:
            limits = (
                f"measured in this run: reads {self.limits[0] / 1e12:.2f} TB/s, bf16 products "
                f"{self.limits[1] / 1e12:.0f} TFLOP/s"
            )
        rows = [
            f"## {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {device_name()}, "
            f"commit {_commit()}",
            "",
            f"{versions}; {limits}. Tests that need a device: {self.tests}.",
            "",
            "| model | what | batch | ms | share of the limit | | transformers, ms "
            "| times as fast |",
            "|---|---|---|---|---|---|---|---|",
            *(_row(line) for line in self.lines),
        ]
        if self.left_out:
            rows += ["", f"Left out for lack of time: {'; '.join(self.left_out)}."]
        for what, trace in self.failures.items():
            rows += ["", f"{what} failed: `{trace.strip().splitlines()[-1][:300]}`."]
        return "\n".join(rows) + "\n"


def run_tests(outcome: GpuOutcome, seconds: float) -> None:
    """Run the tests that take a device, with their output in ``tests.txt``, and keep how they
    ended."""
    if find_spec("pytest") is None:
        outcome.tests = "pytest is not installed"
        return
    outcome.folder.mkdir(parents=True, exist_ok=True)
    options = ["-v", "-p", "no:cacheprovider", "--maxfail=20", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *options, *TESTS]
    with (outcome.folder / "tests.txt").open("w", encoding="utf-8") as output:
        try:
            done = subprocess.run(
                command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, timeout=seconds
            )
            ended = "passed" if done.returncode == 0 else f"ended with status {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"cut off after {seconds:.0f} s"
    outcome.tests = f"{ended} ({_last_line(outcome.folder / 'tests.txt')})"
    outcome.write()


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()


def _row(line: GpuMeasurement) -> str:
    share = "" if line.share is None else f"{line.share:.0%}"
    peer = "" if line.peer_ms is None else f"{line.peer_ms:.2f}"
    ratio = "" if line.peer_ms is None else f"{line.peer_ms / line.ms:.1f}"
    cells: tuple[Any, ...] = (
        *(line.model, line.what, line.batch, f"{line.ms:.3f}", share, line.note, peer, ratio),
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip("= ")[:200] if lines else "no output"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
