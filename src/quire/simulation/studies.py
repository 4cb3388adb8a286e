"""A study: one policy on one workload, by name, from drawing the programs to the summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from quire.control.policies import POLICIES
from quire.core.errors import ConfigError
from quire.core.policy import Policy
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.arrivals import Arrivals
from quire.simulation.bounds import BOUNDS
from quire.simulation.engines import EngineSpec
from quire.simulation.outcomes import ProgramOutcome, Summary, summarize
from quire.simulation.progress import Progress
from quire.simulation.trial import SimulationRun
from quire.simulation.work import WorkTable
from quire.simulation.workloads import ProgramPlan, create_workload, draw_programs
from quire.simulation.workloads.recorded import RecordedLoad

SIMULATED_POLICIES = (*POLICIES, *BOUNDS)

_NUM_SAMPLES = 500
"""The number of sampled programs from whose work ``gittins`` learns the workload, and from whose
lengths the capacity is estimated. Drawn with a seed of their own: none of them is played."""


@dataclass(frozen=True, slots=True)
class Study:
    """A simulation without its policy. ``load``: instead of the arrivals' rate, that share of the
    capacity that is estimated for the workload. ``recorded``: programs that a node served, at the
    times of that load, instead of drawn ones; ``workload`` is a name for them then.

    Raises:
        ConfigError: an unknown workload, or figures that cannot be played.
    """

    workload: str
    num_programs: int
    seed: int = 0
    engines: EngineSpec = field(default_factory=EngineSpec)
    arrivals: Arrivals = field(default_factory=Arrivals)
    load: float | None = None
    recorded: RecordedLoad | None = None

    def __post_init__(self) -> None:
        if self.recorded is None:
            create_workload(self.workload)
        if self.num_programs < 1:
            raise ConfigError(f"num_programs is {self.num_programs}: choose at least 1")
        if self.seed < 0:  # their complements draw the samples
            raise ConfigError(f"seed is {self.seed}: choose 0 or more")
        if self.load is not None:
            if not (isfinite(self.load) and self.load > 0):
                raise ConfigError(f"the load is {self.load}: choose a number above 0")
            if self.arrivals.kind != "poisson":
                raise ConfigError(
                    f"arrivals are {self.arrivals.kind!r}: a load is a rate, of poisson arrivals"
                )

    def capacity(self) -> float:
        """The estimated capacity, in programs a second."""
        return self.engines.capacity(self.samples())

    def samples(self) -> Sequence[ProgramPlan]:
        """Programs that are representative of the workload."""
        if self.recorded is not None:
            return self.recorded.plans
        return draw_programs(create_workload(self.workload), _NUM_SAMPLES, ~self.seed)

    def drawn(self) -> tuple[Sequence[ProgramPlan], Sequence[float]]:
        """The programs that are played, and their arrival times."""
        if self.recorded is not None:
            return self.recorded.plans, self.recorded.times_s
        plans = draw_programs(create_workload(self.workload), self.num_programs, self.seed)
        return plans, self.arrivals.times_s(self.num_programs, self.seed)

    def settled(self) -> Study:
        """This study with the rate that ``load`` comes to."""
        if self.load is None:
            return self
        rate = self.load * self.capacity()
        return replace(self, arrivals=replace(self.arrivals, rate=rate), load=None)


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The result of one study. ``control_s`` is the only figure that differs between runs."""

    policy: str
    summary: Summary
    outcomes: tuple[ProgramOutcome, ...]
    num_messages: int
    control_s: float


def examine(
    study: Study, scheduler: SchedulerConfig, *, progress: Progress | None = None
) -> StudyResult:
    """Play ``study`` under ``scheduler``, whose policy may be one of ``BOUNDS``.

    Raises:
        ConfigError: there is no such policy.
    """
    name = scheduler.policy
    if name not in SIMULATED_POLICIES:
        raise ConfigError(
            f"no scheduling policy is called {name!r}: choose from "
            f"{', '.join(sorted(SIMULATED_POLICIES))}"
        )
    study = study.settled()
    plans, times_s = study.drawn()
    result = SimulationRun(
        plans,
        times_s,
        study.engines,
        scheduler if name in POLICIES else replace(scheduler, policy="fcfs"),
        policy=_bound(name, study),
        progress=progress,
    ).run()
    return StudyResult(
        name, summarize(result.outcomes), result.outcomes, result.num_messages, result.control_s
    )


def _bound(name: str, study: Study) -> Callable[[WorkTable], Policy] | None:
    if name not in BOUNDS:
        return None
    samples = study.samples()

    def made(works: WorkTable) -> Policy:
        return BOUNDS[name](works, [works.total(plan) for plan in samples])

    return made
