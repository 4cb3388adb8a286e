"""``ProgramPort`` as events: stamps the program's identity on all that it asks of control.

Where the events go is the caller's choice; replies do not come through here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.core.commands import Command
from quire.core.errors import InvalidArgument
from quire.core.events import (
    CommandCancelled,
    CommandsIssued,
    Event,
    ProgramEnded,
    QueueClosed,
    QueueCreated,
    QueuePrioritySet,
    QueueReset,
    Quotas,
)
from quire.core.ids import CommandId, EngineId, ProgramId, QueueId, ThreadId
from quire.core.interfaces import ServedModel, Services

Models = Callable[[], Sequence[ServedModel]]

TimedEvent = Callable[[float], Event]
"""Builds an event for the time at which it is handled."""

Post = Callable[[TimedEvent], None]


class EventPort:
    """The port of one program. ``post`` takes what builds an event for the time it is handled at.

    ``services``: what the node offers beside the model; they end with the program. ``close`` ends
    the program; only the first one counts. ``post_now`` takes that end: behind all that was posted,
    without waiting for more.
    """

    def __init__(
        self,
        program: ProgramId,
        quotas: Quotas,
        models: Models,
        post: Post,
        services: Services | None = None,
        seed: int = 0,
        *,
        post_now: Post | None = None,
    ) -> None:
        self._post = post
        self._post_now = post_now or post
        self._seed = seed
        self._services = services
        self._program = program
        self._quotas = quotas
        self._models = models
        self._closed = False

    @property
    def program(self) -> ProgramId:
        return self._program

    @property
    def quotas(self) -> Quotas:
        return self._quotas

    @property
    def seed(self) -> int:
        return self._seed

    def models(self) -> Sequence[ServedModel]:
        return self._models()

    def create_queue(
        self, queue: QueueId, engine: EngineId, *, thread: ThreadId, depth: int, priority: int
    ) -> None:
        program = self._program
        self._post(
            lambda t: QueueCreated(
                time_s=t,
                program=program,
                queue=queue,
                engine=engine,
                thread=thread,
                depth=depth,
                priority=priority,
            )
        )

    def set_queue_priority(self, queue: QueueId, priority: int) -> None:
        program = self._program
        self._post(
            lambda t: QueuePrioritySet(time_s=t, program=program, queue=queue, priority=priority)
        )

    def reset_queue(self, queue: QueueId) -> None:
        program = self._program
        self._post(lambda t: QueueReset(time_s=t, program=program, queue=queue))

    def close_queue(self, queue: QueueId) -> None:
        program = self._program
        self._post(lambda t: QueueClosed(time_s=t, program=program, queue=queue))

    def issue(self, queue: QueueId, commands: list[Command]) -> None:
        program = self._program
        self._post(
            lambda t: CommandsIssued(time_s=t, program=program, queue=queue, commands=commands)
        )

    def cancel(self, command: CommandId) -> None:
        program = self._program
        self._post(lambda t: CommandCancelled(time_s=t, program=program, command=command))

    async def call(self, name: str, arguments: Mapping[str, Any], undo: str | None = None) -> Any:
        if self._services is None:
            raise InvalidArgument(f"this program's node has no services: {name} is not offered")
        return await self._services.call(name, arguments)

    def close(self, reason: str = "finished") -> None:
        if self._closed:
            return
        self._closed = True
        if self._services is not None:
            self._services.close()
        program = self._program
        self._post_now(lambda t: ProgramEnded(time_s=t, program=program, reason=reason))


__all__ = ["EventPort", "Models", "Post", "TimedEvent"]
