"""The exchange of K and V with other engines, as the engine's message loop sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from quire.core.batch import CloseReceives, OpenReceive, SendSlots
from quire.core.batch_result import EngineReport
from quire.core.errors import InvalidArgument
from quire.core.exchange import ReceiveEnded, SendEnded
from quire.engine.kv_cache.token_form import I64


class EngineExchange(Protocol):
    """One engine's sends and receives. Every method is called by the engine's own thread, between
    or within messages, and returns at once."""

    @property
    def address(self) -> str:
        """``EngineInfo.data_address``."""
        ...

    def begin(self, operation: OpenReceive | CloseReceives | SendSlots) -> None:
        """Carry out an operation of the message that is being executed; sends begin with
        ``message_ended``."""
        ...

    def forward_begins(self, planned: I64, written: I64) -> None:
        """Begin the sends of slots that the message's forward is about to write: ``written``, of
        those that were ``planned``. They follow it layer by layer."""
        ...

    def message_ended(self) -> None:
        """Note that K and V of the message's forward are written."""
        ...

    def take_report(self) -> EngineReport | None:
        """The end of a send or receive that was not yet taken."""
        ...

    def wake_by(self, ring: Callable[[], None]) -> None:
        """See ``EngineCore.wake_by``."""
        ...

    def close(self) -> None:
        """Close it: nothing is read from or written to the engine's memory from here on.
        Idempotent."""
        ...


class NoExchange:
    """The ``EngineExchange`` of an engine without one: every operation ends with ``reason``."""

    def __init__(self, reason: str) -> None:
        self._error = InvalidArgument(reason).record()
        self._reports: deque[EngineReport] = deque()

    @property
    def address(self) -> str:
        return ""

    def begin(self, operation: OpenReceive | CloseReceives | SendSlots) -> None:
        match operation:
            case OpenReceive(lease=lease):
                self._reports.append(ReceiveEnded(lease=lease, error=self._error))
            case SendSlots(send=send):
                self._reports.append(SendEnded(send=send, error=self._error))

    def forward_begins(self, planned: I64, written: I64) -> None:
        """Do nothing: no send waits for it."""

    def message_ended(self) -> None:
        """Do nothing: no send waits for it."""

    def take_report(self) -> EngineReport | None:
        return self._reports.popleft() if self._reports else None

    def wake_by(self, ring: Callable[[], None]) -> None:
        """Do nothing: there are reports only after messages."""

    def close(self) -> None:
        """Do nothing: there is nothing to end."""
