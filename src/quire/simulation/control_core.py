"""The part of control that a virtual-time shell needs."""

from __future__ import annotations

from typing import Protocol

from quire.core.actions import Action
from quire.core.events import Event


class ControlCore(Protocol):
    """The part of ``quire.control.Controller`` that the shell uses."""

    def handle(self, event: Event) -> list[Action]: ...

    def check_invariants(self) -> None: ...
