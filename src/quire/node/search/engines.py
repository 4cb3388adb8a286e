"""Which search engine each tenant of a node has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quire.core.config import NodeConfig
from quire.core.errors import TraitMissing
from quire.core.ids import TenantId
from quire.node.search.addresses import SERVERS
from quire.node.search.folder import FolderSearch
from quire.node.search.searxng import SearxngSearch
from quire.node.turns import RequestTurns
from quire.programs.search import SearchEngine
from quire.programs.services.documents import ReadFile


class SearchEngines:
    """The search engines by tenant. Belongs to the edge's loop. Tenants with the same directory or
    server share it, and take turns at it.

    Raises:
        ConfigError: a directory that cannot be searched, or a damaged address.
    """

    def __init__(self, config: NodeConfig, read_file: ReadFile, now_s: Callable[[], float]) -> None:
        own = {tenant.id: tenant.search for tenant in config.tenants if tenant.search is not None}
        self._default, self._own = config.search, own
        wanted = dict.fromkeys([*own.values(), *([config.search] if config.search else [])])
        self._engines: dict[str, FolderSearch | SearxngSearch] = {}
        for source in wanted:
            self._engines[source] = (
                SearxngSearch(source)
                if source.startswith(SERVERS)
                else FolderSearch(Path(source), config.data_dir, read_file)
            )
        self._turns = {
            source: RequestTurns(config, engine.at_once, now_s)
            for source, engine in self._engines.items()
        }

    async def start(self) -> None:
        """Read the files of directories. Raises ``ConfigError`` if nothing can be read."""
        for engine in self._engines.values():
            if isinstance(engine, FolderSearch):
                await engine.start()

    def of(self, tenant: TenantId) -> tuple[SearchEngine, RequestTurns]:
        """The search engine of a tenant, with the turns at it.

        Raises:
            TraitMissing: it has none.
        """
        source = self._own.get(tenant, self._default)
        if source is None:
            raise TraitMissing(
                f"search: this node has no search engine for tenant {tenant!r}: start it with "
                "--search DIRECTORY or --search URL, or give the tenant one in the tenants file"
            )
        return self._engines[source], self._turns[source]

    async def close(self) -> None:
        for engine in self._engines.values():
            await engine.close()
