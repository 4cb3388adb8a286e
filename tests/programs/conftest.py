"""Fixtures of the application layer's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from programs_port import Connected, Ports

from quire.programs.api import Api, connect_api
from quire.programs.services.network import Network


@pytest.fixture
def ports() -> Iterator[Ports]:
    ports = Ports()
    yield ports
    for port in ports.made:
        assert port.closed is not None, f"the port of program {port.program} was left open"


@pytest.fixture
async def connected(ports: Ports) -> AsyncIterator[Connected]:
    """The API of a program over a network; closed at the end."""
    apis: list[Api] = []

    def connect(network: Network) -> Api:
        apis.append(connect_api(ports.connect, network=network))
        return apis[-1]

    yield connect
    for api in apis:
        api.close()
