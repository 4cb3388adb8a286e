"""Collections of texts with vectors: the store's interface, the store in memory, and a program's
access to the store of its node."""

from quire.programs.vectors.exact import ExactStore
from quire.programs.vectors.service import VectorService
from quire.programs.vectors.store import (
    CollectionPlace,
    FoundRow,
    VectorRows,
    VectorStore,
    unit_vectors,
)

__all__ = [
    "CollectionPlace",
    "ExactStore",
    "FoundRow",
    "VectorRows",
    "VectorService",
    "VectorStore",
    "unit_vectors",
]
