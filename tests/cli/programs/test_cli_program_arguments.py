"""What stands behind ``--`` of ``quire run``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_invoke import invoke

from quire.cli.programs.arguments import GivenArguments, split
from quire.core.errors import InvalidArgument

PROGRAM = '''
from typing import Annotated
from quire.programs.sdk import inferlet

@inferlet()
async def shown(api, text, n: Annotated[int, "How often."] = 3):
    """Says a text.

    Again and again.
    """
    return [text] * n
'''


@pytest.mark.parametrize(
    ("texts", "given"),
    [
        ([], GivenArguments([], {})),
        (["a", "--n", "5", "b"], GivenArguments(["a", "b"], {"n": "5"})),
        (["--n=5", "--text=a\nb"], GivenArguments([], {"n": "5", "text": "a\nb"})),
        (["--loud", "--n", "5"], GivenArguments([], {"loud": "true", "n": "5"})),
        (["--loud"], GivenArguments([], {"loud": "true"})),
        (["--n", "-5"], GivenArguments([], {"n": "-5"})),
        (["--loud", "--", "--n", "5"], GivenArguments(["--n", "5"], {"loud": "true"})),
        (["--- a rule", "-x", "-- no"], GivenArguments(["--- a rule", "-x", "-- no"], {})),
        (["--help"], GivenArguments([], {}, help=True)),
        (["a", "--help"], GivenArguments(["a"], {"help": "true"})),
    ],
)
def test_names_and_places(texts: Sequence[str], given: GivenArguments) -> None:
    assert split(texts) == given


def test_a_name_is_given_once() -> None:
    with pytest.raises(InvalidArgument, match="--n was given twice"):
        split(["--n", "1", "--n=2"])


def test_a_program_shows_its_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shown.py"
    path.write_text(PROGRAM, encoding="utf-8")
    result = invoke(capsys, "run", str(path), "--", "--help")
    assert result.code == 0
    assert "Says a text." in result.out
    assert f"usage: quire run {path} -- TEXT [N]" in result.out
    assert "How often: an integer" in result.out
