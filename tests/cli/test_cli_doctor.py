"""``quire doctor``: what is reported, and what counts as missing."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from cli_invoke import invoke
from rich.console import Console

from quire.cli.doctor import PURPOSES, problems, report
from quire.cli.machine import Extra, Machine, TorchBuild, inspect_machine
from quire.core.errors import ModelNotFound

MACHINE = Machine(
    quire="0.1.0",
    python="3.11.7",
    system="Linux x86_64",
    processor="Some CPU",
    cpu_features=("avx2", "fma"),
    num_cores=2,
    memory_bytes=8 << 30,
    free_memory_bytes=4 << 30,
    compiler=None,
    control="compiled: 50 modules",
    torch=TorchBuild("2.13.0", "AVX2", 2, "12.8", ["Some GPU"], ["top_k"], {"old": "too old"}),
    extras=(Extra("bench", ("matplotlib",), ("matplotlib",)), Extra("dev", ("pytest",), ())),
)


def _text(machine: Machine) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(report(machine, problems(machine)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_report_names_everything_found() -> None:
    text = _text(MACHINE)
    for found in (
        "3.11.7",
        "Some CPU",
        "2 usable cores",
        "avx2 fma",
        "8 GiB",
        "none found",
        "50 modules",
    ):
        assert found in text
    for found in ("2.13.0", "CUDA 12.8", "Some GPU, cpu", "missing matplotlib", "top_k"):
        assert found in text
    assert re.search(r"dev .* installed", text)
    assert "ready" in text
    assert "old is refused: too old" in text


def test_of_many_missing_packages_some_are_named() -> None:
    lacking = tuple(f"package-{number}" for number in range(20))
    text = _text(dataclasses.replace(MACHINE, extras=(Extra("dev", lacking, lacking),)))
    assert "missing package-0, package-1, package-2, package-3 and 16 more" in text


def test_the_remedy_names_the_pip_of_this_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv/bin/python"))
    monkeypatch.setattr("quire.cli.doctor.which", lambda name: "/usr/bin/pip")
    monkeypatch.chdir(tmp_path)
    assert "to install one: .venv/bin/python -m pip install 'quire[bench]'" in _text(MACHINE)
    monkeypatch.setattr("quire.cli.doctor.which", lambda name: str(tmp_path / ".venv/bin/pip"))
    assert "to install one: pip install 'quire[bench]'" in _text(MACHINE)
    complete = dataclasses.replace(MACHINE, extras=(Extra("dev", ("pytest",), ()),))
    assert "pip install" not in _text(complete)


def test_a_broken_torch_is_a_problem() -> None:
    broken = dataclasses.replace(MACHINE, torch="importing it fails: OSError: libgomp")
    assert problems(broken) == ["torch: importing it fails: OSError: libgomp"]
    text = _text(broken)
    assert "missing: torch: importing it fails" in text
    assert "ready" not in text


def test_a_missing_model_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(source: str) -> str:
        raise ModelNotFound(f"no {source}: install quire again")

    monkeypatch.setattr("quire.cli.doctor.resolve_source", missing)
    assert problems(MACHINE) == ["no quire-mini: install quire again"]


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    ran = invoke(capsys, "doctor", "--json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["problems"] == []
    assert found["num_cores"] >= 1
    assert found["torch"]["version"].startswith("2.")
    assert {"temperature", "top_k", "dry"} <= set(found["torch"]["processors"])
    assert {extra["name"] for extra in found["extras"]} == set(PURPOSES)


def test_extras_are_those_of_the_package() -> None:
    extras = {extra.name: extra for extra in inspect_machine().extras}
    assert extras["dev"].missing == ()
    assert "pytest" in extras["dev"].packages
