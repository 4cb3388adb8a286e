"""The main module of an engine process: ``python -m quire.node.engines.engine_process``.

Reads its launch order from standard input, shakes hands with the node, loads the model with
progress reports, then executes batch messages in order until it is told to end. It ends by SIGTERM,
when its node is gone, or with the engine's own fault. The node's process never imports this module.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from typing import TypeVar

from quire.core.batch import Batch
from quire.core.config import EncoderConfig, EngineConfig
from quire.core.encoding import EncodeBatch
from quire.core.errors import EngineFault, ModelFormatError, ProtocolMismatch, QuireError
from quire.node.supervision.engine_loading import OnProgress, load_engine
from quire.node.transports.child_link import EXIT_LOAD_FAILED, Executing, NodeLink, live
from quire.node.transports.child_process import LifeLine
from quire.node.transports.in_process import BatchExecutor
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

Config = TypeVar("Config", EngineConfig, EncoderConfig)

_OF_CONTENT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""Errors of the files, which every further attempt to load them raises too; other errors may come
from a shortage."""

Load = Callable[[EngineConfig, OnProgress], BatchExecutor]


def serve(
    link: NodeLink[ToEngine],
    config: Config,
    load: Callable[[Config, OnProgress], BatchExecutor],
    executing: Executing,
) -> int:
    """Load, then execute batches until an exception ends it; returns the exit status."""

    def tell(stage: str, done: float) -> None:
        executing.end_if_asked()
        link.say(Progress(stage=stage, fraction=done))

    try:
        engine = load(config, tell)
    except QuireError as exc:
        link.say(LoadFailed(error=exc.record()))
        return EXIT_LOAD_FAILED
    except _OF_CONTENT as exc:
        logger.exception("loading %s failed", config.source)
        link.say(LoadFailed(error=_unforeseen(config.source, exc).record()))
        return EXIT_LOAD_FAILED
    gc.freeze()  # libraries and model stay in memory: scanning them would stall a step
    try:
        executing.end_if_asked()
        engine.wake_by(link.ring)
        link.say(Ready(info=engine.info))
        while True:
            if not link.wait():
                _transfer(engine, link, executing)
                continue
            batch = link.hear()
            if not isinstance(batch, Batch | EncodeBatch):
                raise ProtocolMismatch(f"expected a Batch, got {type(batch).__name__}")
            with executing:
                link.say(engine.execute(batch))
            _transfer(engine, link, executing)
    except QuireError as exc:
        link.say(Faulted(error=exc.record()))
        return EXIT_FAULT
    except Exception as exc:
        logger.exception("the engine failed; its memory can no longer be trusted")
        link.say(Faulted(error=EngineFault(f"{type(exc).__name__}: {exc}").record()))
        return EXIT_FAULT
    finally:
        engine.close()


def _unforeseen(source: str, exc: Exception) -> ModelFormatError:
    return ModelFormatError(
        f"{source} cannot be loaded ({type(exc).__name__}: {exc}): a file of it is damaged, or of "
        "a form that Quire does not know; download or export it again"
    )


def _transfer(engine: BatchExecutor, link: NodeLink[ToEngine], executing: Executing) -> None:
    """Continue transfers until the next message arrives; at least one step after each message."""
    while True:
        with executing:
            ended = engine.transfer()
            if ended is not None:
                link.say(ended)
        if ended is None or link.has_message:
            return


def main(load: Load = load_engine, lifeline: LifeLine | None = None) -> int:
    """Run the process and return its exit status."""
    lifeline = lifeline or LifeLine()
    order = lifeline.read_order(LaunchOrder)
    return live(
        order,
        lifeline,
        node_codec(),
        engine_codec(),
        lambda link, executing: serve(link, order.config, load, executing),
    )


if __name__ == "__main__":
    sys.exit(main())
