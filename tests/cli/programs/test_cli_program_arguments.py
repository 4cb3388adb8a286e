"""What stands behind ``--`` of ``quire run``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_invoke import invoke

from quire.cli.programs.arguments import GivenArguments, require_values, split
from quire.core.errors import InvalidArgument
from quire.programs.parameters import Parameter

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
        (
            ["--loud", "--n", "5"],
            GivenArguments([], {"loud": "true", "n": "5"}, alone=("loud",)),
        ),
        (["--loud"], GivenArguments([], {"loud": "true"}, alone=("loud",))),
        (["--n", "-5"], GivenArguments([], {"n": "-5"})),
        (
            ["--loud", "--", "--n", "5"],
            GivenArguments(["--n", "5"], {"loud": "true"}, alone=("loud",)),
        ),
        (["--- a rule", "-x", "-- no"], GivenArguments(["--- a rule", "-x", "-- no"], {})),
        (["--help"], GivenArguments([], {}, help=True)),
        (["a", "--help"], GivenArguments(["a"], {"help": "true"}, alone=("help",))),
    ],
)
def test_names_and_places(texts: Sequence[str], given: GivenArguments) -> None:
    assert split(texts) == given


def test_a_name_is_given_once() -> None:
    with pytest.raises(InvalidArgument, match="--n was given twice"):
        split(["--n", "1", "--n=2"])


KINDS = [
    Parameter("text", "text"), Parameter("max_tokens", "integer"), Parameter("heat", "number"),
    Parameter("loud", "boolean"), Parameter("items", "json"),
    Parameter("mode", "text", choices=("true", "false")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("text", "--text has no value: give text, --text VALUE"),
        ("max_tokens", "--max_tokens has no value: give an integer, --max_tokens VALUE"),
        ("max-tokens", "--max-tokens has no value: give an integer, --max-tokens VALUE"),
        ("heat", "--heat has no value: give a number, --heat VALUE"),
        ("loud", None),
        ("items", None),
        ("mode", None),
        ("unknown", None),
    ],
)
def test_a_name_without_a_value_is_told(word: str, told: str | None) -> None:
    """What may be true alone is, and what the program does not have is its own refusal."""
    given = split(["x", f"--{word}"])
    if told is None:
        require_values(given, KINDS)
    else:
        with pytest.raises(InvalidArgument) as refused:
            require_values(given, KINDS)
        assert refused.value.message == told
    require_values(given, None)
    require_values(split(["x", f"--{word}=true"]), KINDS)


@pytest.mark.parametrize("url", [False, True])
def test_a_program_gets_no_text_that_nobody_gave(
    url: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], shipped_server: str
) -> None:
    there = ("--url", shipped_server) if url else ()
    ran = invoke(capsys, "run", "text_completion", *there, "--", "Hello", "--max-tokens")
    assert ran.code == 2
    assert "--max-tokens has no value: give an integer" in ran.err


def test_a_program_shows_its_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shown.py"
    path.write_text(PROGRAM, encoding="utf-8")
    result = invoke(capsys, "run", str(path), "--", "--help")
    assert result.code == 0
    assert "Says a text." in result.out
    assert f"usage: quire run {path} -- TEXT [N]" in result.out
    assert "How often: an integer" in result.out
