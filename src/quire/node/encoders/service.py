"""One encoder of the node under its name: how texts reach it.

Lives on the edge's loop. Requests wait, are joined into batches and placed on a process by control.
Two services may have the same processes: one embeds texts, one scores pairs by late interaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec

from quire.core.batch import F32
from quire.core.encoding import EncoderInfo
from quire.core.ids import ModelId
from quire.engine.encoders.late_texts import LateInteractionTexts
from quire.engine.encoders.text import EncodedText, EncoderTexts
from quire.node.encoders.asking import EncoderRequests, OnBehalf
from quire.node.encoders.processes import EncoderProcesses


class EncoderService:
    """One encoder as requests see it. ``is_late``: it scores pairs by late interaction."""

    def __init__(
        self,
        name: ModelId,
        processes: EncoderProcesses,
        requests: EncoderRequests,
        *,
        is_late: bool,
    ) -> None:
        self.name = name
        self._processes = processes
        self._requests = requests
        self._is_late = is_late

    @property
    def info(self) -> EncoderInfo:
        """The encoder's properties. Raises ``EngineLost`` if it is not loaded yet or given up."""
        info = self._processes.info
        if not self._is_late:
            return info
        return msgspec.structs.replace(
            info, model=str(self.name), kind="cross_encoder", dimensions=1
        )

    @property
    def texts(self) -> EncoderTexts:
        """The rules by which texts become its sequences. Raises as ``info``."""
        return self._late_texts if self._is_late else self._processes.texts

    @cached_property
    def _late_texts(self) -> LateInteractionTexts:
        return LateInteractionTexts(self._processes.texts)

    async def encode(self, whose: OnBehalf, sequences: Sequence[EncodedText]) -> F32:
        """See ``EncoderRequests.ask``."""
        processes = self._processes
        size = processes.info.dimensions
        rows = await self._requests.ask(processes.name, size, sequences, whose)
        return rows[:, :1] if self._is_late else rows
