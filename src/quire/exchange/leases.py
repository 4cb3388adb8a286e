"""The leases that a transport accepts tokens for, and who may send to them."""

from __future__ import annotations

import secrets
import threading

from quire.core.errors import Forbidden, InvalidArgument
from quire.core.kv_transport import KVSink


class Leases:
    """Sinks by lease. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sinks: dict[int, tuple[bytes, KVSink]] = {}

    def accept(self, lease: int, key: bytes, sink: KVSink) -> None:
        with self._lock:
            self._sinks[lease] = key, sink

    def refuse(self, lease: int) -> None:
        with self._lock:
            self._sinks.pop(lease, None)

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
