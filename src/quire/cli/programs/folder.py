"""A folder on this machine as a trusted program, which runs in this process."""

from __future__ import annotations

import sys
from pathlib import Path

from quire.client.folder import check_pure, walk
from quire.core.errors import InvalidArgument
from quire.core.program_files import MAIN, check_files, module_parts
from quire.programs.inferlet import Inferlet, load_inferlet


def load_folder(folder: Path) -> Inferlet:
    """Load the program in ``folder`` as a trusted one: its ``main.py``, which imports its other
    modules as under ``python main.py``; its requirements must be installed.

    Raises:
        InvalidArgument: see ``quire.client.folder.files_in`` and ``load_inferlet``.
    """
    folder = folder.resolve()
    own = {path.relative_to(folder).as_posix(): "" for path in walk(folder) if path.suffix == ".py"}
    check_files(own)
    for name in sorted({module_parts(path)[0] for path in own if path != MAIN}):
        if name in sys.modules:
            raise InvalidArgument(
                f"{folder} has a module {name!r}, and another one of this name is loaded already: "
                "rename it, or run it with --sandbox"
            )
    wheels = sorted(path for path in walk(folder) if path.suffix == ".whl")
    for wheel in wheels:
        check_pure(wheel)
    sys.path[:0] = [str(folder), *map(str, wheels)]
    return load_inferlet(folder / MAIN, folder=folder)
