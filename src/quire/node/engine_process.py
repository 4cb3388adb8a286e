"""What runs in an engine process: ``python -m quire.node.engine_process``.

Reads its launch order from standard input, shakes hands with the node, loads the model with
progress reports, then executes batches in order until it is told to end. It ends by SIGTERM, when
its node goes away, or with the engine's own fault. The node's process never imports this module.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from io import RawIOBase
from types import FrameType
from typing import BinaryIO

import msgspec
import zmq

from quire import __version__
from quire.core.batch import Batch
from quire.core.config import EngineConfig
from quire.core.errors import EngineFault, ProtocolMismatch, QuireError, from_record
from quire.core.interfaces import EngineCore
from quire.core.wire import PROTOCOL_VERSION
from quire.node.child_process import (
    EXIT_NODE_GONE,
    answer_heartbeats,
    die_with_parent,
    take_stdin,
    take_stdout,
)
from quire.node.engine_loading import OnProgress, load_engine
from quire.node.transports.messages import (
    Faulted,
    FromEngine,
    Hello,
    LaunchOrder,
    LoadFailed,
    Progress,
    Ready,
    Refused,
    ToEngine,
    Welcome,
    engine_codec,
    node_codec,
)
from quire.node.transports.packing import pack, unpack

logger = logging.getLogger(__name__)

EXIT_REFUSED = 4
EXIT_LOAD_FAILED = 5
EXIT_FAULT = 6

Load = Callable[[EngineConfig, OnProgress], EngineCore]


class Executing:
    """Whether a batch is running, and since when. Guards it from the end of the process."""

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

    def on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        """At once when idle or loading, else behind the batch at hand."""
        self.end_asked = True
        if self._since_s is None:
            raise SystemExit(0)


class NodeLink:
    """The child's end of the socket."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.linger = 1000  # a last word (LoadFailed, Faulted) should still go out
        self._socket.connect(endpoint)
        self._decoder = node_codec()
        self._encoder = engine_codec()

    def say(self, message: FromEngine) -> None:
        self._socket.send(pack(self._encoder.encode(message)))

    def hear(self) -> ToEngine:
        return self._decoder.decode(unpack(self._socket.recv()))

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def shake_hands(link: NodeLink, order: LaunchOrder) -> None:
    """Raises ``ProtocolMismatch`` when either side refuses the other."""
    link.say(
        Hello(version=PROTOCOL_VERSION, release=__version__, pid=os.getpid(), token=order.token)
    )
    answer = link.hear()
    if isinstance(answer, Refused):
        raise from_record(answer.error)
    if not isinstance(answer, Welcome):
        raise ProtocolMismatch(f"expected Welcome from the node, got {type(answer).__name__}")


def serve(link: NodeLink, order: LaunchOrder, load: Load, executing: Executing) -> int:
    """Load, then execute batches until an exception ends it; returns the exit status."""
    try:
        engine = load(
            order.config, lambda stage, done: link.say(Progress(stage=stage, fraction=done))
        )
    except QuireError as exc:
        link.say(LoadFailed(error=exc.record()))
        return EXIT_LOAD_FAILED
    gc.freeze()  # libraries and the model stay: looking through them again would stall a step
    try:
        link.say(Ready(info=engine.info))
        while True:
            batch = link.hear()
            if not isinstance(batch, Batch):
                raise ProtocolMismatch(f"expected a Batch, got {type(batch).__name__}")
            with executing:
                link.say(engine.execute(batch))
    except QuireError as exc:
        link.say(Faulted(error=exc.record()))
        return EXIT_FAULT
    except Exception as exc:
        logger.exception("the engine failed; its memory can no longer be trusted")
        link.say(Faulted(error=EngineFault(f"{type(exc).__name__}: {exc}").record()))
        return EXIT_FAULT
    finally:
        engine.close()


def run(order: LaunchOrder, lifeline: RawIOBase, answers: BinaryIO, load: Load) -> int:
    """A whole life behind the launch order; returns the exit status."""
    executing = Executing()
    signal.signal(signal.SIGTERM, executing.on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node decides when its engines end
    threading.Thread(
        target=answer_heartbeats, args=(lifeline, answers, executing.busy_s), daemon=True
    ).start()
    link = NodeLink(order.endpoint)
    try:
        shake_hands(link, order)
        return serve(link, order, load, executing)
    except ProtocolMismatch as exc:
        logger.error("%s", exc)
        return EXIT_REFUSED
    finally:
        link.close()


def main() -> int:
    die_with_parent()
    lifeline, answers = take_stdin(), take_stdout()
    line = lifeline.readline()
    if not line:
        return EXIT_NODE_GONE
    order = msgspec.json.decode(line, type=LaunchOrder)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    return run(order, lifeline, answers, load_engine)


if __name__ == "__main__":
    sys.exit(main())
