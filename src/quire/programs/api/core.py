"""Trait Core: arguments, models, traits and queues. Served by the node itself."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.commands import Synchronize
from quire.core.ids import ModelId, ThreadId
from quire.core.traits import NODE_TRAITS, Trait
from quire.programs.api.handles import Queue
from quire.programs.api.issuer import Issuer, nothing
from quire.programs.api.model import Model
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.reply import Reply


class Core(TraitFunctions):
    trait = Trait.CORE

    def __init__(self, issuer: Issuer, args: Sequence[str] = ()) -> None:
        super().__init__(issuer)
        self._args = tuple(args)

    def get_arg(self) -> list[str]:
        """The arguments that the program was launched with."""
        return list(self._args)

    def available_models(self) -> list[Model]:
        """The models of this node, the default one first."""
        return [Model(self._issuer, served) for served in self._issuer.models()]

    def available_traits(self, model: Model | None = None) -> list[str]:
        """Traits of ``model`` (default: the node's default model) and of the node, by name."""
        served = model.served if model is not None else self._issuer.model()
        return sorted({*served.info.traits, *NODE_TRAITS})

    def create_queue(
        self,
        model: Model | ModelId | str | None = None,
        *,
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
    ) -> Queue:
        """A new command queue on ``model`` (default: the node's default model).

        ``thread``: the line of calls that the queue serves. ``depth``: its graph depth. Higher
        ``priority`` runs first.

        Raises:
            InvalidArgument: no such model.
        """
        if isinstance(model, Model):
            served = model.served
        else:
            served = self._issuer.model(None if model is None else ModelId(model))
        return self._issuer.create_queue(
            served, thread=ThreadId(thread), depth=depth, priority=priority
        )

    @queued
    def synchronize(self, queue: Queue) -> Reply[None]:
        """Done when every earlier command of the queue has ended.

        Raises (when awaited):
            QuireError: the first failure of the queue, if none of its commands was awaited yet.
        """
        command = Synchronize(id=self._issuer.command_id(), after=queue.dependencies)
        reply = _Synchronized(self._issuer, queue.lane, command.id, nothing)
        self._issuer.issue(queue, command, reply)
        return reply

    @queued
    def set_queue_priority(self, queue: Queue, priority: int) -> None:
        """Higher runs first, among the queues of all programs of the tenant."""
        self._issuer.set_priority(queue, priority)

    @queued
    def reset_queue(self, queue: Queue) -> None:
        """Cancel what the queue holds and clear its failure; what it allocated stays."""
        self._issuer.reset_queue(queue)

    def close_queue(self, queue: Queue) -> None:
        """Cancel what the queue holds and free everything that was allocated through it.

        Handles of those things are unusable from now on. Closing twice does nothing.
        """
        self._issuer.close_queue(queue)


class _Synchronized(Reply[None]):
    """Synchronizing is answered even on a poisoned queue; the failure surfaces here."""

    __slots__ = ()

    def result(self) -> None:
        super().result()
        self.lane.raise_unseen()


__all__ = ["Core"]
