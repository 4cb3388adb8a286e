"""Turns at a service of the node that runs few requests at a time, such as a store.

Owns the interface alone; the node decides the order.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from quire.programs.services.encoding import CallOrder


class ProgramTurns(Protocol):
    """The turns of one program, on any loop."""

    def turn(self, order: CallOrder) -> AbstractAsyncContextManager[None]:
        """A context that is entered when it is the request's turn and left when it is answered.
        Cancelling the wait gives up the turn."""
        ...

    def end(self) -> None:
        """Note that the program has ended. Idempotent; for any thread."""
        ...


class FreeTurns:
    """``ProgramTurns`` of a service that takes any number of requests at once."""

    def turn(self, order: CallOrder) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def end(self) -> None:
        """Do nothing: no turn is held."""
