"""Rank 0's runner: sends every call to the other ranks and executes its own part."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32, AdvanceRows
from quire.engine.attention.backend import AttentionRows, DecodePlan
from quire.engine.attention.scored_rows import AttentionMass
from quire.engine.embed_slots import EmbedSlots
from quire.engine.model_runner import F32, AdvanceResult, FusedRows, FusedTokens, SequenceState
from quire.engine.parallel import messages as m
from quire.engine.parallel.group import RankGroup
from quire.engine.parallel.leading_pool import LeadingPool
from quire.engine.sampling.plan import CommonParameters
from quire.engine.torch_runner import TorchRunner

I64 = NDArray[np.int64]


class LeadingRunner:
    """Implements ``ModelRunner`` over a group of ranks; ``runner`` is rank 0's own.

    Raises (every call):
        EngineFault: a rank has ended.
    """

    serves_scores = False
    """A rank has the probabilities of its own heads only."""

    def __init__(self, runner: TorchRunner, group: RankGroup, num_kv_heads: int) -> None:
        """``num_kv_heads``: of the undivided model."""
        self._runner = runner
        self._group = group
        self.pool = LeadingPool(runner.pool, group, num_kv_heads)
        self.embeds = LeadingEmbeds(runner.embeds, group)

    @property
    def details(self) -> dict[str, Any]:
        return self._runner.details

    def embed(self, tokens_N: I64) -> Tensor:
        with self._group.guard():
            self._group.tell(m.RankEmbed(tokens=np.asarray(tokens_N, np.int64)))
            return self._runner.embed(tokens_N)

    def run_rows(
        self,
        rows: AttentionRows,
        tokens_T: I64,
        embeds_T: I32,
        mass: AttentionMass | None = None,
    ) -> Tensor:
        assert mass is None, "this runner lists no scores"
        with self._group.guard():
            tokens = np.asarray(tokens_T, np.int64)
            self._group.tell(m.RunRows(rows=m.pack_rows(rows), tokens=tokens, embeds=embeds_T))
            return self._runner.run_rows(rows, tokens_T, embeds_T)

    def plan_decode(self, rows: AttentionRows, num_steps: int) -> LeadingPlan:
        with self._group.guard():
            self._group.tell(m.PlanDecode(rows=m.pack_rows(rows), num_steps=num_steps))
        return LeadingPlan(self._runner.plan_decode(rows, num_steps), self._group)

    def run_decode(self, plan: Any, tokens_R: I64, positions_R: I32, slots_R: I64) -> Tensor:
        with self._group.guard():
            self._group.tell(
                m.RunDecode(
                    tokens=np.asarray(tokens_R, np.int64), positions=positions_R, slots=slots_R
                )
            )
            return self._runner.run_decode(plan.plan, tokens_R, positions_R, slots_R)

    def decode_fused(self, rows: FusedRows) -> FusedTokens | None:
        return None

    def advance(
        self, rows: AdvanceRows, num_steps: int, state: SequenceState
    ) -> AdvanceResult | None:
        return None

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """The other ranks project the hidden states of rank 0, which it broadcasts."""
        with self._group.guard():
            self._group.tell(m.Logits(num_rows=len(hidden_NH)))
            return self._runner.logits(self._group.collectives.share(hidden_NH))

    def choose(self, hidden_NH: Tensor, samplers: CommonParameters, positions_N: I64) -> I64 | None:
        return None

    def best(self, hidden_NH: Tensor, k: int) -> tuple[I32, F32] | None:
        return None

    def to_device(self, array: NDArray[np.integer]) -> Tensor:
        return self._runner.to_device(array)


class LeadingPlan:
    """``StepPlan`` of a group. The other ranks advance their plans when they run a step."""

    def __init__(self, plan: DecodePlan, group: RankGroup) -> None:
        self.plan = plan
        self._group = group

    def advance(self, slots_R: I64, positions_R: I32) -> None:
        self.plan.advance(slots_R, positions_R)

    def keep(self, rows: I64) -> None:
        with self._group.guard():
            self._group.tell(m.KeepRows(rows=rows))
        self.plan.keep(rows)


class LeadingEmbeds(EmbedSlots):
    """Embed slots that are replicated on every rank; rank 0 writes all copies."""

    def __init__(self, embeds: EmbedSlots, group: RankGroup) -> None:
        self.num_embeds = embeds.num_embeds
        self._embeds = embeds
        self._group = group

    def read(self, embeds: I32) -> Tensor:
        return self._embeds.read(embeds)

    def write(self, embeds: I32, vectors_EH: Tensor) -> None:
        with self._group.guard():
            self._group.tell(m.WriteEmbeds(embeds=embeds))
            self._embeds.write(embeds, self._group.collectives.share(vectors_EH))
