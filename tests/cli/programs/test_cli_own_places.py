"""Which names in an error of a node become those of the file that was sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cli.programs.own_places import own_places, with_own_places
from quire.core.errors import ProgramFailed

TRACEBACK = """program 'a' raised ValueError: not uploaded.py
  File "uploaded.py", line 3, in a
  File "/unpacked/uploaded.py", line 4, in b
  File "the uploaded source", line 5, in c
  File "uploaded.py/tools/late.py", line 6, in d
  File "/usr/lib/json.py", line 7, in loads
SyntaxError: expected ':' (uploaded.py, line 8)"""


def test_lines_of_the_code_are_lines_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.touch()
    told = with_own_places(TRACEBACK, str(file)).splitlines()
    assert told[0].endswith("not uploaded.py")
    assert [line.rpartition("line")[0] for line in told[1:4]] == [f'  File "{file}", '] * 3
    assert f'File "{file}/tools/late.py"' in told[4]
    assert told[5] == '  File "/usr/lib/json.py", line 7, in loads'
    assert told[6] == f"SyntaxError: expected ':' ({file}, line 8)"


def test_the_lines_of_a_folder_are_lines_of_its_main_file(tmp_path: Path) -> None:
    told = with_own_places(TRACEBACK, f"{tmp_path}/").splitlines()
    assert [line.rpartition("line")[0] for line in told[1:4]] == [
        f'  File "{tmp_path}/main.py", '
    ] * 3
    assert f'File "{tmp_path}/tools/late.py"' in told[4]
    assert told[6] == f"SyntaxError: expected ':' ({tmp_path}/main.py, line 8)"


def test_a_program_of_the_node_has_no_file_here() -> None:
    assert with_own_places(TRACEBACK, "no-such-program") == TRACEBACK


def test_the_error_itself_is_changed(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed) as raised, own_places(str(tmp_path)):
        raise ProgramFailed(TRACEBACK, figure=1)
    assert f'File "{tmp_path}/tools/late.py"' in str(raised.value)
    assert raised.value.details == {"figure": 1}
