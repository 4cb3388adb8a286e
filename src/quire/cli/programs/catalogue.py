"""``quire run --list``: the programs that can be run by name, by theme."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quire.cli.console import escaped, output, table
from quire.programs.library import LIBRARY, summary_of, theme_of


class CatalogueRow(NamedTuple):
    """One line of the list."""

    theme: str
    name: str
    summary: str


def shipped() -> list[CatalogueRow]:
    """Return the library of this installation, in the order of its catalogue."""
    return [CatalogueRow(theme_of(name), name, summary_of(LIBRARY[name])) for name in LIBRARY]


def show(rows: Iterable[CatalogueRow]) -> None:
    listed = table("theme", "program", "what it shows", wrap=("what it shows",))
    theme = ""
    for row in rows:
        listed.add_row("" if row.theme == theme else row.theme, row.name, escaped(row.summary))
        theme = row.theme
    output().print(listed)
