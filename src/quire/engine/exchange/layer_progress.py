"""The progress of a forward, for sends of its K and V while it runs.

A runner counts the layers whose K and V are written; the data plane's thread waits for them. Counts
go on from forward to forward, so that no waiting thread can miss one.
"""

from __future__ import annotations

import threading
from typing import Protocol, runtime_checkable

from quire.core.errors import TransferFailed


class LayerProgress(Protocol):
    """A count of layers. Both methods may be called from any thread."""

    def reach(self, count: int) -> None:
        """Raise the count to ``count``, if it is lower."""
        ...

    def wait(self, count: int) -> None:
        """Return when the count is at least ``count``."""
        ...


@runtime_checkable
class LayerCounter(Protocol):
    """A runner that counts its layers."""

    def new_progress(self) -> LayerProgress: ...

    def watch(self, progress: LayerProgress | None, base: int) -> None:
        """Let ``progress`` reach ``base + n`` in the next forwards when the K and V of the first
        ``n`` layers are written. None: no progress is counted."""
        ...


class ThreadProgress:
    """``LayerProgress`` of runners in Python."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def reach(self, count: int) -> None:
        with self._changed:
            self._count = max(self._count, count)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count)


class ForwardGate:
    """One message's forward, as its sends see it: layers ``base`` to ``base + num_layers`` of
    ``progress``, and one count more, the end of the message.

    The last layer is sent only after that end: a row that the message could not compute never
    becomes a complete lease.
    """

    def __init__(self, progress: LayerProgress, base: int, num_layers: int) -> None:
        self._progress = progress
        self._base = base
        self._num_layers = num_layers
        self.has_ended = False
        self._has_failed = False

    @property
    def next_base(self) -> int:
        return self._base + self._num_layers + 1

    def end(self, *, has_failed: bool = False) -> None:
        """The message has ended. Idempotent."""
        if not self.has_ended:
            self._has_failed = has_failed
            self.has_ended = True
            self._progress.reach(self.next_base)

    def wait(self, num_layers: int) -> None:
        """Wait until K and V of the first ``num_layers`` layers may be read.

        Raises:
            TransferFailed: the engine has failed meanwhile.
        """
        is_last = num_layers >= self._num_layers
        self._progress.wait(self.next_base if is_last else self._base + num_layers)
        if self._has_failed:
            raise TransferFailed("the engine failed while it computed what was to be sent")
