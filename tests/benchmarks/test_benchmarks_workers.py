"""Workers, which run in environments of their own, name only what the files beside them have."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
MODULES = {path.stem: path for path in FOLDER.glob("*.py")}


def taken_from_beside(script: Path) -> Iterator[tuple[str, str]]:
    """(module, name) for each name that ``script`` takes from a file of its folder."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield from ((node.module, alias.name) for alias in node.names)


def defined(script: Path) -> set[str]:
    names = set()
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_there_are_workers() -> None:
    assert {name for name in MODULES if name.endswith("_worker")} >= {"quire_worker", "vllm_worker"}


@pytest.mark.parametrize("script", MODULES.values(), ids=lambda path: path.name)
def test_a_script_takes_what_there_is(script: Path) -> None:
    missing = [
        f"{module}.{name}"
        for module, name in taken_from_beside(script)
        if name not in defined(MODULES[module])
    ]
    assert not missing
