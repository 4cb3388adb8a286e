"""The exit status of a command that follows a program to its end.

Every command that shows a program's end uses it, so that a script reads the same status from each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from quire.cli.console import print_error
from quire.cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from quire.core.errors import (
    DeadlineExceeded,
    ProgramCancelled,
    ProgramFailed,
    ProgramTerminated,
)


@contextmanager
def status_of_end() -> Iterator[None]:
    """Print the error with which a program has ended, and exit with the status of that end.

    Raises:
        typer.Exit: the program was cancelled, has failed or was ended by the node. Other errors
            are not the program's and pass.
    """
    try:
        yield
    except ProgramCancelled as exc:
        print_error(exc)
        raise typer.Exit(EXIT_INTERRUPTED) from exc
    except (ProgramFailed, ProgramTerminated, DeadlineExceeded) as exc:
        print_error(exc)
        raise typer.Exit(EXIT_FAILED) from exc
