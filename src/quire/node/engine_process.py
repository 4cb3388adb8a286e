"""What runs in an engine process: ``python -m quire.node.engine_process``.

Reads its launch order from standard input, shakes hands with the node, loads the model with
progress reports, then executes batches in order until it is told to end. It ends by SIGTERM, when
its node goes away, or with the engine's own fault. The node's process never imports this module.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
import threading
from collections.abc import Callable
from io import RawIOBase
from typing import BinaryIO

import msgspec

from quire.core.batch import Batch
from quire.core.config import EngineConfig
from quire.core.errors import EngineFault, ProtocolMismatch, QuireError
from quire.core.interfaces import EngineCore
from quire.node.child_link import EXIT_LOAD_FAILED, EXIT_REFUSED, Executing, NodeLink
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
    LaunchOrder,
    LoadFailed,
    Progress,
    Ready,
    ToEngine,
    engine_codec,
    node_codec,
)

logger = logging.getLogger(__name__)

EXIT_FAULT = 6

Load = Callable[[EngineConfig, OnProgress], EngineCore]


def serve(link: NodeLink[ToEngine], order: LaunchOrder, load: Load, executing: Executing) -> int:
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
    link = NodeLink(order.endpoint, node_codec(), engine_codec())
    try:
        link.shake_hands(order.token)
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
