"""The leases that a transport accepts tokens for, and who may send to them.

Owns which leases are still to come: control numbers them, and an engine opens its own in that
order, so a number above all that were accepted is not open yet. A sender may be told of a lease
while the message that opens it is on its way to the engine.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from math import inf

from quire.core.errors import Forbidden, InvalidArgument
from quire.core.kv_transport import KVSink


class Leases:
    """Sinks by lease. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sinks: dict[int, tuple[bytes, KVSink]] = {}
        self._newest: float = 0
        self._rings: dict[object, Callable[[], None]] = {}

    def accept(self, lease: int, key: bytes, sink: KVSink) -> None:
        with self._lock:
            self._sinks[lease] = key, sink
        self._come(lease)

    def refuse(self, lease: int) -> None:
        with self._lock:
            self._sinks.pop(lease, None)

    def end(self) -> None:
        """Forget all: no lease is to come any more."""
        with self._lock:
            self._sinks.clear()
        self._come(inf)

    def _come(self, newest: float) -> None:
        with self._lock:
            self._newest = max(self._newest, newest)
            rings = list(self._rings.values())
        for ring in rings:
            ring()

    def is_to_come(self, lease: int) -> bool:
        """Whether ``lease`` was not accepted yet, and no later one either."""
        with self._lock:
            return lease > self._newest

    def watch(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Call ``ring`` when a lease is accepted from here on, and at the end, on any thread, until
        the function that is returned is called."""
        watcher = object()
        with self._lock:
            self._rings[watcher] = ring

        def end() -> None:
            with self._lock:
                self._rings.pop(watcher, None)

        return end

    def sink_of(self, lease: int, key: bytes, content: str) -> KVSink:
        """The sink of ``lease``, for a sender that knows its key and has the same K and V.

        Raises:
            Forbidden: no such lease, or another key; a sender is not told which.
            InvalidArgument: the sender's K and V are others.
        """
        with self._lock:
            known, sink = self._sinks.get(lease, (b"", None))
        if not secrets.compare_digest(known, key) or sink is None:
            raise Forbidden(
                f"lease {lease} is not open here, or was opened with another key: it has expired, "
                "was cancelled or is complete; prepare another one"
            )
        if sink.content != content:
            raise InvalidArgument(
                f"the sender's K and V are {content[:12]}, those of lease {lease} are "
                f"{sink.content[:12]}: weights, number type, quantisation and served length must "
                "be equal on both engines"
            )
        return sink
