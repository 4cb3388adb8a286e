"""The question that a restartable program asks now, for services that change another program.

Such a service has its question recorded as answered at the moment when the change is made, not when
the answer has come to the program: a program that begins again in between would have the change
made twice. Must not know how a record is kept.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from quire.core.errors import ProgramTerminated


class AskedNow(Protocol):
    """One question in one incarnation of its program. Its methods may be called from any thread."""

    @property
    def is_over(self) -> bool:
        """Whether the incarnation ends because another one follows, which asks again what has no
        answer: nothing may be done for this one any more."""
        ...

    def settle(self, answer: Any) -> None:
        """Record ``answer``: what was asked for is done."""
        ...

    def forget(self) -> None:
        """Remove the answer: what was done was undone, because the program had stopped waiting for
        it."""
        ...


current_question: ContextVar[AskedNow | None] = ContextVar("current_question", default=None)
"""The question that the running task asks; None if its program keeps no record."""


def check_goes_on(question: AskedNow | None) -> None:
    """Raise ``ProgramTerminated`` if the incarnation of ``question`` is over."""
    if question is not None and question.is_over:
        raise ProgramTerminated("the program begins again, and asks this again")
