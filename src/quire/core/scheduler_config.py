"""The configuration of how commands are ordered, batched and let in. Built by the CLI, read by
control."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Literal

from quire.core.errors import ConfigError

PriorityScope = Literal["tenant", "node"]
ServiceUnit = Literal["tokens", "seconds"]


@dataclass(frozen=True, slots=True)
class LevelsConfig:
    """Queues of the policies ``mlfq``, ``plas`` and ``atlas`` (Autellix 4.2.2). ``quire`` reads
    ``beta`` and ``promoted_share`` alone.

    ``thresholds``: the attained service at which each queue but the first begins, rising; there is
    one queue more than thresholds. ``quanta``: how much of its service a call may get in a queue
    before it moves to the next; one for each threshold, by default the width of the queue.
    ``unit``: of thresholds and quanta; tokens of prompts and of answers, or seconds of messages.
    ``beta``: a call goes to the first queue when its program has waited this multiple of its
    service; None: never. ``promoted_share``: the share of an engine's sequences that such calls may
    have in the first queue at one time, at least 1.
    """

    thresholds: tuple[float, ...] = (64, 256, 1024, 4096, 16384)
    quanta: tuple[float, ...] | None = None
    unit: ServiceUnit = "tokens"
    beta: float | None = 4.0
    promoted_share: float = 0.1

    def __post_init__(self) -> None:
        thresholds = self.thresholds
        if not thresholds or not all(isfinite(one) and one > 0 for one in thresholds):
            raise ConfigError(
                f"levels.thresholds are {list(thresholds)}: give at least one finite number above 0"
            )
        if any(one >= other for one, other in pairwise(thresholds)):
            raise ConfigError(
                f"levels.thresholds are {list(thresholds)}: each has to be above the one before it"
            )
        if self.quanta is not None and len(self.quanta) != len(thresholds):
            raise ConfigError(
                f"levels.quanta: {len(self.quanta)} quanta for {len(thresholds)} thresholds: give "
                "one for each (the last queue has no quantum)"
            )
        if self.quanta is not None and not all(isfinite(one) and one > 0 for one in self.quanta):
            raise ConfigError(
                f"levels.quanta are {list(self.quanta)}: choose finite numbers above 0"
            )
        if self.unit not in ("tokens", "seconds"):
            raise ConfigError(f"unit is {self.unit!r}: choose 'tokens' or 'seconds'")
        if self.beta is not None and not (isfinite(self.beta) and self.beta > 0):
            raise ConfigError(f"levels.beta is {self.beta}: choose a finite number above 0")
        if not 0 < self.promoted_share <= 1:
            raise ConfigError(
                f"promoted_share is {self.promoted_share}: choose above 0 and at most 1"
            )


@dataclass(frozen=True, slots=True)
class PausingConfig:
    """When programs are paused. They are paused between two calls while the working sets of those
    that go on take more than ``above`` of memory: of the device, and of what is swapped out to the
    host (0: never). They go on again when they leave no more than ``resume_below`` taken. One that
    is paused for ``max_s`` takes the place of others that have had theirs for as long.

    ``max_hold_s``: the longest time that room is kept for one that waits for a tool or a person,
    while others are paused for lack of it; 0: no room is kept.

    Raises:
        ConfigError: shares outside 0 to 1 or in the wrong order, or times that are too short.
    """

    above: float = 0.95
    resume_below: float = 0.85
    max_s: float = 60.0
    max_hold_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.above <= 1.0:
            raise ConfigError(
                f"pausing.above is {self.above:g}, a share of memory: choose above 0 and at most "
                "1, or 0 for never"
            )
        if self.above and not 0.0 < self.resume_below <= self.above:
            raise ConfigError(
                f"pausing.resume_below is {self.resume_below:g} and pausing.above {self.above:g}: "
                "choose above 0 for the first, and not more than the second"
            )
        if not (isfinite(self.max_s) and self.max_s > 0):
            raise ConfigError(f"pausing.max_s is {self.max_s:g}: choose seconds above 0")
        if not (isfinite(self.max_hold_s) and self.max_hold_s >= 0):
            raise ConfigError(
                f"pausing.max_hold_s is {self.max_hold_s:g}: choose seconds above 0, or 0 for never"
            )


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``policy``: fcfs, program_fcfs, round_robin, mlfq, plas, atlas, quire, topology,
    critical_path or invocation. ``levels``: the queues of policies that have some. ``balancer``:
    chooses among the engines of one model: round_robin, least_used, autellix, occupied_kv or quire.

    ``step_quantum_s`` bounds the time of a message of several decode steps. ``chunk_steps``: how
    long a prompt chunk may take by itself, in multiples of a decode step's time, in a message that
    also decodes. ``patience``: for what share of a message's time an idle engine waits for programs
    that it has just answered and that usually continue at once. ``priority_scope``: priorities
    order the work of one tenant, or (``node``) take precedence over all tenants' fair shares.
    ``output_share``: the share of a decode's maximum output that admission assumes it will
    generate; the observed outputs correct the estimate. ``pausing``: when programs are paused.
    """

    policy: str = "fcfs"
    levels: LevelsConfig = LevelsConfig()
    balancer: str = "quire"
    step_quantum_s: float = 0.010
    max_steps_per_message: int = 32
    chunk_steps: float = 0.8
    patience: float = 0.25
    run_ahead: bool = True
    priority_scope: PriorityScope = "tenant"
    output_share: float = 0.5
    pausing: PausingConfig = field(default_factory=PausingConfig)

    def __post_init__(self) -> None:
        if self.priority_scope not in ("tenant", "node"):
            raise ConfigError(
                f"priority_scope is {self.priority_scope!r}: choose 'tenant' or 'node'"
            )
        if not 0.0 <= self.output_share <= 1.0:
            raise ConfigError(f"output_share is {self.output_share}: choose 0 to 1")
