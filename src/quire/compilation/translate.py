"""The mypyc step of a build: modules to C. Runs in a process of its own.

mypyc is written for setup scripts: it prints, exits when a source is wrong, and patches setuptools.
Reads a ``TranslationOrder`` as JSON from stdin and writes a ``Translation`` as JSON to the file
that the order names. Module names are relative to the working directory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

MYPY_SETTINGS = """
[mypy]
cache_dir = /dev/null
follow_imports = silent
ignore_missing_imports = True
"""
"""Written to the working directory, where mypy looks for settings first."""


class TranslationOrder(msgspec.Struct, frozen=True):
    """``target``: the output folder. ``answer``: the file for the ``Translation``."""

    files: list[str]
    target: str
    answer: str
    optimisation: str


class Translation(msgspec.Struct, frozen=True):
    """C files to compile into one library, and how. ``group``: see ``LibraryRecord``."""

    group: str
    mypy: str
    sources: list[str]
    include_folders: list[str]
    arguments: list[str]


def translate(order: TranslationOrder) -> Translation:
    import setuptools  # noqa: F401  mypyc asks whether it was imported
    from mypy.version import __version__
    from mypyc.build import mypycify

    Path("mypy.ini").write_text(MYPY_SETTINGS, encoding="utf-8")
    extensions: list[Any] = mypycify(
        order.files,
        opt_level=order.optimisation,
        debug_level="0",
        multi_file=True,
        target_dir=order.target,
    )
    shared, *shims = extensions
    return Translation(
        group=shared.name,
        mypy=__version__,
        sources=[*shared.sources, str(_joined(shims, Path(order.target)))],
        include_folders=list(shared.include_dirs),
        # warnings of compilers that mypyc does not know must not fail the build
        arguments=[one for one in shared.extra_compile_args if one != "-Werror"],
    )


def _joined(shims: list[Any], folder: Path) -> Path:
    """One C file with the entry points through which Python reaches each module of the shared part.

    Each entry file defines the same second function, for setup scripts on Windows; it is renamed
    here.
    """
    text = "".join(
        f'#define PyInit___init__ quire_unused_{number}\n#include "{source}"\n'
        "#undef PyInit___init__\n"
        for number, shim in enumerate(shims)
        for source in shim.sources
    )
    path = folder / "shims.c"
    path.write_text(text, encoding="utf-8")
    return path


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=TranslationOrder)
    Path(order.answer).write_bytes(msgspec.json.encode(translate(order)))


if __name__ == "__main__":
    main()
