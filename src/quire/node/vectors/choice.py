"""Chooses the vector store of a node."""

from __future__ import annotations

from pathlib import Path

from quire.core.errors import ConfigError
from quire.programs.vectors import ExactStore, VectorStore

POSTGRES = ("postgresql://", "postgres://")


def vector_store(choice: str, data_dir: Path | None) -> VectorStore:
    """The store that ``choice`` names (see ``NodeConfig.vector_store``). Only the chosen store's
    package is imported.

    Raises:
        ConfigError: no such store, or its extra is not installed.
    """
    if choice == "exact":
        return ExactStore()
    if choice == "lance":
        from quire.node.vectors.lance import LanceStore

        return LanceStore(None if data_dir is None else data_dir / "vectors")
    if choice.startswith(POSTGRES):
        from quire.node.vectors.postgres import PostgresStore

        return PostgresStore(choice)
    raise ConfigError(
        f"vector_store is {choice!r}: give exact, lance, or the address of a PostgreSQL database "
        "(postgresql://...)"
    )
