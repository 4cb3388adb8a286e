"""Nodes with fake engines, and a small random model on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fake_node import StartNode, fake_config, fake_model_files, fake_transport, make_model
from web_stub import WebStub

from quire.core.config import NodeConfig
from quire.node import Node


@pytest.fixture
async def start_node() -> AsyncIterator[StartNode]:
    """``await start_node(config, ...)``: a started node with fake engines, stopped at the end."""
    async with AsyncExitStack() as stack:

        async def start(config: NodeConfig | None = None, **options: Any) -> Node:
            options.setdefault("transport_factory", fake_transport)
            options.setdefault("model_files", fake_model_files)
            node = Node(config or fake_config(), debug=True, **options)
            stack.push_async_callback(node.stop)
            await node.start()
            return node

        yield start


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node()


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def other_model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture
def web() -> Iterator[WebStub]:
    stub = WebStub()
    yield stub
    stub.close()
