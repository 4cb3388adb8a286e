"""Chooses the transport of a node's engines. Must not know what an engine's process does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quire.core.config import EngineConfig
from quire.core.interfaces import EngineTransport
from quire.node.supervision.engine_loading import load_engine
from quire.node.supervision.supervisor import TransportFactory
from quire.node.transports.in_process import InProcessTransport
from quire.node.transports.zeromq import ZeroMQTransport


def choose_transport(
    engine_process: bool, given: Callable[[EngineConfig], EngineTransport] | None
) -> TransportFactory:
    """``given`` if there is one, else a process per engine, or an engine in this process."""
    if given is not None:
        return lambda config, on_progress, engine: given(config)
    if engine_process:
        return lambda config, on_progress, engine: ZeroMQTransport(config, on_progress, name=engine)
    return lambda config, on_progress, engine: InProcessTransport(
        config.name, partial(load_engine, config, on_progress)
    )
