"""The node's search engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.core.errors import TraitMissing
from quire.programs.api import Api
from quire.programs.api.search import SearchHit
from quire.programs.search.service import MAX_QUERIES
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.graphs.primitives import Primitive


async def check_search(api: Api, engines: Sequence[Engine]) -> None:
    """Refuse a query before any work if it searches and there is no search engine.

    Raises:
        TraitMissing: the node has none for this tenant.
    """
    if any(engine.kind == "search" for engine in engines):
        check_has_search(engines, await api.available_search() is not None)


def check_has_search(engines: Sequence[Engine], has_search: bool) -> None:
    """Refuse a query that searches where there is no search engine.

    Raises:
        TraitMissing: see ``check_search``.
    """
    for engine in engines:
        if engine.kind == "search" and not has_search:
            raise TraitMissing(
                f"engine {engine.name!r} needs a search engine, and this node has none: start it "
                "with --search DIRECTORY or --search URL",
                param=engine.name,
            )


class SearchRunner:
    """``PrimitiveRunner`` of an engine of kind search."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        queries: list[str] = [inputs["text"]] if "text" in inputs else inputs["texts"]
        found: list[str] = []
        for start in range(0, len(queries), MAX_QUERIES):
            hits = await self._api.search(
                queries[start : start + MAX_QUERIES],
                primitive.config["top_k"],
                **primitive.order,
            )
            found += [_written(primitive, hit) for results in hits for hit in results]
        return {"out": found}

    async def close(self) -> None:
        """Do nothing: it holds nothing."""


def _written(primitive: Primitive, hit: SearchHit) -> str:
    """Write one result in the form that the component configures."""
    return "".join(
        part.text if part.name is None else getattr(hit, part.name) for part in primitive.parts
    )
