"""The socket to the node in an engine or encoder process, and the end of that process.

Blocking, because such a process does one thing after another. The sandbox process is asynchronous
and has its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast

import zmq

from quire import __version__
from quire.core.errors import ProtocolMismatch, from_record
from quire.core.wire import PROTOCOL_VERSION, Codec
from quire.node.transports.child_process import LifeLine
from quire.node.transports.messages import Hello, HelloRefused, Welcome
from quire.node.transports.packing import pack, unpack

logger = logging.getLogger(__name__)

EXIT_REFUSED = 4
EXIT_LOAD_FAILED = 5

_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
"""Plain numbers: an operation on flags creates a new enum member, which costs more than the
call."""

_RINGS = 4096
"""Rings that are read at a time. Any that are left end the next wait at once."""

_LAST_WORD_MS = 1000
"""Time in which a last message (``LoadFailed``, ``Faulted``) may still be sent."""

Heard = TypeVar("Heard")


class NodeEndpoint(Protocol):
    """The fields of a launch order that say how to reach the node."""

    @property
    def endpoint(self) -> str: ...

    @property
    def token(self) -> str: ...


class Executing:
    """Whether a batch is running, and since when. Delays the end of the process until the batch is
    done."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self.end_asked = False

    def __enter__(self) -> None:
        self._since_s = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self._since_s = None
        if self.end_asked:
            raise SystemExit(0)

    def busy_s(self) -> float:
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def end_if_asked(self) -> None:
        """End the process if SIGTERM has come and the ``SystemExit`` of its handler was lost, as in
        a finalizer, where Python ignores exceptions."""
        if self.end_asked:
            raise SystemExit(0)

    def on_ignored(self, ignored: sys.UnraisableHookArgs) -> None:
        """Report an exception that Python ignores, as it does by default, unless it only is the end
        that was asked for: ``end_if_asked`` makes up for that one."""
        if not (self.end_asked and issubclass(ignored.exc_type, SystemExit)):
            sys.__unraisablehook__(ignored)

    def over(self) -> None:
        """Note that the process is ending by itself: SIGTERM no longer interrupts it."""
        self.end_asked = True

    def on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        """End at once when idle or loading, else after the running batch. A process that is ending
        already is not interrupted."""
        if not self.end_asked:
            self.end_asked = True
            if self._since_s is None:
                raise SystemExit(0)


class NodeLink(Generic[Heard]):
    """The socket to the node. ``decoder`` reads the node's messages, ``encoder`` writes messages to
    it."""

    def __init__(self, endpoint: str, decoder: Codec[Heard], encoder: Codec[Any]) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.linger = _LAST_WORD_MS
        self._socket.connect(endpoint)
        self._decoder = decoder
        self._encoder = encoder
        self._rung, self._bell = os.pipe()
        os.set_blocking(self._rung, False)
        os.set_blocking(self._bell, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._rung, zmq.POLLIN)

    def say(self, message: Any) -> None:
        self._socket.send(pack(self._encoder.encode(message)))

    @property
    def has_message(self) -> bool:
        return bool(cast(int, self._socket.getsockopt(_EVENTS)) & _POLLIN)

    def ring(self) -> None:
        """End a ``wait`` without a message. From any thread."""
        with contextlib.suppress(BlockingIOError):  # it has rung often enough
            os.write(self._bell, b"\0")

    def wait(self) -> bool:
        """Wait for a message, or for ``ring``; return whether there is a message."""
        if not self.has_message:
            self._poller.poll()
            with contextlib.suppress(BlockingIOError):
                os.read(self._rung, _RINGS)
        return self.has_message

    def hear(self) -> Heard:
        return self._decoder.decode(unpack(self._socket.recv()))

    def rest(self) -> NoReturn:
        """After a last word (``LoadFailed``, ``Faulted``): wait until the node ends the process.

        A process that ended by itself could be gone before its node has read why. SIGTERM, whose
        handler raises ``SystemExit``, ends the wait, as does the end of the node.
        """
        # so that a signal that comes just before the wait ends it
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        try:
            while True:
                if self.wait():
                    self._socket.recv()  # sent before the node had read the word
        finally:
            signal.set_wakeup_fd(-1)

    def shake_hands(self, token: str) -> None:
        """Introduce this process; raise ``ProtocolMismatch`` if either side refuses the other."""
        self.say(Hello(version=PROTOCOL_VERSION, release=__version__, pid=os.getpid(), token=token))
        answer = self.hear()
        if isinstance(answer, HelloRefused):
            raise from_record(answer.error)
        if not isinstance(answer, Welcome):
            raise ProtocolMismatch(f"expected Welcome from the node, got {type(answer).__name__}")

    def close(self) -> None:
        self._socket.close()
        self._context.term()
        os.close(self._bell)
        os.close(self._rung)


def live(
    order: NodeEndpoint,
    lifeline: LifeLine,
    decoder: Codec[Heard],
    encoder: Codec[Any],
    serve: Callable[[NodeLink[Heard], Executing], int],
) -> int:
    """Run the process after its launch order: shake hands, then ``serve``. Return the exit status:
    that of ``serve``, which has sent a last word, or ``EXIT_REFUSED``.

    SIGTERM ends it at once, or after the work that ``serve`` runs under ``Executing``.
    """
    executing = Executing()
    signal.signal(signal.SIGTERM, executing.on_sigterm)
    sys.unraisablehook = executing.on_ignored
    lifeline.answer(executing.busy_s)
    link = NodeLink(order.endpoint, decoder, encoder)
    try:
        link.shake_hands(order.token)
        status = serve(link, executing)
        with contextlib.suppress(SystemExit):
            link.rest()
        return status
    except ProtocolMismatch as exc:
        logger.error("%s", exc)
        return EXIT_REFUSED
    finally:
        executing.over()
        link.close()
