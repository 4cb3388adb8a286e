"""Trait Messaging: a program and the client that launched it. Served by the runtime."""

from __future__ import annotations

from quire.core.errors import MailboxClosed
from quire.core.traits import Trait
from quire.programs.api.issuer import Issuer
from quire.programs.api.queued import TraitFunctions
from quire.programs.services.mailbox import Mailbox, Sent


class Messaging(TraitFunctions):
    trait = Trait.MESSAGING

    def __init__(self, issuer: Issuer, mailbox: Mailbox | None = None) -> None:
        super().__init__(issuer)
        self._mailbox = mailbox

    def send(self, message: str) -> Sent:
        """Send to the client. The message is under way at once; awaiting keeps the client's pace.

        Raises:
            MailboxFull: the client does not read and the bound is reached.
            MailboxClosed: the client has gone, or the program was launched without one.
        """
        return self._connected().to_client.send(message)

    async def receive(self) -> str:
        """The client's next message.

        Raises:
            MailboxClosed: the client has closed its side, or there is none.
        """
        return await self._connected().to_program.receive()

    def _connected(self) -> Mailbox:
        if self._mailbox is None:
            raise MailboxClosed("this program was launched without a client to talk to")
        return self._mailbox


__all__ = ["Messaging"]
