"""What ``quire serve`` does before it starts a node. Import it before the node's modules: the form
of control is chosen when this one is read."""

from __future__ import annotations

from quire.cli.compiled_control import choose_form
from quire.core.interpreter import collect_seldom, take_short_turns

choose_form()


def prepare_interpreter() -> None:
    take_short_turns()
    collect_seldom()
