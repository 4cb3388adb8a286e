"""``ProgramPort`` as events: stamps the program's identity on all that it asks of control.

Where the events go is the caller's choice; replies do not come through here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from quire.core.commands import Command, Decode, EmbedImage
from quire.core.engine_info import ImageFraming
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
from quire.core.ids import CommandId, ModelId, ProgramId, QueueId, ThreadId
from quire.core.interfaces import ServedModel, Services

Models = Callable[[], Sequence[ServedModel]]

TimedEvent = Callable[[float], Event]
"""Builds an event for the time at which it is handled."""

Post = Callable[[TimedEvent], None]

Prepare = Callable[[list[Command], ImageFraming | None, Callable[[list[Command]], None]], bool]
"""``prepare(commands, framing, done)`` calls ``done`` later, on the loop that it was called on,
with commands whose images are pixels and whose grammars have been tried, or that are refused.
``framing`` is that of the queue's model, if it has one. False: there is nothing to do, or it cannot
be done from here, and ``done`` is not called."""


class EventPort:
    """The port of one program. ``post`` takes what builds an event for the time it is handled at.

    ``services``: what the node offers beside the model; they end with the program. ``close`` ends
    the program; only the first one counts. ``post_now`` takes that end: behind all that was posted,
    without waiting for more. ``prepare``: does what images and grammars need before they are
    posted; what the program asks for meanwhile waits, so that its order is kept.
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
        prepare: Prepare | None = None,
    ) -> None:
        self._post = self._post_at_once = post
        self._prepare = prepare
        self._held: deque[Callable[[], object]] | None = None
        self._bases: dict[QueueId, ModelId] = {}
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
        self, queue: QueueId, model: ModelId, *, thread: ThreadId, depth: int, priority: int
    ) -> None:
        program = self._program
        self._bases[queue] = model
        self._post(
            lambda t: QueueCreated(
                time_s=t,
                program=program,
                queue=queue,
                model=model,
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
        if self._held is None:
            self._bases.pop(queue, None)
        else:
            self._held.append(lambda: self._bases.pop(queue, None))

    def issue(self, queue: QueueId, commands: list[Command]) -> None:
        if any(map(_needs_preparation, commands)) and self._prepare_first(queue, commands):
            return
        self._post_commands(queue, commands)

    def _post_commands(self, queue: QueueId, commands: list[Command]) -> None:
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

    def _prepare_first(self, queue: QueueId, commands: list[Command]) -> bool:
        """Post ``commands`` once they are prepared; False if there is nothing to do."""
        if self._prepare is None:
            return False
        if self._held is not None:
            self._held.append(lambda: self.issue(queue, commands))
            return True

        def prepared(ready: list[Command]) -> None:
            if not self._closed:
                self._let_go(partial(self._post_commands, queue, ready))

        if not self._prepare(commands, self._framing(queue), prepared):
            return False
        self._held = deque()
        self._post = self._hold
        return True

    def _framing(self, queue: QueueId) -> ImageFraming | None:
        base = self._bases.get(queue)
        images = next((m.info.images for m in self._models() if m.base == base), None)
        return None if images is None else images.framing

    def _hold(self, event_at: TimedEvent) -> None:
        assert self._held is not None
        self._held.append(lambda: self._post(event_at))

    def _let_go(self, first: Callable[[], None]) -> None:
        """Post ``first`` and what was held behind it, as far as what is to be prepared next."""
        assert self._held is not None
        held, self._held = self._held, None
        self._post = self._post_at_once
        first()
        while held and self._held is None:
            held.popleft()()
        if self._held is not None:
            self._held.extend(held)

    def close(self, reason: str = "finished") -> None:
        if self._closed:
            return
        self._closed = True
        self._held, self._post = None, self._post_at_once
        if self._services is not None:
            self._services.close()
        program = self._program
        self._post_now(lambda t: ProgramEnded(time_s=t, program=program, reason=reason))


def _needs_preparation(command: Command) -> bool:
    if type(command) is Decode:
        return command.grammar is not None
    return type(command) is EmbedImage
