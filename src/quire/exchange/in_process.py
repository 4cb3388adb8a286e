"""``KVTransport`` between the engines of one process: for tests, notebooks and embedding."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from quire.core.errors import InvalidArgument, QuireError, TransferFailed
from quire.core.exchange import SendTarget
from quire.core.kv_transport import KVSink, KVSource, SendResult, carried_by
from quire.exchange.agreement import ended_here, is_raw_between, require_size
from quire.exchange.buffers import Buffer
from quire.exchange.leases import Leases
from quire.exchange.limits import ExchangeLimits

logger = logging.getLogger(__name__)

_OPENING_S = ExchangeLimits().opening_s

Job = tuple[SendTarget, KVSource, Callable[[SendResult], None]]


class InProcessExchange:
    """The transports that can reach one another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[str, Leases] = {}

    def join(self) -> InProcessKVTransport:
        """A transport with an address of its own."""
        with self._lock:
            address, leases = f"local:{len(self._leases)}", Leases()
            self._leases[address] = leases
        return InProcessKVTransport(self, address, leases)

    def leave(self, address: str) -> None:
        with self._lock:
            leases = self._leases[address]
        leases.end()

    def at(self, address: str) -> Leases:
        """Raises ``InvalidArgument`` if no engine has that address."""
        with self._lock:
            if address not in self._leases:
                raise InvalidArgument(f"no engine of this process has the address {address!r}")
            return self._leases[address]


class InProcessKVTransport:
    """Implements ``KVTransport``. Sends run one after the other, on a thread; each piece is read
    and written before the next."""

    def __init__(self, exchange: InProcessExchange, address: str, leases: Leases) -> None:
        self._exchange = exchange
        self._address = address
        self._leases = leases
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="quire-exchange", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return self._address

    def accept(self, lease: int, key: bytes, sink: KVSink) -> None:
        self._leases.accept(lease, key, sink)

    def refuse(self, lease: int) -> None:
        self._leases.refuse(lease)

    def send(
        self, target: SendTarget, source: KVSource, on_end: Callable[[SendResult], None]
    ) -> None:
        with self._lock:
            if not self._closed:
                self._jobs.put((target, source, on_end))
                return
        on_end(SendResult(0, ended_here()))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
            self._changed.set()
        self._exchange.leave(self._address)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            target, source, on_end = job
            on_end(self._send(target, source))

    def _send(self, target: SendTarget, source: KVSource) -> SendResult:
        num_bytes, buffer = 0, Buffer()
        try:
            self._wait_for(target)
            sink = self._sink(target, source)
            for piece in source.pieces(is_raw=is_raw_between(source.layout, sink)):
                source.wait(piece)
                if self._closed:
                    raise ended_here()
                sink = self._sink(target, source)
                size = source.num_bytes(piece)
                require_size(sink, piece, size)
                payload = buffer.room(size)
                source.read(piece, payload)
                sink.write(piece, payload, "in_process")
                num_bytes += size
        except QuireError as exc:
            return SendResult(num_bytes, exc, _carrier(num_bytes))
        except Exception as exc:  # of the source
            logger.exception("a send has failed")
            error = TransferFailed(f"K and V cannot be read: {exc!r}")
            return SendResult(num_bytes, error, _carrier(num_bytes))
        return SendResult(num_bytes, None, _carrier(num_bytes))

    def _wait_for(self, target: SendTarget) -> None:
        """Return when the lease is not to come any more, or has not come for too long.

        Raises:
            TransferFailed: this transport was closed meanwhile.
        """
        leases, until_s = self._exchange.at(target.address), time.monotonic() + _OPENING_S
        unwatch = leases.watch(self._changed.set)
        try:
            while leases.is_to_come(target.lease):
                if self._closed:
                    raise ended_here()
                self._changed.wait(max(0.0, until_s - time.monotonic()))
                if time.monotonic() >= until_s:
                    return
                self._changed.clear()
        finally:
            unwatch()

    def _sink(self, target: SendTarget, source: KVSource) -> KVSink:
        leases = self._exchange.at(target.address)
        return leases.sink_of(target.lease, target.key, source.content)


def _carrier(num_bytes: int) -> str:
    return carried_by(("in_process",) if num_bytes else ())
