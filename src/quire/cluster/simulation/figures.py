"""The outcomes of the requests to a virtual cluster: one row for each, and their summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from quire.simulation.outcomes import Spread, spread


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """``first_s`` and ``ended_s``: infinity if the request failed, for the reason in ``error``.
    ``engine``: the one that answered."""

    number: int
    arrived_s: float
    first_s: float
    ended_s: float
    num_prompt: int
    num_output: int
    prefix: int | None
    engine: str | None
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_s - self.arrived_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 for an answer of one token."""
        if self.error is not None:
            return inf
        return (self.ended_s - self.first_s) / max(1, self.num_output - 1)

    @property
    def jct_s(self) -> float:
        """Job completion time."""
        return self.ended_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """All requests of one run. ``num_cached_tokens``: prompt tokens that the computing node had in
    its cache; ``num_sent_bytes``: K and V sent between nodes. ``most_share``: the share of requests
    that the busiest node answered."""

    num_requests: int
    num_failed: int
    num_output_tokens: int
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_sent_bytes: int
    most_share: float
    makespan_s: float
    ttft_s: Spread
    tpot_s: Spread
    jct_s: Spread


def summarize_requests(
    outcomes: Sequence[RequestOutcome], num_prefilled: int, num_cached: int, num_sent_bytes: int
) -> ClusterSummary:
    ended = [one for one in outcomes if one.error is None]
    answered = Counter(one.engine for one in ended)
    return ClusterSummary(
        num_requests=len(outcomes),
        num_failed=len(outcomes) - len(ended),
        num_output_tokens=sum(one.num_output for one in ended),
        num_prefilled_tokens=num_prefilled,
        num_cached_tokens=num_cached,
        num_sent_bytes=num_sent_bytes,
        most_share=max(answered.values(), default=0) / max(1, len(ended)),
        makespan_s=max((one.ended_s for one in ended), default=0.0),
        ttft_s=spread([one.ttft_s for one in outcomes]),
        tpot_s=spread([one.tpot_s for one in outcomes]),
        jct_s=spread([one.jct_s for one in outcomes]),
    )
