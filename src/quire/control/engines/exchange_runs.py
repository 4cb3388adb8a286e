"""What an engine does for a lease command, from its message to its end, and how much of it.

Owns what the command waits for, and for a send what the engine reads meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.control.memory.content import Content
from quire.control.memory.leases import Lease
from quire.control.programs.program import Entry
from quire.control.statistics import ExchangeDirection, ExchangeStatistics
from quire.core.errors import ErrorRecord
from quire.core.exchange import ReceiveEnded, SendEnded
from quire.core.ids import HostBlockId
from quire.core.lease_commands import Leased, Sent


@dataclass(slots=True, eq=False)
class OpeningRun:
    """A lease that is being opened. ``reply`` is sent when the engine begins with the message that
    opens ``lease``; ``is_told``: it was."""

    lease: Lease
    reply: Leased
    is_told: bool = False


@dataclass(slots=True, eq=False)
class SendRun:
    """A send that is under way. ``contents``: on the device, referred to and pinned until the
    engine has sent them, even if ``entry`` ends before; ``host_blocks``: lent until then.
    ``num_host_tokens``: how many of the ``num_tokens`` lie there. ``outcome``: what the engine has
    reported."""

    entry: Entry
    contents: list[Content]
    host_blocks: list[HostBlockId]
    num_tokens: int
    num_host_tokens: int = 0
    outcome: Sent | ErrorRecord | None = None


class ExchangeCounts:
    """Counts the sends and receives of one engine that have ended, by what has carried them.
    ``num_device_tokens``, ``num_host_tokens``: sent from there, by sends that are complete."""

    def __init__(self) -> None:
        self._counts: dict[tuple[ExchangeDirection, str], list[int]] = {}
        self.num_device_tokens = 0
        self.num_host_tokens = 0

    def note(self, ended: SendEnded | ReceiveEnded) -> None:
        direction: ExchangeDirection = "sent" if isinstance(ended, SendEnded) else "received"
        counts = self._counts.setdefault((direction, ended.transport), [0, 0, 0])
        counts[1 if ended.error is not None else 0] += 1
        counts[2] += ended.num_bytes

    def note_sent(self, run: SendRun) -> None:
        """Count the tokens of a send that is complete."""
        self.num_host_tokens += run.num_host_tokens
        self.num_device_tokens += run.num_tokens - run.num_host_tokens

    def statistics(self) -> tuple[ExchangeStatistics, ...]:
        return tuple(
            [
                ExchangeStatistics(direction, transport, num_done, num_failed, num_bytes)
                for (direction, transport), (num_done, num_failed, num_bytes) in sorted(
                    self._counts.items()
                )
            ]
        )
