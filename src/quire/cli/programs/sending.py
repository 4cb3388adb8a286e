"""What is shown while a running node takes code: that it checks the code, and the stages of its
sandbox, which a node builds for the first code that it gets.

The node answers only when it has checked the code, so the stages are read from ``/health``. Must
not know which request is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Protocol, Self

from quire.cli.console import waiting

_INTERVAL_S = 1.0
"""Real time between two requests for the stage."""


class StageReader(Protocol):
    """A client of the node, for one thread."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: Any, error: Any, traceback: Any, /) -> None: ...

    def sandbox_stage(self) -> str:
        """What the sandbox that starts is doing, or an empty text."""
        ...


class SentTo(Protocol):
    """The node that gets the code."""

    def another(self) -> StageReader: ...


@contextmanager
def sending(node: SentTo, program: object, interval_s: float = _INTERVAL_S) -> Iterator[None]:
    """Show that ``node`` checks ``program``, and each stage of its sandbox, while the block runs.

    ``program``: the name of a file or folder, for the message.
    """
    over = Event()
    with waiting(f"the node checks {program}") as show:
        reading = Thread(
            target=_read, args=(node, show, over, interval_s), name="quire-stages", daemon=True
        )
        reading.start()
        try:
            yield
        finally:
            over.set()
            reading.join()


def _read(node: SentTo, show: Callable[[str], None], over: Event, interval_s: float) -> None:
    shown = ""
    with node.another() as reader:
        while not over.wait(interval_s):
            stage = reader.sandbox_stage()
            if stage and stage != shown and not over.is_set():
                shown = stage
                show(stage)
