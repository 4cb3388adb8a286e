"""Programs that keep their queries in a directory, without a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.core.ids import ProgramId, TenantId
from quire.core.kept_queries_config import KeptQueriesConfig
from quire.programs.services.operations import Identity, ProgramServices
from quire.programs.workflow.durable import KeptQueries, KeptQueryService

NOW_S = 1_800_000_000.0


class Clock:
    """Unix time of a test."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


class KeptApi:
    """What ``Journal`` uses of an ``Api``: the service of one program of ``tenant``."""

    def __init__(
        self,
        directory: Path,
        tenant: str = "default",
        config: KeptQueriesConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.kept = KeptQueries(directory, config or KeptQueriesConfig(), clock or Clock())
        identity = Identity(ProgramId(1), TenantId(tenant), "test")
        self._services = ProgramServices(lambda: [KeptQueryService(identity, self.kept)])

    @property
    def issuer(self) -> KeptApi:
        return self

    async def ask(self, name: str, **arguments: Any) -> Any:
        return await self._services.ask(name, arguments)

    def available_models(self) -> list[Any]:
        return []

    async def available_encoders(self) -> list[Any]:
        return []

    def end(self) -> None:
        """The program ends."""
        self._services.close()
