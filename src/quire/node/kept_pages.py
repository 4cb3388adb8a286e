"""Pages that a session holds between its calls, so that what it has computed stays.

Owns one queue of the session's program and the full pages of one prefix on it. They are pages of an
idle program: under pressure control moves them to the host or drops them, and a later prompt finds
in the prefix index what is left. Keeping is therefore never needed for an answer to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from quire.core.actions import Reply
from quire.core.calls import CreateQueue, Issue
from quire.core.commands import Imported, ImportPrefix
from quire.core.errors import ErrorRecord
from quire.core.ids import CommandId, PageId, QueueId
from quire.core.interfaces import ProgramPort, ServedModel


class KeptPages:
    """Maps the pages that the prefix index has of ``tokens`` and holds them until ``release``.

    A ``ReplySink`` for the one command on ``port``. ``on_released`` is called once, at the end.
    ``num_pages`` is an upper bound until the reply is there.
    """

    def __init__(
        self,
        port: ProgramPort,
        model: ServedModel,
        tokens: Sequence[int],
        on_released: Callable[[KeptPages], None],
    ) -> None:
        self.model = model.base
        self.num_pages = max(len(tokens) - 1, 0) // model.info.pool.page_size
        self._port = port
        self._on_released = on_released
        self._released = False
        offered = len(tokens) // model.info.pool.page_size
        numbers = count(port.first_number)
        queue = QueueId(next(numbers))
        command = ImportPrefix(
            id=CommandId(next(numbers)),
            tokens=list(tokens),
            pages=[PageId(next(numbers)) for _ in range(offered)],
            adapter=model.adapter,
        )
        port.post(CreateQueue(queue, model.base))
        port.post(Issue(queue, [command]))

    @property
    def released(self) -> bool:
        return self._released

    def release(self) -> None:
        """Give the pages back. Idempotent."""
        if not self._released:
            self._released = True
            self._port.close("no longer kept")
            self._on_released(self)

    def on_reply(self, command: CommandId, reply: Reply, last: bool) -> None:
        if isinstance(reply, Imported):
            self.num_pages = len(reply.pages)

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None:
        """Nothing is held then."""
        self.release()

    def on_terminated(self, error: ErrorRecord) -> None:
        self.release()
