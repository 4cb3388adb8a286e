"""``quire compile``: compile the control core to machine code, for nodes that are started
afterwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.compiled_control import (
    DIRECTORY_VARIABLE,
    compiled_directory,
    form_of,
    form_of_nodes,
)
from quire.cli.console import output
from quire.cli.exit_codes import EXIT_FAILED
from quire.cli.loading import loading_progress
from quire.compilation import CONTROL, remove_libraries
from quire.compilation.building import build
from quire.core.errors import InvalidArgument


def compile(
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Build nothing; exit with status 1 if a node would run Python."
        ),
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete everything that was compiled.")
    ] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            envvar=DIRECTORY_VARIABLE,
            help="Directory of the compiled code; set the variable so that nodes find it. "
            "Default: ~/.cache/quire/compiled.",
        ),
    ] = None,
) -> None:
    """Compile the control layer to machine code: each call and token then takes less processor
    time.

    The parts of the simulator that run for each message are compiled with it. Needs a C compiler
    and the extra 'quire[compile]'; takes half a minute on two cores. Nodes that are started
    afterwards use the compiled code. After an update of Quire or Python, or an edit of a source
    file, nodes run Python again until you repeat this command. With QUIRE_COMPILED=0 in its
    environment a node always runs Python. 'quire doctor' shows which of the two a node would run.

    Examples:

        quire compile

        quire compile --check

        quire compile --remove
    """
    if check and remove:
        raise InvalidArgument("--check and --remove exclude one another: give one of them")
    target = directory or compiled_directory()
    if remove:
        count = remove_libraries(CONTROL, target)
        output().print(f"removed {count} compiled {'form' if count == 1 else 'forms'} in {target}")
    elif check:
        form = form_of_nodes(target)
        output().print(f"control is {form}")
        if not form.is_compiled:
            raise typer.Exit(EXIT_FAILED)
    else:
        with loading_progress() as progress:
            built = build(CONTROL, target, progress)
        output().print(f"control is {form_of(built)}")
        output().print(f"in {built.path}; nodes that are started from now on use it")
