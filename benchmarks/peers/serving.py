"""Takes the start-up steps that ``quire serve`` takes before it starts a node. Import this before
the node's modules, because importing it chooses the form of control."""

from __future__ import annotations

from quire.cli.compiled_control import choose_form
from quire.core.interpreter import collect_seldom, take_short_turns

choose_form()


def prepare_interpreter() -> None:
    take_short_turns()
    collect_seldom()
