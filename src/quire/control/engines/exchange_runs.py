"""What an engine does for a lease command, from its message to its end.

Owns what the command waits for, and for a send the contents that the engine reads meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.control.memory.content import Content
from quire.control.memory.leases import Lease
from quire.control.programs.program import Entry
from quire.core.errors import ErrorRecord
from quire.core.lease_commands import Leased, Sent


@dataclass(slots=True, eq=False)
class OpeningRun:
    """A lease that is being opened. ``reply`` is sent when the engine has run the message that
    opens ``lease``."""

    lease: Lease
    reply: Leased


@dataclass(slots=True, eq=False)
class SendRun:
    """A send that is under way. ``contents``: referred to and pinned until the engine has sent
    them, even if ``entry`` ends before. ``outcome``: what the engine has reported."""

    entry: Entry
    contents: list[Content]
    num_tokens: int
    outcome: Sent | ErrorRecord | None = None
