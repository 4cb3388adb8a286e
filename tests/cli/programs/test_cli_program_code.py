"""What a word on the command line names: a program of the node, or code that is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cli.programs.code import program_here, request_code
from quire.core.program_files import files_of

MAIN = "from quire.programs.sdk import inferlet\n"


def unasked() -> bool:
    raise AssertionError("the node need not be asked")


@pytest.mark.parametrize("word", [".", "..", "./", "agent/"])
def test_a_word_that_can_only_be_a_folder_is_one(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, tmp_path / "here", tmp_path / "here" / "agent"):
        folder.mkdir(exist_ok=True)
        (folder / "main.py").write_text(MAIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    assert files_of(request_code(word, unasked)["source"])["main.py"] == MAIN


def test_a_plain_word_is_a_name_that_the_node_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert request_code("agent", unasked) == {"program": "agent"}
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "main.py").write_text(MAIN, encoding="utf-8")
    assert request_code("agent", lambda: True) == {"program": "agent"}
    assert "the folder of this name is agent/" in capsys.readouterr().err


def test_a_plain_word_is_a_folder_here_if_the_node_does_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "main.py").write_text(MAIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert files_of(request_code("agent", lambda: False)["source"])["main.py"] == MAIN


def test_a_program_of_the_library_comes_before_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "react").mkdir()
    monkeypatch.chdir(tmp_path)
    assert request_code("react", unasked) == {"program": "react"}


def test_only_python_code_is_loaded_here_for_its_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = MAIN + '\n\n@inferlet()\nasync def own(api):\n    """Of its own."""\n'
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "main.py").write_text(program, encoding="utf-8")
    (tmp_path / "own.py").write_text(program, encoding="utf-8")
    (tmp_path / "own.wasm").write_bytes(b"\0asm")
    monkeypatch.chdir(tmp_path)
    for word in ("agent", "agent/", "own.py"):
        found = program_here(word)
        assert found is not None, word
        assert found.description == "Of its own.", word
    assert program_here("react") is not None
    assert program_here("own.wasm") is None
    assert program_here("nobody") is None
