"""Deployments: the engines that serve each model, and the placement of queues on them.

Owns the list of each model's engines and what binds a queue to one of them. A queue names a model;
control places it when its first commands arrive, so that a replay and a simulation make the same
choice. The balancer chooses among engines to which the queue is not bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.control.engines.state import EngineState
from quire.control.memory.exports import ExportTable
from quire.control.placement.balancers import Balancer, PlacementRequest, least_used
from quire.control.programs.program import CommandQueue
from quire.core import commands as c
from quire.core.engine_info import EngineInfo
from quire.core.ids import EngineId, ModelId, PageId
from quire.core.lease_commands import (
    CloseLease,
    OpenLease,
    PinPrefix,
    RenewLease,
    SendPages,
    TakeLease,
)


class Deployments:
    """The engines of each model, in the order in which they first came up."""

    def __init__(self, balancer: Balancer, exports: ExportTable) -> None:
        self._balancer = balancer
        self._exports = exports
        self._engines: dict[ModelId, list[EngineState]] = {}

    def add(self, engine: EngineState) -> None:
        """Add ``engine``, which is up for the first time."""
        self._engines.setdefault(engine.model, []).append(engine)

    def remove(self, engine: EngineState) -> None:
        """Remove ``engine``, which will not come up again."""
        self._engines[engine.model].remove(engine)

    def choose(self, queue: CommandQueue, commands: Sequence[c.Command]) -> EngineState | None:
        """Return the engine for ``queue``, whose first ``commands`` have arrived; None if the model
        has no engine.

        Of several engines, the one is chosen that has a page or an export that the commands name.
        For an inferlet, which may name any of its pages later, it is the engine of another of its
        queues (each call of a session or a workflow has pages of its own). Otherwise the balancer
        chooses among those that are up; if none is, the least used one is taken.
        """
        engines = self._engines.get(queue.model, [])
        if len(engines) <= 1:
            return engines[0] if engines else None
        bound = self._named(queue, commands)
        if bound is None and queue.program.form == "inferlet":
            bound = _home(queue)
        for engine in engines:
            if engine.id == bound:
                return engine
        return self._least_costly(queue, commands, engines)

    def others(self, engine: EngineState) -> list[EngineState]:
        """The other engines of its model, except those that were given up."""
        return [other for other in self._engines[engine.model] if other is not engine]

    def refuges(self, engine: EngineState) -> list[EngineState]:
        """Those of ``others`` on which programs of ``engine`` find all as it was: those that are
        up, or, if ``engine`` is given up, those that may come up again."""
        others = [other for other in self.others(engine) if _are_alike(other.info, engine.info)]
        up = [other for other in others if other.is_up]
        return up or (others if engine.given_up is not None else [])

    def balance(
        self, queue: CommandQueue, commands: Sequence[c.Command], engines: Sequence[EngineState]
    ) -> EngineState:
        """Return the best of ``engines``, at least one, for ``queue``, which is bound to none and
        whose next commands are ``commands``."""
        named = {self._of_export(queue, command) for command in commands}
        for engine in engines:
            if engine.id in named:
                return engine
        return self._least_costly(queue, commands, engines)

    def _least_costly(
        self, queue: CommandQueue, commands: Sequence[c.Command], engines: Sequence[EngineState]
    ) -> EngineState:
        up = [engine for engine in engines if engine.is_up]
        if len(up) > 1:
            placing = _placing(queue, commands)
            chosen = self._balancer.choose(placing, up)
            queue.prompt_keys = placing.keys
            return chosen
        return up[0] if up else least_used(engines)

    def _named(self, queue: CommandQueue, commands: Sequence[c.Command]) -> EngineId | None:
        """The engine of the first page or export that ``commands`` name and that exists."""
        held = queue.program.pages
        for command in commands:
            for page_id in _pages_read(command) if held else ():
                page = held.get(page_id)
                if page is not None:
                    return page.engine
            engine = self._of_export(queue, command) or _of_lease(command)
            if engine is not None:
                return engine
        return None

    def _of_export(self, queue: CommandQueue, command: c.Command) -> EngineId | None:
        """The engine of the export that ``command`` imports."""
        if not isinstance(command, c.ImportPages):
            return None
        export = self._exports.get(queue.program.tenant, command.name)
        return None if export is None else export.engine


def _of_lease(command: c.Command) -> EngineId | None:
    """The engine of the lease that ``command`` names."""
    if isinstance(command, TakeLease | RenewLease | CloseLease):
        return command.lease.engine
    return None


def _are_alike(one: EngineInfo, other: EngineInfo) -> bool:
    """Whether a command for ``one`` gives the same result on ``other``, and fits there."""
    return (
        one.content == other.content
        and one.adapters == other.adapters
        and one.max_model_len == other.max_model_len
        and one.pool == other.pool
    )


def _pages_read(command: c.Command) -> Sequence[PageId]:
    """Pages that ``command`` names and does not create."""
    match command:
        case c.Forward() | c.Decode():
            return [*command.context, *command.output]
        case c.CopyPage():
            return [command.source, command.target]
        case c.ExportPages() | c.DeallocPages():
            return command.pages
        case SendPages():
            return command.pages
        case c.MaskPage() | c.TruncatePage() | c.RepositionPage():
            return [command.page]
    return ()


def _home(queue: CommandQueue) -> EngineId | None:
    """The engine of another queue of the same program for the same model, and so of its pages."""
    for other in queue.program.queues.values():
        if other.model == queue.model and other.placed_on is not None:
            return other.placed_on
    return None


def _placing(queue: CommandQueue, commands: Sequence[c.Command]) -> PlacementRequest:
    for command in commands:
        if isinstance(command, c.Decode):
            prompt = command.tokens if command.cache and not command.position else []
            return PlacementRequest(queue, prompt, command.adapter)
        if isinstance(command, c.ImportPrefix | OpenLease | PinPrefix):
            return PlacementRequest(queue, command.tokens, command.adapter)
    return PlacementRequest(queue)
