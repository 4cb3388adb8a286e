"""The outcomes of simulated programs: one row each, and their summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf, isfinite
from typing import Any


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """One program. ``arrived_s``: when it was scheduled to arrive; ``ended_s``: infinity if it
    failed, for the reason in ``error``. The figures are control's, for itself and the programs that
    it launched."""

    number: int
    kind: str
    arrived_s: float
    ended_s: float
    num_calls: int
    num_output_tokens: int
    service_s: float
    waiting_s: float
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    error: str | None = None

    @property
    def response_s(self) -> float:
        return self.ended_s - self.arrived_s

    @property
    def token_latency_s(self) -> float:
        """Program-level token latency (Autellix, 6.1): the response time over all tokens that were
        generated, those of threads side by side included."""
        return self.response_s / self.num_output_tokens


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles (nearest rank); infinite where programs failed."""

    mean: float
    p50: float
    p95: float
    p99: float


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[max(0, ceil(share * len(ordered)) - 1)]

    return Spread(sum(ordered) / len(ordered), rank(0.50), rank(0.95), rank(0.99))


@dataclass(frozen=True, slots=True)
class Summary:
    """All programs of one run. ``makespan_s``: from time 0 to the last end, of those that did not
    fail. ``tokens_per_s``: generated, over that time."""

    num_programs: int
    num_failed: int
    num_calls: int
    num_output_tokens: int
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    makespan_s: float
    tokens_per_s: float
    token_latency_s: Spread
    response_s: Spread
    waiting_s: Spread
    service_s: Spread


def summarize(outcomes: Sequence[ProgramOutcome]) -> Summary:
    ended = [one for one in outcomes if one.error is None]
    makespan_s = max((one.ended_s for one in ended), default=0.0)
    num_tokens = sum(one.num_output_tokens for one in ended)
    return Summary(
        num_programs=len(outcomes),
        num_failed=len(outcomes) - len(ended),
        num_calls=sum(one.num_calls for one in outcomes),
        num_output_tokens=num_tokens,
        num_prefilled_tokens=sum(one.num_prefilled_tokens for one in outcomes),
        num_cached_tokens=sum(one.num_cached_tokens for one in outcomes),
        num_preemptions=sum(one.num_preemptions for one in outcomes),
        makespan_s=makespan_s,
        tokens_per_s=num_tokens / makespan_s if makespan_s else 0.0,
        token_latency_s=spread([one.token_latency_s for one in outcomes]),
        response_s=spread([one.response_s for one in outcomes]),
        waiting_s=spread([one.waiting_s for one in outcomes]),
        service_s=spread([one.service_s for one in outcomes]),
    )


def plain(value: Any) -> Any:
    """A summary or an outcome as JSON values: infinity, which JSON does not have, as ``null``."""
    if isinstance(value, float):
        return value if isfinite(value) and value != inf else None
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if isinstance(value, str | int | None) else plain(asdict(value))
