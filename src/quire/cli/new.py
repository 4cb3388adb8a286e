"""``quire new``: creates a program, its test and a README from one of three templates.

Owns the check of names. The templates are files of ``quire/assets/scaffold``, in which ``$name`` is
replaced by the name.
"""

from __future__ import annotations

import ast
import re
import sys
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword, issoftkeyword
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import typer

from quire.cli.console import output
from quire.core.errors import InvalidArgument
from quire.programs import library

TemplateName = Literal["completion", "decoding", "agent"]

MAX_NAME_CHARS = 64
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PROGRAM, _TEST, _PAGE = "program.py.in", "test_program.py.in", "README.md.in"


def new(
    name: Annotated[str, typer.Argument(help="The program's name: lower case, like a function.")],
    template: Annotated[
        TemplateName, typer.Option(help="The template to start from.")
    ] = "completion",
    directory: Annotated[
        Path, typer.Option(help="Directory in which the folder is created.")
    ] = Path(),
) -> None:
    """Create a program: a folder with NAME.py, a test that passes at once, and a README.md.

    Templates: 'completion' answers and streams; 'decoding' chooses every token by its own rule;
    'agent' calls Python functions until it has an answer. Existing files are not overwritten.

    Examples:

        quire new my_agent --template agent
    """
    folder = directory / name
    if _NAME.fullmatch(name) and folder.exists():
        raise InvalidArgument(f"{folder} exists already: choose another name, or remove it first")
    texts = scaffold(name, template)
    try:
        folder.mkdir(parents=True)
    except OSError as exc:
        raise InvalidArgument(f"{folder} cannot be made: {exc}") from exc
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    console = output()
    for file in texts:
        console.print(str(folder / file))
    console.print(f"next: cd {folder} && python -m pytest  (pip install pytest, if it is missing)")


def scaffold(name: str, template: TemplateName) -> dict[str, str]:
    """Return the files of a new program by name.

    Raises:
        InvalidArgument: ``name`` cannot be this program's name; the message says why.
    """
    source = files("quire") / "assets" / "scaffold" / template
    texts = {file: (source / file).read_text(encoding="utf-8") for file in (_PROGRAM, _TEST, _PAGE)}
    used = _names_used(texts[_PROGRAM]) | _names_used(texts[_TEST])
    if (fault := _fault(name, template, used)) is not None:
        raise InvalidArgument(f"{name!r} cannot be the program's name: {fault}")
    filled = {file: Template(text).substitute(name=name) for file, text in texts.items()}
    return {
        f"{name}.py": filled[_PROGRAM],
        f"test_{name}.py": filled[_TEST],
        "README.md": filled[_PAGE],
    }


def _fault(name: str, template: str, used: set[str]) -> str | None:
    """Return the problem with ``name``, or ``None``."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        return (
            "it must begin with a lower-case letter and go on with lower-case letters, digits and "
            f"underscores, at most {MAX_NAME_CHARS} characters"
        )
    if iskeyword(name) or issoftkeyword(name):
        return "it is a keyword of Python"
    if name.startswith("test_"):
        return "pytest would take the program for a test"
    if name in library.LIBRARY:
        return f"'quire run {name}' is a program of the library"
    if name in used:
        return f"the template {template!r} uses that name for something else"
    if name in sys.stdlib_module_names or find_spec(name) is not None:
        return f"'import {name}' means another module"
    return None


def _names_used(template_text: str) -> set[str]:
    """Return every name that occurs in a template's code, except the program's own."""
    used: set[str] = set()
    for node in ast.walk(ast.parse(Template(template_text).substitute(name="the_program"))):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.alias(name=name):
                used.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                used.add(name)
    return used
