"""Runs the command line inside the test's process, as a shell would see it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from quire.cli import main


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command left behind."""

    code: int
    out: str
    err: str


def invoke(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    """Run ``quire ARGUMENTS``; the output captured before is dropped."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    code = ended.value.code
    return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)
