"""An encoder with the interface of an engine, which the node's processes and threads run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.core.encoding import EncodeBatch, EncoderCore, EncodeResult, EncoderInfo
from quire.core.errors import QuireError


class EncoderEngine:
    """Runs batches on ``core``. A batch that the model cannot run is answered with its error; any
    other exception of ``core`` is the loss of the encoder."""

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
        """Do nothing: an encoder has no transfers."""

    def wake_by(self, ring: Callable[[], None]) -> None:
        """Do nothing: an encoder only answers batches."""

    def close(self) -> None:
        """Do nothing: the end of the process frees the model."""
