"""Scripts that no test runs (benchmarks, tools, training) name only what the package has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from docs_markdown import ROOT

FOLDERS = ("benchmarks", "examples", "tools", "training")


def scripts() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if ".cache" not in path.parts)


def imported(script: Path) -> Iterator[tuple[str, str]]:
    """(module, name) for each name that ``script`` takes from the package."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "quire":
            yield from ((node.module or "", alias.name) for alias in node.names)


def test_there_are_scripts() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in scripts()} == set(FOLDERS)


@pytest.mark.parametrize("script", scripts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_imports_what_there_is(script: Path) -> None:
    for module, name in imported(script):
        if not hasattr(import_module(module), name):
            import_module(f"{module}.{name}")  # a module of a package
