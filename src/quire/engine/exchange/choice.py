"""Whether an engine exchanges K and V with others."""

from __future__ import annotations

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.core.kv_transport import KVTransport
from quire.engine.exchange.exchange import Exchange, NoExchange
from quire.engine.exchange.pool_exchange import PoolExchange
from quire.engine.kv_cache.pool import KVPool
from quire.engine.kv_cache.token_form import TokenPool
from quire.engine.loading import LoadedModel


def make_exchange(
    config: EngineConfig, loaded: LoadedModel, pool: KVPool, transport: KVTransport | None
) -> Exchange:
    """
    Raises:
        ConfigError: there is a transport, but the pool's tokens cannot be exchanged.
    """
    if transport is None:
        return NoExchange(
            f"engine {config.name} exchanges no K and V with other engines: start it with a data "
            "address"
        )
    if not isinstance(pool, TokenPool):
        raise ConfigError(
            f"engine {config.name} is split over {config.tensor_parallel} ranks, each with a part "
            "of K and V, and cannot exchange them: leave the data address out, or serve it on one "
            "rank"
        )
    if loaded.device.type != "cpu":
        raise ConfigError(
            f"engine {config.name} has its pages on {loaded.device}, and only pages in main memory "
            "are exchanged: leave the data address out, or choose device cpu"
        )
    return PoolExchange(pool, loaded.content, transport)
