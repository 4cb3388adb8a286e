"""Prepares a program's commands before control receives them: decodes images, checks grammars."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quire.core.commands import Command, EmbedImage
from quire.core.engine_info import ImageFraming
from quire.core.ids import TenantId
from quire.node.control.images import ImageFramer
from quire.node.grammars.checker import GrammarChecker
from quire.programs.runtime.event_port import Prepare


class Preparation:
    """Owns the image decoder and the grammar checker. ``of`` is for any loop; ``close`` blocks
    until their processes have ended."""

    def __init__(self) -> None:
        self.images = ImageFramer()
        self.grammars = GrammarChecker()

    def of(self, tenant: TenantId) -> Prepare:
        """The preparation for programs of ``tenant``: see ``EventPort``."""
        return partial(self._prepare, tenant)

    def close(self) -> None:
        """End the processes. Idempotent."""
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

        return self.images.frame(tenant, commands, framing, framed)
