"""An encoder with the manners of an engine: what processes and threads of the node run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.core.encoding import EncodeBatch, EncoderCore, EncodeResult, EncoderInfo
from quire.core.errors import QuireError


class EncoderEngine:
    """``core`` as its process runs it. A batch that the model cannot run is answered with its
    error; whatever else ``core`` raises is the loss of the encoder."""

    def __init__(self, core: EncoderCore) -> None:
        self._core = core

    @property
    def info(self) -> EncoderInfo:
        return self._core.info

    def execute(self, batch: EncodeBatch) -> EncodeResult:
        try:
            return self._core.encode(batch)
        except QuireError as exc:
            nothing = np.empty((0, 0), np.float32)
            return EncodeResult(number=batch.number, rows=nothing, error=exc.record())

    def transfer(self) -> None:
        """It has nothing that could be under way."""

    def wake_by(self, ring: Callable[[], None]) -> None:
        """It tells nothing of its own accord."""

    def close(self) -> None:
        """It goes with its process."""
