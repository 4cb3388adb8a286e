"""What is done with a program's commands outside control and engines, before either hears of them:
images become pixels, grammars are tried."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quire.core.commands import Command, EmbedImage
from quire.core.engine_info import ImageFraming
from quire.core.ids import TenantId
from quire.node.grammars.checker import GrammarChecker
from quire.node.images import ImageFramer
from quire.programs.runtime.event_port import Prepare


class Preparation:
    """Owns what does it. ``of`` is for any loop; ``close`` blocks until the processes have
    ended."""

    def __init__(self) -> None:
        self.images = ImageFramer()
        self.grammars = GrammarChecker()

    def of(self, tenant: TenantId) -> Prepare:
        """For the programs of ``tenant``: see ``EventPort``."""
        return partial(self._prepare, tenant)

    def close(self) -> None:
        """Idempotent."""
        self.images.close()
        self.grammars.close()

    def _prepare(
        self,
        tenant: TenantId,
        commands: list[Command],
        framing: ImageFraming | None,
        done: Callable[[list[Command]], None],
    ) -> bool:
        if framing is None or EmbedImage not in map(type, commands):
            return self.grammars.checked(tenant, commands, done)

        def framed(ready: list[Command]) -> None:
            if not self.grammars.checked(tenant, ready, done):
                done(ready)

        return self.images.frame(commands, framing, framed)
