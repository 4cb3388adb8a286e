"""``KVTransport`` between the engines of one process: for tests, notebooks and embedding."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from quire.core.errors import InvalidArgument, QuireError, TransferFailed
from quire.core.exchange import SendTarget
from quire.core.kv_transport import KVSink, KVSource, SendResult, carried_by
from quire.exchange.agreement import ended_here, is_raw_between, require_size
from quire.exchange.buffers import Buffer
from quire.exchange.leases import Leases

logger = logging.getLogger(__name__)

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
            self._leases[address] = Leases()

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
        self._exchange.leave(self._address)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            target, source, on_end = job
            on_end(self._send(target, source))

    def _send(self, target: SendTarget, source: KVSource) -> SendResult:
        num_bytes, buffer = 0, Buffer()
        try:
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

    def _sink(self, target: SendTarget, source: KVSource) -> KVSink:
        leases = self._exchange.at(target.address)
        return leases.sink_of(target.lease, target.key, source.content)


def _carrier(num_bytes: int) -> str:
    return carried_by(("in_process",) if num_bytes else ())
