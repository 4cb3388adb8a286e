"""The exit status of a command that follows a program to its end."""

from __future__ import annotations

import pytest
import typer

from quire.cli.programs.end import status_of_end
from quire.core.errors import (
    DeadlineExceeded,
    ProgramCancelled,
    ProgramFailed,
    ProgramTerminated,
    QuireError,
    UnknownHandle,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ProgramCancelled("by its client"), 130),
        (ProgramFailed("it raised"), 1),
        (ProgramTerminated("the node is stopping"), 1),
        (DeadlineExceeded("5 s are over"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_end_of_a_program_has_its_status(
    error: QuireError, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as raised, status_of_end():
        raise error
    assert raised.value.exit_code == status
    assert error.message in capsys.readouterr().err


def test_an_error_that_is_not_the_programs_passes() -> None:
    with pytest.raises(UnknownHandle), status_of_end():
        raise UnknownHandle("no such program")
