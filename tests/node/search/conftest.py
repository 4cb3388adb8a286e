"""The real searx server of this folder's tests, if the system has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from searx_server import SEARX, Searx


@pytest.fixture(scope="session")
def searx_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not SEARX.exists():
        pytest.skip("no searx: install Debian's package 'searx'")
    return tmp_path_factory.mktemp("searx")


@pytest.fixture(scope="session")
def searx(searx_folder: Path) -> Iterator[Searx]:
    """Its rows are ``PASSAGES``; it runs for the whole session."""
    server = Searx(searx_folder)
    try:
        yield server
    finally:
        server.close()
