"""Decides whether an engine exchanges K and V with others."""

from __future__ import annotations

import logging

from quire.core.config import EngineConfig
from quire.core.kv_transport import KVTransport
from quire.engine.exchange.exchange import EngineExchange, NoExchange
from quire.engine.exchange.layer_progress import LayerCounter
from quire.engine.exchange.pool_exchange import PoolExchange
from quire.engine.kv_cache.token_form import TokenPool
from quire.engine.loading import LoadedModel
from quire.engine.model_runner import ModelRunner

logger = logging.getLogger(__name__)


def make_exchange(
    config: EngineConfig, loaded: LoadedModel, runner: ModelRunner, transport: KVTransport | None
) -> EngineExchange:
    """Make the engine's exchange. An engine whose tokens cannot be exchanged starts with
    ``NoExchange`` and logs why: a node of a cluster serves requests all the same."""
    pool = runner.pool
    if transport is None:
        return NoExchange(
            f"engine {config.name} exchanges no K and V with other engines: start it with a data "
            "address"
        )
    if not isinstance(pool, TokenPool):
        return _without(
            transport,
            f"engine {config.name} has its pages in a form that no other engine reads, and "
            "exchanges none",
        )
    if loaded.device.type != "cpu":
        return _without(
            transport,
            f"engine {config.name} has its pages on {loaded.device} and exchanges none: only pages "
            "in main memory are sent and received",
        )
    counter = runner if isinstance(runner, LayerCounter) else None
    return PoolExchange(pool, loaded.content, transport, counter)


def _without(transport: KVTransport, reason: str) -> NoExchange:
    logger.warning("%s", reason)
    transport.close()
    return NoExchange(reason)
