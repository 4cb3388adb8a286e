"""The only module of this layer that imports the real engine, and with it torch. It does so late: a
node with engine processes must not load torch itself, and an engine process greets the node
first.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.core.config import EngineConfig
from quire.core.interfaces import EngineCore
from quire.exchange import TcpTransport

OnProgress = Callable[[str, float], None]
"""``(stage, fraction from 0 to 1)``."""


def load_engine(config: EngineConfig, on_progress: OnProgress) -> EngineCore:
    """The engine that ``config`` describes, ready to execute. Blocks while it loads.

    Raises:
        ModelError: the model directory cannot be served.
        ConfigError: the configuration does not fit this machine.
    """
    on_progress("starting", 0.0)
    from quire.engine.engine import Engine

    address, has_nixl = config.data_address, config.kv_transport == "nixl"
    engine = Engine(
        config,
        lambda done, total: on_progress("loading weights", done / total),
        transport=None if address is None else TcpTransport(address, has_nixl=has_nixl),
    )
    engine.start_grammars()
    on_progress("ready", 1.0)
    return engine
