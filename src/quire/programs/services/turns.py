"""Turns at a service of the node that carries out few requests at a time, such as a store.

Owns the interface alone; the order is the node's.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from quire.programs.services.encoding import CallOrder


class ProgramTurns(Protocol):
    """Of one program, on any loop."""

    def turn(self, order: CallOrder) -> AbstractAsyncContextManager[None]:
        """Entered when it is the request's turn, left when it is answered. Cancelling the wait
        gives the turn up."""
        ...

    def end(self) -> None:
        """The program has ended. Idempotent; for any thread."""
        ...


class FreeTurns:
    """``ProgramTurns`` of a service that takes any number of requests at once."""

    def turn(self, order: CallOrder) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def end(self) -> None:
        """Nothing is held."""
