"""What a word on the command line names: a program of the node, or code that is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cli.programs.code import request_code
from quire.core.program_files import files_of

MAIN = "from quire.programs.sdk import inferlet\n"


@pytest.mark.parametrize("word", [".", "..", "./", "agent/"])
def test_a_word_that_can_only_be_a_folder_is_one(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, tmp_path / "here", tmp_path / "here" / "agent"):
        folder.mkdir(exist_ok=True)
        (folder / "main.py").write_text(MAIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    assert files_of(request_code(word)["source"])["main.py"] == MAIN


def test_a_plain_word_is_a_name_that_the_node_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent").mkdir()
    monkeypatch.chdir(tmp_path)
    assert request_code("agent") == {"program": "agent"}
