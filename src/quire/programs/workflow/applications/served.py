"""``Applications``: the applications that a node serves, with the graphs that were built earlier.

Made with the node's server; belongs to its loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quire.core.errors import UnknownHandle
from quire.programs.workflow.applications.loading import APPLICATIONS
from quire.programs.workflow.durable import QueryId
from quire.programs.workflow.optimizing.construction import NodeConfig
from quire.programs.workflow.optimizing.graph_cache import GraphCache
from quire.programs.workflow.query import Query
from quire.programs.workflow.running import workflow
from quire.programs.workflow.template.app import App


class ServedApplication:
    """One served application. ``program`` answers queries that come as arguments."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.program = workflow(app)
        self._cache = GraphCache()

    def query(
        self,
        query: Mapping[str, Any] | None,
        config: NodeConfig,
        *,
        tells: bool,
        deadline_s: float | None = None,
        max_generated_tokens: int | None = None,
        name: QueryId | None = None,
        speculate: bool = False,
    ) -> Query:
        """A query of the application, not prepared yet."""
        return Query(
            self.app,
            query,
            config,
            cache=self._cache,
            tells=tells,
            deadline_s=deadline_s,
            max_generated_tokens=max_generated_tokens,
            name=name,
            speculate=speculate,
        )


class Applications(Mapping[str, ServedApplication]):
    """Applications by name. ``makers``: the functions that make them, called at the first access
    (default: those of all shipped applications)."""

    def __init__(self, makers: Mapping[str, Callable[[], App]] = APPLICATIONS) -> None:
        self._makers = makers
        self._made: dict[str, ServedApplication] = {}

    @classmethod
    def of(cls, apps: Mapping[str, App]) -> Applications:
        return cls({name: lambda app=app: app for name, app in apps.items()})  # type: ignore[misc]

    def __getitem__(self, name: str) -> ServedApplication:
        if name not in self._made:
            self._made[name] = ServedApplication(self._makers[name]())
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def find(self, name: str) -> ServedApplication:
        """The application ``name``. Raises ``UnknownHandle`` if the node does not serve it."""
        if name not in self._makers:
            raise UnknownHandle(
                f"this node serves no workflow {name[:80]!r}; it serves "
                f"{', '.join(self) or 'none'}: name one of them, or start the node with --workflow",
                param="workflow",
            )
        return self[name]
