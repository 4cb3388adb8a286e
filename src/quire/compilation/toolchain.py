"""The C compiler that this Python was built with, or another one on the path.

Owns command lines and their errors. Does not know what is compiled.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from quire.core.errors import ConfigError

COMPILERS = ("cc", "gcc", "clang")


def problem_of_compiler() -> str | None:
    """The tool that is missing to compile for this Python, with its remedy; None if none is."""
    if os.name != "posix":
        return "modules are compiled on Linux and macOS alone; Python runs them here as they are"
    if _compiler() is None:
        return (
            "no C compiler is on the path: install one (Debian and Ubuntu: apt install gcc; "
            "macOS: the command line tools of Xcode)"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return f"{header} is missing: install Python's headers (Debian and Ubuntu: python3-dev)"
    return None


def compile_all(
    sources: Sequence[Path],
    target: Path,
    include_folders: Sequence[Path],
    arguments: Sequence[str],
    on_progress: Callable[[float], None],
) -> list[Path]:
    """Compile one object file per source, on as many cores as this process may use.

    Raises:
        ConfigError: the compiler rejected a source; contains its message.
    """
    target.mkdir()
    folders = [sysconfig.get_path("include"), sysconfig.get_path("platinclude"), *include_folders]
    command = [
        *(_compiler() or COMPILERS[:1]),
        *_words("CFLAGS"),
        *_words("CCSHARED"),
        *(f"-I{folder}" for folder in folders),
        *arguments,
        "-c",
    ]
    objects = [target / f"{number}.o" for number in range(len(sources))]
    with ThreadPoolExecutor(_num_usable_cores()) as threads:
        running = [
            threads.submit(_run, [*command, str(source), "-o", str(made)], source.name)
            for source, made in zip(sources, objects, strict=True)
        ]
        try:
            for number, one in enumerate(as_completed(running), 1):
                one.result()
                on_progress(number / len(running))
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return objects


def link(objects: Sequence[Path], target: Path) -> None:
    """Link ``objects`` into an extension module. Raises ``ConfigError``."""
    given, own = _words("LDSHARED"), _words("CC")
    options = given[len(own) :] if given[: len(own)] == own else given[1:]
    linker = [*(_compiler() or COMPILERS[:1]), *options]
    _run([*linker, *map(str, objects), "-o", str(target)], target.name)


def _compiler() -> list[str] | None:
    """The start of its command line: the compiler that Python was built with, if it is
    installed."""
    for candidate in (_words("CC"), *([name] for name in COMPILERS)):
        if candidate and shutil.which(candidate[0]):
            return candidate
    return None


def _words(variable: str) -> list[str]:
    return shlex.split(sysconfig.get_config_var(variable) or "")


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        said = done.stderr.strip()[-2000:] or f"status {done.returncode}"
        raise ConfigError(f"the C compiler {command[0]} has failed on {what}: {said}")


def _num_usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
