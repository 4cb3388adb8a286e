"""What policies without state have in common: they ignore all notifications."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from quire.core.ids import ProgramId
from quire.core.policy import ReadyCommand


class StatelessPolicy:
    """A policy whose key depends on the command alone and never changes."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def keeps_state(self) -> bool:
        return False

    @abstractmethod
    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        """See ``Policy.key``."""

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        pass

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        pass

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        pass

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        pass

    def on_capacity(self, num_sequences: int) -> None:
        pass

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        return ()
