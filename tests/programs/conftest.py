"""Fixtures of the application layer's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from programs_port import Ports


@pytest.fixture
def ports() -> Iterator[Ports]:
    ports = Ports()
    yield ports
    for port in ports.made:
        assert port.closed is not None, f"the port of program {port.program} was left open"
