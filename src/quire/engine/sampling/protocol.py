"""The Protocol for packages that add sampling processors.

A package names its processors in the entry point group ``quire.processors``; ``registry`` finds
them. Owns the version, the parameter declarations and what a processor may see of its rows. Must
not know the engine's sequences or pages.

Shapes: S rows, V vocabulary, L tokens of the longest history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from quire.core.decoding import Params
from quire.engine.sampling.declarations import Parameter

PROTOCOL_VERSION = 1
"""Raised when processors written for an older version would no longer work, but not for
additions."""

ENTRY_POINT_GROUP = "quire.processors"


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a processor is bound to. Tensors must live on ``device``."""

    num_rows: int
    vocab_size: int
    device: torch.device


@dataclass(frozen=True, slots=True)
class History:
    """The tokens of each row so far, prompt and output.

    ``tokens_SL`` int64: row s holds its tokens in columns ``0 .. lengths_S[s] - 1``, followed by
    -1. The last ``num_generated_S`` of them were sampled. Must not be modified.
    """

    tokens_SL: Tensor
    lengths_S: Tensor
    num_generated_S: Tensor

    def last(self, count: int) -> Tensor:
        """The last ``count`` tokens of each row ``[S, count]``, -1 where there are none."""
        columns_SN = self.lengths_S[:, None] - count + torch.arange(count, device=self.device)
        inside_SN = columns_SN >= 0
        if self.tokens_SL.shape[1] == 0:
            return torch.full_like(columns_SN, -1)
        tokens_SN = self.tokens_SL.gather(1, columns_SN.clamp(min=0))
        return tokens_SN.masked_fill(~inside_SN, -1)

    @property
    def device(self) -> torch.device:
        return self.tokens_SL.device


class BoundProcessor(Protocol):
    """A processor bound to the parameters of some rows; used until the set of rows changes.

    Held by the engine. May keep values computed from its parameters, and caches of values read from
    histories; but its results must depend on parameters, scores and history alone, because rows are
    bound anew whenever the batch changes and after a preemption.
    """

    def __call__(self, scores_SV: Tensor, history: History) -> Tensor:
        """New scores float32 ``[S, V]``, ``-inf`` for excluded tokens.

        Row s may depend only on row s of the arguments and on its parameters. The arguments must
        not be modified. ``history`` is empty unless the processor sets ``needs_history``.
        """
        ...


@runtime_checkable
class SamplingProcessor(Protocol):
    """A named processor. An entry point names an instance, or a class without arguments.

    ``protocol_version``  the ``PROTOCOL_VERSION`` that it was written for. ``parameters``
    declared by name; values are checked and defaults filled in before ``bind``. ``needs_history``
    whether it uses the tokens so far, which cost memory and time.
    """

    @property
    def name(self) -> str: ...

    @property
    def protocol_version(self) -> int: ...

    @property
    def parameters(self) -> Mapping[str, Parameter]: ...

    @property
    def needs_history(self) -> bool: ...

    def bind(self, params: Sequence[Params], rows: Rows) -> BoundProcessor:
        """Prepare for rows with these parameters, one set each. Must not fail: they were
        checked."""
        ...


def describe(processor: SamplingProcessor) -> dict[str, Any]:
    """Name and declared parameters, for listings."""
    return {
        "name": processor.name,
        "parameters": {name: str(one) for name, one in processor.parameters.items()},
    }
