"""Collects the rows of a message that could not be executed; the others are executed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quire.core.batch_result import RowFailure
from quire.core.errors import EngineFault, QuireError


class RowFailures:
    """Failures of one message, in the order in which they were found."""

    def __init__(self) -> None:
        self.rows: list[RowFailure] = []

    def add(self, stage: str, index: int, error: QuireError) -> None:
        """``stage``: the field of ``Batch`` that contains the row."""
        self.rows.append(RowFailure(stage=stage, index=index, error=error.record()))

    @contextmanager
    def isolate(self, stage: str, index: int) -> Iterator[None]:
        """A request error inside becomes the row's failure; engine faults pass."""
        try:
            yield
        except EngineFault:
            raise
        except QuireError as exc:
            self.add(stage, index, exc)


def check_message(condition: bool, what: str) -> None:
    """Check that a message does not contradict itself: such a contradiction is not a row's failure,
    the peer is broken.

    Raises:
        EngineFault: ``condition`` is false.
    """
    if not condition:
        raise EngineFault(f"malformed batch message: {what}; control and engine disagree")
