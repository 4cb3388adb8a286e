"""Pages that a session keeps between its calls, so that they need not be computed again.

Owns one queue of the session's program and the full pages of one prefix on it. They are treated as
pages of an idle program: when memory is short, control swaps or drops them, and a later prompt
finds the rest in the prefix index. Answers never depend on kept pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from quire.core.actions import ReplyValue
from quire.core.calls import CreateQueue, Issue
from quire.core.commands import Imported, ImportPrefix
from quire.core.errors import ErrorRecord
from quire.core.ids import CommandId, PageId, QueueId
from quire.core.interfaces import ProgramPort, ServedModel


class KeptPages:
    """Maps the pages of ``tokens`` that are in the prefix index and holds them until ``release``.

    A ``ReplySink`` for the one command on ``port``. ``on_released`` is called once, at the end.
    ``num_pages`` is an upper bound until the reply arrives.
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
        """Release the pages. Idempotent."""
        if not self._released:
            self._released = True
            self._port.close("no longer kept")
            self._on_released(self)

    def on_reply(self, command: CommandId, reply: ReplyValue, last: bool) -> None:
        if isinstance(reply, Imported):
            self.num_pages = len(reply.pages)

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None:
        """Release: the import has failed, so no pages are held."""
        self.release()

    def on_terminated(self, error: ErrorRecord) -> None:
        self.release()
