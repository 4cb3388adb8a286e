"""The question that a restartable program asks now, for services that change another program.

What such a service does is recorded as answered at the moment when it is done, not when the answer
has come to the program: a program that begins again in between would have it done twice. Must not
know how a record is kept.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from quire.core.errors import ProgramTerminated


class AskedNow(Protocol):
    """One question in one incarnation of its program. From any thread."""

    @property
    def is_over(self) -> bool:
        """The incarnation ends because another one follows, which asks again what has no answer:
        nothing is to be done for this one any more."""
        ...

    def settle(self, answer: Any) -> None:
        """It is done."""
        ...

    def forget(self) -> None:
        """It was undone, because the program had given up waiting for it."""
        ...


current_question: ContextVar[AskedNow | None] = ContextVar("current_question", default=None)
"""What the running task asks; None if its program keeps no record."""


def check_goes_on(question: AskedNow | None) -> None:
    """Raises ``ProgramTerminated``: see ``is_over``."""
    if question is not None and question.is_over:
        raise ProgramTerminated("the program begins again, and asks this again")
