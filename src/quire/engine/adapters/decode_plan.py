"""A decode plan that keeps each row's adapter when other rows are dropped."""

from __future__ import annotations

from torch import Tensor

from quire.core.batch import I32
from quire.engine.adapters.token_groups import I64
from quire.engine.attention.backend import AttentionAttributes, DecodePlan
from quire.engine.kv_cache.torch_pool import LayerCache


class AdaptedDecodePlan:
    """A ``DecodePlan`` that keeps ``adapters_R`` aligned with the rows of ``plan``."""

    def __init__(self, plan: DecodePlan, adapters_R: I32) -> None:
        self._plan = plan
        self.adapters_R = adapters_R

    def advance(self, slots_R: I64, positions_R: I32) -> None:
        self._plan.advance(slots_R, positions_R)

    def keep(self, rows: I64) -> None:
        self._plan.keep(rows)
        self.adapters_R = self.adapters_R[rows]

    def attend(self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes) -> Tensor:
        return self._plan.attend(q_TND, cache, attributes)
