"""``ProgramPort`` as events: adds the program's id to all of its calls to control.

The caller chooses where the events go; replies do not pass through here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from quire.core.calls import AskService, CloseQueue, CreateQueue, Issue, QueueCall
from quire.core.commands import Command, Decode, EmbedImage
from quire.core.engine_info import ImageFraming
from quire.core.errors import InvalidArgument
from quire.core.events import Called, EventAt, ProgramEnded
from quire.core.ids import ModelId, ProgramId, QueueId
from quire.core.interfaces import ProgramClock, ServedModel, Services
from quire.core.quotas import Quotas

Models = Callable[[], Sequence[ServedModel]]

PostEvent = Callable[[EventAt], None]

Prepare = Callable[[list[Command], ImageFraming | None, Callable[[list[Command]], None]], bool]
"""``prepare(commands, framing, done)`` later calls ``done``, on the calling loop, with the commands
prepared: images decoded to pixels and grammars checked, or replaced by commands that are refused.
``framing``: that of the queue's model, if it has one. Returns False if there is nothing to prepare,
or it is not possible here; ``done`` is then not called."""


class EventPort:
    """The port of one program. ``post_event`` takes a function that builds the event for the time
    at which it is handled.

    ``services``: the node's services; they end with the program. ``close`` ends the program; only
    its first call counts. ``post_now`` posts this end: it is handled after all earlier events,
    without waiting for further ones. ``prepare``: prepares images and grammars before they are
    posted; later calls of the program wait meanwhile, so that their order is kept.
    """

    def __init__(
        self,
        program: ProgramId,
        quotas: Quotas,
        models: Models,
        post_event: PostEvent,
        services: Services | None = None,
        seed: int = 0,
        *,
        clock: ProgramClock,
        post_now: PostEvent | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self._post_event = post_event
        self._prepare = prepare
        self._held: deque[QueueCall] | None = None
        self._bases: dict[QueueId, ModelId] = {}
        self._post_now = post_now or post_event
        self._services = services
        self.program = program
        self.quotas = quotas
        self.models = models
        self.seed = seed
        self.clock = clock
        self.first_number = 1
        self._closed = False

    def post(self, call: QueueCall) -> None:
        if self._held is None:
            self._take(call)
        else:
            self._held.append(call)

    def _take(self, call: QueueCall) -> None:
        if isinstance(call, Issue):
            if any(map(_needs_preparation, call.commands)) and self._prepare_first(call):
                return
        elif isinstance(call, CreateQueue):
            self._bases[call.queue] = call.model
        elif isinstance(call, CloseQueue):
            self._bases.pop(call.queue, None)
        self._pass_on(call)

    def _pass_on(self, call: QueueCall) -> None:
        program = self.program
        self._post_event(lambda t: Called(time_s=t, program=program, call=call))

    async def ask(self, question: AskService, undo: str | None = None) -> Any:
        if self._services is None:
            raise InvalidArgument(
                f"this program's node has no services: {question.name} is not offered"
            )
        return await self._services.ask(question.name, question.arguments)

    def _prepare_first(self, call: Issue) -> bool:
        """Post ``call`` once its commands are prepared; return False if there is nothing to
        prepare."""
        if self._prepare is None:
            return False

        def prepared(ready: list[Command]) -> None:
            if not self._closed:
                self._let_go(Issue(call.queue, ready))

        if not self._prepare(call.commands, self._framing(call.queue), prepared):
            return False
        self._held = deque()
        return True

    def _framing(self, queue: QueueId) -> ImageFraming | None:
        base = self._bases.get(queue)
        images = next((m.info.images for m in self.models() if m.base == base), None)
        return None if images is None else images.framing

    def _let_go(self, prepared: Issue) -> None:
        """Post ``prepared`` and the calls that waited for it, up to the next one that needs
        preparation."""
        assert self._held is not None
        held, self._held = self._held, None
        self._pass_on(prepared)
        while held and self._held is None:
            self._take(held.popleft())
        if self._held is not None:
            self._held.extend(held)

    def close(self, reason: str = "finished") -> None:
        if self._closed:
            return
        self._closed = True
        self._held = None
        if self._services is not None:
            self._services.close()
        program = self.program
        self._post_now(lambda t: ProgramEnded(time_s=t, program=program, reason=reason))


def _needs_preparation(command: Command) -> bool:
    if type(command) is Decode:
        return command.grammar is not None
    return type(command) is EmbedImage
