"""A developer's file is loaded as it is now, however quickly it was edited."""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec
from pathlib import Path

import pytest

from quire.core.errors import InvalidArgument
from quire.programs.inferlet import load_inferlet
from quire.programs.source_file import source_spec

PROGRAM = """\
from quire.programs import inferlet


@inferlet(stores=["%s"])
async def main(api):
    return 1
"""


def test_an_edit_of_the_same_size_and_second_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "program.py"
    for name in ("one", "two"):
        file.write_text(PROGRAM % name, encoding="utf-8")
        os.utime(file, (1_700_000_000, 1_700_000_000))
        assert load_inferlet(file).capabilities.stores == (name,)
    assert [one.name for one in tmp_path.iterdir()] == ["program.py"]


def test_a_module_knows_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("here = __file__\n", encoding="utf-8")
    spec = source_spec("mine", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.here == str(file)


def test_another_file_is_none(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("", encoding="utf-8")
    assert source_spec("mine", file) is None
    with pytest.raises(InvalidArgument, match=r"its name must end in \.py"):
        load_inferlet(file)
