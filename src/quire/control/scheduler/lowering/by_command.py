"""Which function lowers which kind of command; those for commands that need blocks get a claim.

Owns that table. It decides nothing about order, and does not know where claimed memory comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quire.control.engines.builder import BatchBuilder
from quire.control.engines.state import EngineState
from quire.control.memory.promises import Reclaim
from quire.control.programs.program import Entry
from quire.control.scheduler.exchange import ExchangeScheduler
from quire.control.scheduler.lowering.decode_lowering import DecodeLowering
from quire.control.scheduler.lowering.lowering import Lowering, LoweringResult
from quire.control.scheduler.lowering.seeds import SeedSource
from quire.core import commands as c
from quire.core.lease_commands import OpenLease, SendPages


class LoweringByCommand:
    """Adds commands of any kind to messages of one engine."""

    def __init__(self, engine: EngineState, seeds: SeedSource, exchange: ExchangeScheduler) -> None:
        fine = Lowering(engine, seeds)
        self.decodes = DecodeLowering(engine, seeds)
        self._without_blocks: Mapping[
            type[c.Command], Callable[[Entry, Any, BatchBuilder], LoweringResult]
        ] = {
            c.EmbedText: fine.embed_text,
            c.EmbedImage: fine.embed_image,
            c.GetNextDist: fine.dists,
            c.Sample: fine.sample,
        }
        self._with_blocks: Mapping[
            type[c.Command], Callable[[Entry, Any, BatchBuilder, Reclaim], LoweringResult]
        ] = {
            c.Decode: self.decodes.prefill,
            c.Forward: fine.forward,
            c.CopyPage: fine.copy_page,
            c.RepositionPage: fine.reposition_page,
            OpenLease: exchange.open_lease,
            SendPages: exchange.send_pages,
        }

    def lower(
        self, entry: Entry, builder: BatchBuilder, reclaim_for: Callable[[Entry], Reclaim]
    ) -> LoweringResult:
        """Add the command of ``entry``, or the next part of it; ``reclaim_for`` is called only for
        commands that need blocks.

        Raises:
            QuireError: the command can never be carried out.
        """
        command = entry.command
        lower = self._without_blocks.get(type(command))
        if lower is not None:
            return lower(entry, command, builder)
        return self._with_blocks[type(command)](entry, command, builder, reclaim_for(entry))
