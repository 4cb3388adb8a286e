"""Tests a sampling processor without an engine: implements the conformance kit's
``ProcessorTrial``.

For authors of processor packages; the engine does not use it.

Shapes: S rows, V vocabulary, L tokens of the longest history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from quire.core.decoding import Params
from quire.core.errors import InvalidArgument
from quire.engine.sampling.declarations import check_params, with_defaults
from quire.engine.sampling.protocol import History, Rows, SamplingProcessor
from quire.engine.sampling.registry import STANDARD, problem_of

F32 = NDArray[np.float32]
Histories = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class ProcessorOutcome:
    """Same fields as ``quire.testing.conformance.processor.Applied``."""

    scores_SV: NDArray[np.float32]
    inputs_changed: bool


class Trial:
    """One processor over one vocabulary, on one device."""

    def __init__(
        self, processor: SamplingProcessor, vocab_size: int = 64, device: str = "cpu"
    ) -> None:
        self._processor = processor
        self._vocab_size = vocab_size
        self._device = torch.device(device)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def problem(self, params: Params) -> str | None:
        """Why an engine would refuse the processor, or these parameters of it."""
        found = problem_of(self._processor, self._processor.name, STANDARD)
        if found is not None:
            return found
        try:
            check_params(self._processor.name, self._processor.parameters, params, self._vocab_size)
        except InvalidArgument as exc:
            return exc.message
        return None

    def apply(
        self,
        params: Sequence[Params],
        steps: Sequence[tuple[F32, Histories]],
        num_prompt: int = 0,
    ) -> list[ProcessorOutcome]:
        """Bind once for these rows and apply to each step's scores ``[S, V]`` and histories."""
        filled = [with_defaults(self._processor.parameters, one) for one in params]
        rows = Rows(len(params), self._vocab_size, self._device)
        bound = self._processor.bind(filled, rows)
        outcomes = []
        for scores, histories in steps:
            scores_SV = torch.tensor(scores, device=self._device)
            history = history_of(histories, num_prompt, self._device)
            given = scores_SV.clone(), history.tokens_SL.clone()
            with torch.inference_mode():
                found = bound(scores_SV, history)
            same = torch.equal(scores_SV, given[0]) and torch.equal(history.tokens_SL, given[1])
            outcomes.append(ProcessorOutcome(found.cpu().numpy(), not same))
        return outcomes


def history_of(histories: Histories, num_prompt: int, device: torch.device) -> History:
    """Histories in the form that a processor receives."""
    lengths_S = torch.tensor([len(one) for one in histories])
    tokens_SL = torch.full((len(histories), int(lengths_S.max())), -1, dtype=torch.int64)
    for place, one in enumerate(histories):
        tokens_SL[place, : len(one)] = torch.tensor(one, dtype=torch.int64)
    generated_S = (lengths_S - num_prompt).clamp(min=0)
    return History(tokens_SL.to(device), lengths_S.to(device), generated_S.to(device))
