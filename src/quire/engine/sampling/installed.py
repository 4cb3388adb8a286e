"""Runs processors of installed packages as steps of a group: their faults end only their own rows.

Shapes: S rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from quire.core.decoding import Params
from quire.core.errors import EngineError
from quire.engine.sampling.candidates import Candidates
from quire.engine.sampling.group_memory import GroupMemory
from quire.engine.sampling.protocol import History, Rows, SamplingProcessor


class ProcessorFault(Exception):
    """A package's processor raised, or returned invalid scores; ``error`` is for its rows."""

    def __init__(self, error: EngineError) -> None:
        super().__init__(error.message)
        self.error = error


class InstalledStep:
    """One package's processor, bound to the rows of a group."""

    def __init__(self, processor: SamplingProcessor, params: Sequence[Params], rows: Rows) -> None:
        self._name = processor.name
        self._needs_history = processor.needs_history
        self._rows = rows
        try:
            self._bound = processor.bind(params, rows)
        except Exception as exc:  # third-party code
            raise ProcessorFault(self._failed(exc)) from exc

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        history = memory.history if self._needs_history else self._no_history()
        try:
            scores_SV = self._bound(candidates.over_vocabulary(), history)
        except Exception as exc:  # third-party code
            raise ProcessorFault(self._failed(exc)) from exc
        shape = (self._rows.num_rows, self._rows.vocab_size)
        if not isinstance(scores_SV, torch.Tensor) or scores_SV.shape != shape:
            raise ProcessorFault(
                EngineError(f"processor {self._name!r} must return scores of the shape {shape}")
            )
        candidates.replace_all(scores_SV.to(torch.float32))

    def _failed(self, exc: Exception) -> EngineError:
        return EngineError(
            f"processor {self._name!r} failed: {exc!r}; leave it out or correct its package"
        )

    def _no_history(self) -> History:
        nothing = torch.zeros(self._rows.num_rows, dtype=torch.int64, device=self._rows.device)
        return History(nothing[:, None][:, :0], nothing, nothing)


def adapt(processor: SamplingProcessor) -> Callable[[Sequence[Params], Rows], InstalledStep]:
    """A function that binds ``processor`` to a group."""
    return lambda params, rows: InstalledStep(processor, params, rows)
