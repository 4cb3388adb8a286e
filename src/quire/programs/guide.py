"""Generates the guide to the library from the programs themselves (``make docs``).

``python -m quire.programs.guide docs/guide/library-answers.json >
docs/guide/library.md``. The module docstring of each technique is its section: a title, how to run
it, what it does, a picture. Each command is followed by its answer with the shipped model, from the
JSON file, which ``tools/library_answers.py`` writes. A test compares the page with the output of
this module.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

from quire.programs.inferlet import Inferlet
from quire.programs.library import LIBRARY, THEMES, summary_of

_INTRODUCTION = """\
# The library

Generated from the programs by `python -m quire.programs.guide`; do not edit.

Each technique is one short file under `src/quire/programs/library/`, made to be read, run, copied
and changed. `quire run --list` names them; `quire run NAME -- ARGUMENTS` starts a node with the
shipped model and runs one; with `--url` it runs on an existing node. The same files run in the
[sandbox](sandbox.md). Inside a program a technique is a function: import it from its module and
give it a `Context`.

Each command is followed by its answer with the shipped model. The answer includes what the
technique gains: pages, steps or tokens that it saves, or a result that plain greedy decoding does
not find. Where a program has `--compare`, `plain` is the output of greedy decoding for the same
prompt; it costs a second generation, so it is computed only on request.

All programs of the library are [restartable](restarting.md): if their engine is lost they go on
from their record, and when a node is drained they move to another one. Their answers stay the same;
figures that tell what was cached or how long something took are those of the restarted run.
`modular_caching` and `movable_modules` stay at a node that is drained, because they export pages by
name. If a module that another program has exported is lost with the engine they end with an error
that says so; launch them again.

In the pictures `[ ]` is a page. In attention masks `#` is a visible token, `.` a hidden one.

## Building blocks

| of the SDK | what it does |
|---|---|
| `Context.generate` | a whole loop in one command: samplers, grammars, stops |
| `Context.next_dist`, `next_dists` | one forward pass; the distributions after its last tokens |
| `steps(ctx, n)` | the next distribution, step by step; the loop's body fills its choice |
| `verify(ctx, guess)` | the part of a guess that greedy decoding confirms, and one more token |
| `Context.fork`, `join`, `truncate` | share the pages of a text, concatenate texts, go back |
| `Context.evict` | hides tokens from all later ones; empty pages return to the pool |
| `Context.forget` | removes a part of the text; later tokens move up to its positions |
| `StreamingWindow` | calls `forget` whenever the window is full: text of any length |
| `sees(query, key)` | which tokens a forward pass attends to, as a function of two positions |
| `quire.programs.sdk.dists` | arithmetic on distributions |
"""

_TABLE = """\
## Required traits

A program's manifest names the traits, which are checked when it is launched. Traits that another
trait includes are not listed: Decode includes Forward, Sample and OutputText, Tokenize includes
InputText.

| program | what it does | traits |
|---|---|---|"""


Answers = Mapping[str, Any]
"""The answers to the commands of the page, by command."""


def guide(answers: Answers) -> str:
    """The whole page as Markdown."""
    parts = [_INTRODUCTION]
    for theme, names in THEMES.items():
        parts += [f"## {theme.capitalize()}", "", *(_section(name, answers) for name in names)]
    rows = [_row(name, program) for name, program in LIBRARY.items()]
    return "\n".join([*parts, _TABLE, *rows, ""])


def commands(name: str) -> list[str]:
    """The command lines in the docstring of a program."""
    return [
        command
        for block in _blocks(_docstring(LIBRARY[name]))
        if block.startswith("    quire run ")
        for command in _split(dedent(block))
    ]


def _split(block: str) -> list[str]:
    return [part.rstrip() for part in re.split(r"(?m)^(?=quire run )", block) if part]


def _section(name: str, answers: Answers) -> str:
    title, _, text = _docstring(LIBRARY[name]).partition("\n\n")
    title = " ".join(title.replace("``", "`").split()).removesuffix(".")
    shown = list(markdown(text))
    end = shown.index("```") + 2  # the first block is the command
    told = [line for command in commands(name) for line in _answer(command, answers)]
    return "\n".join([f"### {title}", "", *shown[:end], *told, *shown[end:]])


def _answer(command: str, answers: Answers) -> list[str]:
    if command not in answers:
        return []
    answer = answers[command]
    if isinstance(answer, str):
        return ["```text", *answer.splitlines(), "```", ""]
    return ["```json", *json.dumps(answer, indent=2, ensure_ascii=False).splitlines(), "```", ""]


def _docstring(program: Inferlet) -> str:
    module = inspect.getmodule(program.main)
    return inspect.cleandoc((module and module.__doc__) or "")


def markdown(text: str, literal: str = "text") -> Iterator[str]:
    """Convert a docstring to Markdown. Indented blocks are commands, or after ``::`` text in the
    language ``literal``, such as a picture."""
    language = "bash"
    for block in _blocks(text):
        if block.endswith("::"):
            language = literal
            if introduction := block.removesuffix("::"):
                yield from [f"{introduction}:".replace("``", "`"), ""]
        elif block.startswith("    "):
            yield from [f"```{language}", *dedent(block).splitlines(), "```", ""]
            language = "bash"
        else:
            yield from [block.replace("``", "`"), ""]


def _blocks(text: str) -> list[str]:
    """Paragraphs and the indented blocks between them."""
    return re.split(r"\n\n(?=\S)|(?<=\S)\n\n", text)


def _row(name: str, program: Inferlet) -> str:
    traits = ", ".join(sorted(program.traits)) or "see its section"
    return f"| `{name}` | {summary_of(program)} | {traits} |".replace("``", "`")


if __name__ == "__main__":
    sys.stdout.write(guide(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
