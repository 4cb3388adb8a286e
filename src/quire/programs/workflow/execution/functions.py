"""Calls functions that a developer has given to an application: tools, and growths."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quire.core.errors import ProgramError, QuireError
from quire.programs.tracebacks import one_line
from quire.programs.workflow.components.building import DONE_MARK
from quire.programs.workflow.template.function_threads import FunctionThreads

_LIBRARIES = (
    *{sysconfig.get_path(one) + os.sep for one in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parents[3]) + os.sep,
)
"""The folders of Python's, of installed and of Quire's modules."""


async def called(
    component: str,
    name: str,
    functions: Mapping[str, Callable[..., Any]],
    inputs: Mapping[str, Any],
    threads: FunctionThreads,
) -> Any:
    """Call the function ``name``. A plain function runs on one of ``threads``: it may block.

    Raises:
        ProgramError: it has raised an error that is not one of Quire's, or has called ``sys.exit``.
    """
    given = {name: one for name, one in inputs.items() if not name.startswith(DONE_MARK)}
    function = functions[name]
    try:
        if inspect.iscoroutinefunction(function):
            return await function(**given)
        return await threads.run(function, **given)
    except QuireError:
        raise
    except (Exception, SystemExit) as exc:
        raise _raised(component, name, exc) from exc


def _raised(component: str, name: str, error: Exception | SystemExit) -> ProgramError:
    """Make an error that names the component and the line that raised ``error``, or called the
    library that did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not one.filename.startswith(_LIBRARIES)]
    frame = (own or frames)[-1]
    return ProgramError(
        f"{component}: its function {name!r} raised {one_line(error)} "
        f"({Path(frame.filename).name}, line {frame.lineno}): correct the function or its inputs"
    )
