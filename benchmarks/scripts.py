"""Runs scripts one after the other with one command: which there are, and what each is given.

Each runs in a process of its own, so that no server stays for the next. A script that fails is
reported at the end, after the others have run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.options import DEFAULT_OUT


@dataclass(frozen=True, slots=True)
class Script:
    """One script. ``shows``: which part of the paper. ``options``: those of the command that it
    takes, besides ``--out`` and ``--quick``. ``quick``: what it is given with ``--quick``.
    ``folder``: below ``benchmarks``, if it is another one than the command's."""

    shows: str
    options: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    folder: str | None = None


def scripts_parser(description: str | None, scripts: Mapping[str, Script]) -> Any:
    """Return a parser of the options of every such command."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--only", nargs="+", choices=scripts, default=list(scripts))
    made.add_argument("--quick", action="store_true", help="short runs, for a quick try")
    made.add_argument("--out", type=Path, default=DEFAULT_OUT, help="default: %(default)s")
    return made


def command_of(folder: Path, name: str, script: Script, arguments: Any) -> list[str]:
    place = folder if script.folder is None else folder.parent / script.folder
    command = [sys.executable, str(place / f"{name}.py"), "--out", str(arguments.out)]
    if arguments.quick:
        command += ["--quick", *script.quick]
    for option in script.options:
        value = getattr(arguments, option)
        if value:
            command += [f"--{option}", *_words(value)]
    return command


def _words(value: object) -> Sequence[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def run_scripts(folder: Path, scripts: Mapping[str, Script], arguments: Any) -> None:
    """Run the scripts that ``--only`` names.

    Raises:
        SystemExit: one or more of them failed.
    """
    failed = []
    for name in arguments.only:
        label = f"{folder.name}/{name}"
        print(f"{label}: {scripts[name].shows}", file=sys.stderr, flush=True)
        began_s = time.perf_counter()
        command = command_of(folder, name, scripts[name], arguments)
        status = subprocess.run(command, check=False).returncode
        print(f"{label}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr, flush=True)
        if status:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")
