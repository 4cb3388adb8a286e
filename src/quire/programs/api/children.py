"""A program's handle to a child; see ``launch`` of the trait Core."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from quire.core.errors import MailboxClosed
from quire.programs.api.issuer import Issuer


class Child:
    """One launched child. ``id``: its public id, as in ``quire ps`` and the HTTP interface."""

    __slots__ = ("_issuer", "id", "name")

    def __init__(self, issuer: Issuer, public_id: str, name: str) -> None:
        self._issuer = issuer
        self.id = public_id
        self.name = name

    async def join(self) -> Any:
        """The child's return value, once it has ended.

        Raises:
            ProgramFailed: it raised; the message includes its traceback.
            ProgramCancelled: it was cancelled.
            QuireError: the error that ended it, such as ``QuotaExceeded``.
        """
        return await self._issuer.ask("child.join", child=self.id)

    async def cancel(self, reason: str = "cancelled by its parent") -> None:
        """Ask the child to end. ``join`` returns when it has ended. Idempotent."""
        await self._issuer.ask("child.cancel", child=self.id, reason=reason)

    async def send(self, message: str) -> None:
        """Send a message to the child's ``receive``; waits while its mailbox is full."""
        await self._issuer.ask("child.send", child=self.id, message=message)

    async def receive(self) -> str:
        """The next message from the child's ``send``; ``MailboxClosed`` after the last."""
        text: str = await self._issuer.ask("child.receive", "child.receive.undo", child=self.id)
        return text

    async def messages(self) -> AsyncIterator[str]:
        """The child's messages until it ends."""
        while True:
            try:
                message = await self.receive()
            except MailboxClosed:
                return
            yield message

    async def logs(self) -> list[dict[str, Any]]:
        """Its log so far: ``time`` (Unix), ``level``, ``text`` and ``fields`` of each line."""
        lines: list[dict[str, Any]] = await self._issuer.ask("child.logs", child=self.id)
        return lines

    def __repr__(self) -> str:
        return f"<Child {self.id} {self.name!r}>"
