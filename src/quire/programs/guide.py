"""Writes the guide to the library from the programs themselves (``make docs``).

``python -m quire.programs.guide > docs/guide/library.md``. Every technique's module docstring is
its section: a title, how to run it, what it does, a picture. A test compares the page with what
this module makes now.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from textwrap import dedent

from quire.programs.inferlet import Inferlet
from quire.programs.library import LIBRARY, THEMES, summary_of

_INTRODUCTION = """\
# The library

Generated from the programs by `python -m quire.programs.guide`; do not edit.

Each technique is one short file under `src/quire/programs/library/`, made to be read, run, copied
and changed. `quire run --list` names them; `quire run NAME -- ARGUMENTS` starts a node with the
shipped model and runs one, and with `--url` it runs on a node that is there. The same files run in
the [sandbox](sandbox.md). Inside a program a technique is a function: import it from its module and
give it a `Context`.

In the pictures `[ ]` is a page, and in tables of who sees whom `#` is seen, `.` is not.

## What they are made of

| of the SDK | what it does |
|---|---|
| `Context.generate` | a whole loop in one command: samplers, grammars, stops |
| `Context.next_dist`, `next_dists` | one forward pass; the distributions behind its last tokens |
| `steps(ctx, n)` | the next distribution, again and again; the loop's body fills what it chose |
| `verify(ctx, guess)` | as much of a guess as greedy decoding would have said, and one token more |
| `Context.fork`, `join`, `truncate` | share the pages of a text, put texts together, go back |
| `Context.evict` | tokens that nobody sees any more; their pages go back to the pool |
| `Context.forget` | a part of the text goes, what stands behind it moves up in its place |
| `StreamingWindow` | `forget` whenever the window is full: any number of tokens |
| `sees(query, key)` | which tokens a forward pass sees, as a function of two positions |
| `quire.programs.sdk.dists` | arithmetic on distributions |
"""

_TABLE = """\
## What each needs

The traits stand in the program's manifest and are checked when it is launched. Those that a trait
is built on are not repeated: Decode has Forward, Sample and OutputText with it, Tokenize has
InputText.

| program | what it does | traits |
|---|---|---|"""


def guide() -> str:
    """The whole page as Markdown."""
    parts = [_INTRODUCTION]
    for theme, names in THEMES.items():
        parts += [f"## {theme.capitalize()}", "", *(_section(name) for name in names)]
    rows = [_row(name, program) for name, program in LIBRARY.items()]
    return "\n".join([*parts, _TABLE, *rows, ""])


def _section(name: str) -> str:
    title, _, text = _docstring(LIBRARY[name]).partition("\n\n")
    title = " ".join(title.replace("``", "`").split()).removesuffix(".")
    return "\n".join([f"### {title}", "", *markdown(text)])


def _docstring(program: Inferlet) -> str:
    module = inspect.getmodule(program.main)
    return inspect.cleandoc((module and module.__doc__) or "")


def markdown(text: str, literal: str = "text") -> Iterator[str]:
    """A docstring's lines: indented ones are commands, or behind ``::`` in the language
    ``literal``, such as a picture."""
    language = "bash"
    for block in re.split(r"\n\n(?=\S)|(?<=\S)\n\n", text):
        if block.endswith("::"):
            language = literal
            if introduction := block.removesuffix("::"):
                yield from [f"{introduction}:".replace("``", "`"), ""]
        elif block.startswith("    "):
            yield from [f"```{language}", *dedent(block).splitlines(), "```", ""]
            language = "bash"
        else:
            yield from [block.replace("``", "`"), ""]


def _row(name: str, program: Inferlet) -> str:
    traits = ", ".join(sorted(program.traits)) or "see its text"
    return f"| `{name}` | {summary_of(program)} | {traits} |".replace("``", "`")


if __name__ == "__main__":
    sys.stdout.write(guide())
