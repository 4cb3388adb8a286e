"""Configuration is checked when it is built, and its errors name the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.config import EncoderConfig, EngineConfig, NodeConfig, ServerConfig, TenantConfig
from quire.core.errors import ConfigError
from quire.core.ids import ModelId, TenantId
from quire.core.scheduler_config import SchedulerConfig


def engine(**fields: Any) -> EngineConfig:
    return EngineConfig(**{"source": "x", "name": ModelId("m"), **fields})


@pytest.mark.parametrize("page_size", [0, -1, 65])
def test_page_size_is_what_one_visibility_word_holds(page_size: int) -> None:
    with pytest.raises(ConfigError, match=f"page_size is {page_size}"):
        engine(page_size=page_size)


def test_page_sizes_at_the_bounds_are_fine() -> None:
    assert [engine(page_size=size).page_size for size in (1, 64)] == [1, 64]


@pytest.mark.parametrize("field", ["max_batch_tokens", "max_sequences"])
def test_an_engine_that_could_never_run_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        engine(**{field: 0})


def test_a_node_has_engines_of_different_names() -> None:
    with pytest.raises(ConfigError, match="m: several models, adapters or encoders"):
        NodeConfig(engines=(engine(), engine()))
    node = NodeConfig(engines=(engine(), engine(name=ModelId("n"))))
    assert [tenant.id for tenant in node.tenants] == ["default"]


def test_configurations_are_values() -> None:
    assert SchedulerConfig() == SchedulerConfig()
    assert hash(TenantConfig(TenantId("a"), ("k",))) == hash(TenantConfig(TenantId("a"), ("k",)))
    with pytest.raises(AttributeError):
        ServerConfig().port = 1  # type: ignore[misc]


def test_clients_may_choose_at_least_the_idle_time_of_the_server() -> None:
    assert ServerConfig(session_ttl_s=5.0, max_session_ttl_s=5.0).max_session_ttl_s == 5.0
    with pytest.raises(ConfigError, match=r"after 6 s, .* at most 5 s: raise --max-session-ttl"):
        ServerConfig(session_ttl_s=6.0, max_session_ttl_s=5.0)


@pytest.mark.parametrize("count", [0, 65])
def test_an_encoder_has_some_instances(count: int) -> None:
    with pytest.raises(ConfigError, match=f"encoder e: {count} instances"):
        EncoderConfig(source="x", name=ModelId("e"), instances=count)
