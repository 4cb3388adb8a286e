"""The services of programs on this node: topics, queues and stores, MCP servers, encoders,
documents, vectors, search, children.

Owns the services and the calls from a program's loop to the edge's loop, where children are
launched, texts are encoded and searched for, and MCP servers are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextvars import Context
from functools import partial
from typing import Any

from quire.core.config import NodeConfig
from quire.core.ids import TenantId
from quire.core.interfaces import Clock
from quire.node.documents.readers import DocumentReaders
from quire.node.encoders.fleet import EncoderFleet
from quire.node.encoders.kept_rows import KeptRows
from quire.node.encoders.programs import FindEncoder, ProgramEncoders
from quire.node.loops import call_on
from quire.node.mcp.servers import McpServers
from quire.node.programs.children import Ancestry, ChildLauncher
from quire.node.programs.restarting.restarts import Restarts
from quire.node.search.engines import SearchEngines
from quire.node.search.programs import ProgramSearch
from quire.node.turns import RequestTurns
from quire.node.vectors.choice import vector_store
from quire.programs.inferlet import Inferlet
from quire.programs.search import SearchService
from quire.programs.services.children import ChildService, ChildState
from quire.programs.services.documents import DocumentService
from quire.programs.services.encoding import EncodingService
from quire.programs.services.mcp import McpService
from quire.programs.services.operations import Identity, ProgramService, ProgramServices
from quire.programs.services.shared import SharedServices
from quire.programs.services.store import Store
from quire.programs.vectors import VectorService
from quire.programs.workflow.durable import KeptQueries, KeptQueryService
from quire.programs.workflow.sharing import SharedResults, SharingService
from quire.programs.workflow.speculation import (
    KeptExperience,
    SpeculationLedger,
    SpeculationService,
)

SHARED_RESULTS_TTL_S = 3600.0


class NodeServices:
    """All services of a node. ``start`` belongs to the edge's loop; ``of`` is for any thread.
    ``encoder`` finds an encoder in ``fleet``."""

    def __init__(
        self, clock: Clock, config: NodeConfig, fleet: EncoderFleet, encoder: FindEncoder
    ) -> None:
        self._fleet = fleet
        self._encoder = encoder
        self.kept_rows = KeptRows(config.encoder_cache_bytes)
        self._store = Store(config.data_dir)
        self._shared = SharedServices(clock, self._store)
        self.mcp_servers = McpServers(config.mcp_servers, clock)
        self._documents = DocumentReaders()
        self.shared_results = SharedResults(
            config.shared_results_bytes, SHARED_RESULTS_TTL_S, clock.now_s
        )
        experience = None if config.data_dir is None else config.data_dir / "speculation.json"
        self.speculation = SpeculationLedger(KeptExperience(experience))
        self.kept_queries = KeptQueries(config.data_dir, config.kept_queries)
        self._vectors = vector_store(config.vector_store, config.data_dir)
        self._vector_turns = RequestTurns(config, self._vectors.at_once, clock.now_s)
        self._search = SearchEngines(config, self._documents.read, clock.now_s)
        self._edge: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Open what is stored. Raises ``ConfigError`` if the data directory cannot be used."""
        self._edge = asyncio.get_running_loop()
        self._store.open()
        self.speculation.kept.open()
        self.kept_queries.drop_expired()

    async def index(self) -> None:
        """Read the files that programs search. Raises ``ConfigError`` if none can be read."""
        await self._search.start()

    def search_engine(self, tenant: TenantId) -> str:
        """See ``Node.search_engine``."""
        return self._search.of(tenant)[0].name

    async def close(self) -> None:
        """Call it when every program has ended. Returns when MCP servers and the readers of
        documents have ended and the store is written."""
        await self.mcp_servers.close()
        await self._search.close()
        await asyncio.to_thread(self._documents.close)
        await asyncio.to_thread(self._vectors.close)
        await asyncio.to_thread(self.speculation.kept.close)
        await asyncio.to_thread(self._shared.close)

    def of(
        self,
        identity: Identity,
        ancestry: Ancestry,
        children: ChildLauncher,
        restarts: Restarts | None = None,
    ) -> ProgramServices:
        """The services of a launched program. ``children`` launches its child programs, which keep
        running while it is restarted."""

        return self._shared.of(
            identity, partial(self._of_this_node, identity, ancestry, children, restarts)
        )

    def _of_this_node(
        self,
        identity: Identity,
        ancestry: Ancestry,
        children: ChildLauncher,
        restarts: Restarts | None,
    ) -> Iterable[ProgramService]:
        if restarts is None:
            yield self._child_service(identity, ancestry, children)
        else:
            if restarts.children is None:
                restarts.children = self._child_service(
                    identity, ancestry, children, restarts.child_state
                )
            restarts.children.identity = identity
            yield restarts.children
        yield McpService(identity, self._ask_mcp)
        yield self._encoding_service(identity, ancestry)
        yield DocumentService(self._documents.read)
        yield VectorService(identity, self._vectors, self._vector_turns.of(identity))
        yield SearchService(ProgramSearch(identity, self._search, self._on_edge))
        if isinstance(ancestry.program, Inferlet):
            yield KeptQueryService(identity, self.kept_queries)
            yield SharingService(identity, self.shared_results)
            yield SpeculationService(self.speculation)

    def _child_service(
        self,
        identity: Identity,
        ancestry: Ancestry,
        children: ChildLauncher,
        lasting: ChildState | None = None,
    ) -> ChildService:
        return ChildService(
            identity,
            ancestry.family,
            ancestry.seed,
            partial(children.spawn, ancestry),
            self._on_edge,
            partial(call_on, self._edge),
            lasting=lasting is not None,
            state=lasting,
        )

    def _encoding_service(self, identity: Identity, ancestry: Ancestry) -> EncodingService:
        return EncodingService(
            ProgramEncoders(
                identity,
                self.kept_rows,
                ancestry.encoded,
                self._fleet.all,
                self._encoder,
                self._on_edge,
            )
        )

    async def _ask_mcp(
        self, server: str, tenant: TenantId, method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        asking = self.mcp_servers.ask(server, tenant, method, params)
        result: dict[str, Any] = await self._on_edge(asking)
        return result

    async def _on_edge(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run ``work`` on the edge's loop; its errors and its cancellation pass through.

        It runs in a context of its own: what it starts belongs to the node and must outlive the
        program.
        """
        submit = partial(asyncio.run_coroutine_threadsafe, work, self._edge)
        return await asyncio.wrap_future(Context().run(submit))
