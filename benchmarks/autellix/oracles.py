"""Measures what each part of ``srpt``'s knowledge is worth, with oracles that know only that part.

    python benchmarks/autellix/oracles.py [--workloads mixed bfcl] [--loads 0.95] [--seeds 0 1 2]

Engine, traces and seeds are those of ``quire_policy.py``, whose rows are read (``--references``).
No oracle can run on a node. What they know of a kind of program, they know from programs of that
kind that are not played:

- ``kind``: ranks by the Gittins index of the program's kind and of the work that it has had.
- ``calls so far``: the same, but by the number of calls that the program has made.
- ``current``: that, and how many tokens the calls that run still generate.
- ``calls``: how many calls the program still makes, each of the mean length of its kind.
- ``calls, current``: both.
- ``quire, taught``: the policy ``quire``, which has seen 256 programs of each kind end before the
  trace begins (``--taught``: another number).

``closed`` is the share of the distance from ``atlas`` (``plas`` where all have one thread) to
``srpt``: the median of the seeds, and the worst seed in brackets. Deterministic: a second run gives
the same rows.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import exp, floor, log
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.autellix.playing import in_processes, simulation_parser
from benchmarks.autellix.quire_policy import MEASURES, NUM_PROGRAMS, QUICK_SHARE, Row, earlier_rows
from benchmarks.autellix.simulated import ENGINE, MESSAGE_S
from benchmarks.report import ROOT, emit, print_table
from quire.control.policies.quire import LeastLeft
from quire.core.ids import TenantId
from quire.core.policy import Policy, ReadyCommand, ServiceFigures
from quire.core.scheduler_config import LevelsConfig, SchedulerConfig
from quire.simulation.bounds import Gittins
from quire.simulation.bounds.ranked import RankedByWork
from quire.simulation.outcomes import summarize
from quire.simulation.studies import Study
from quire.simulation.trial import SimulationRun
from quire.simulation.work import Work, WorkTable
from quire.simulation.workloads import ProgramPlan, create_workload, draw_programs

NUM_TAUGHT = 256
_RATIO = 1.15
"""Ranks that differ by less are equal, so that programs do not displace one another with each
message."""


class KnownKind:
    """What is known of a kind: its programs' total work, the work behind the first n calls of those
    that make as many, and the mean length of a call."""

    def __init__(self, plans: Sequence[ProgramPlan]) -> None:
        self.totals = [float(plan.num_output_tokens) for plan in plans]
        outputs = np.array([call.num_output for plan in plans for call in plan.calls], np.float64)
        self._outputs = np.sort(outputs)
        self.mean_call = float(outputs.mean())
        behind: dict[int, list[float]] = defaultdict(list)
        for plan in plans:
            left = float(plan.num_output_tokens)
            for number, call in enumerate(plan.calls, 1):
                left -= call.num_output
                behind[number].append(left)
        self._behind = {number: np.sort(np.array(lefts)) for number, lefts in behind.items()}
        self._most = max(self._behind)

    def behind(self, num_calls: int) -> np.ndarray:
        """Return what programs that have made ``num_calls`` calls still do behind them, sorted."""
        return self._behind[min(num_calls, self._most)]

    def rest_of_call(self, done: int) -> float:
        """Return the mean rest of a call that has generated ``done`` tokens."""
        longer = self._outputs[np.searchsorted(self._outputs, done, side="right") :]
        return float(longer.mean()) - done if len(longer) else self.mean_call


def least_cost(left: np.ndarray) -> float:
    """Return the least mean work for one end, of programs of which ``left`` is what they may have
    left, sorted: one over the Gittins index."""
    num_ended = np.arange(1, len(left) + 1)
    spent = np.cumsum(left) + left * (len(left) - num_ended)
    return float(np.min(spent / num_ended))


class Oracle(RankedByWork):
    """Ranks by calls. ``plans``: of the programs, which have one member each. ``knows_calls``: how
    many calls there will be; ``knows_current``: how long those that run are."""

    def __init__(
        self,
        works: WorkTable,
        plans: Sequence[ProgramPlan],
        kinds: Mapping[str, KnownKind],
        *,
        knows_calls: bool,
        knows_current: bool,
    ) -> None:
        super().__init__(works)
        assert all(call.member == 0 for plan in plans for call in plan.calls)
        self._plans, self._kinds = plans, kinds
        self._knows_calls, self._knows_current = knows_calls, knows_current
        self._live_calls: dict[int, set[int]] = defaultdict(set)
        self._num_made: dict[int, int] = defaultdict(int)
        self._in_ended: dict[int, int] = defaultdict(int)
        self._plan_of: dict[int, int] = {}

    @property
    def name(self) -> str:
        return "oracle"

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        plan = command.program - 1
        if command.command % 2:  # a decode; the other command of a call allocates its pages
            self._num_made[plan] += 1
            self._live_calls[plan].add(command.command // 2)
        work = self._works.of(command.program)
        if work is not None:
            self._plan_of[id(work)] = plan
        super().on_arrival(command, now_s)

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        super().on_ended(command, now_s)
        plan = command.program - 1
        if command.command % 2:
            self._live_calls[plan].discard(command.command // 2)
            self._in_ended[plan] += self._plans[plan].calls[command.command // 2].num_output

    def rank(self, work: Work) -> float:
        number = self._plan_of[id(work)]
        plan, live = self._plans[number], self._live_calls[number]
        kind, num_made = self._kinds[plan.kind], self._num_made[number]
        done = max(0.0, work.done - self._in_ended[number])
        if self._knows_current:
            own = max(0.0, sum(plan.calls[one].num_output for one in live) - done)
        else:
            own = kind.rest_of_call(round(done / max(1, len(live)))) * len(live)
        if self._knows_calls:
            rank = own + kind.mean_call * (len(plan.calls) - num_made)
        else:
            rank = least_cost(own + kind.behind(max(1, num_made)))
        return exp(log(_RATIO) * floor(log(max(rank, 1.0)) / log(_RATIO)))


class GittinsOfKind(RankedByWork):
    """Ranks by the Gittins index of the program's kind."""

    def __init__(
        self, works: WorkTable, plans: Sequence[ProgramPlan], kinds: Mapping[str, KnownKind]
    ) -> None:
        super().__init__(works)
        self._of_kind = {name: Gittins(works, kind.totals) for name, kind in kinds.items()}
        self._kind_of: dict[int, str] = {}
        self._plans = plans

    @property
    def name(self) -> str:
        return "gittins of kind"

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        work = self._works.of(command.program)
        if work is not None:
            self._kind_of[id(work)] = self._plans[command.program - 1].kind
        super().on_arrival(command, now_s)

    def rank(self, work: Work) -> float:
        return self._of_kind[self._kind_of[id(work)]].rank(work)


def taught(samples: Iterable[ProgramPlan]) -> Policy:
    """Return the policy ``quire`` that has seen ``samples`` end."""
    policy = LeastLeft(LevelsConfig())
    step_s = ENGINE.cost.step_s
    for plan in samples:
        figures = ServiceFigures()
        kinds = [policy._kinds.get((TenantId("default"), plan.kind)), policy._any_kind]
        lives = [kind.begin(figures) for kind in kinds]
        figures.generated_tokens = plan.num_output_tokens
        figures.service_tokens = plan.num_output_tokens + plan.num_prompt_tokens
        figures.service_s = step_s * (plan.num_output_tokens + len(plan.calls))
        for kind, life in zip(kinds, lives, strict=True):
            kind.end(life)
    return policy


Made = Callable[[WorkTable], Policy]
POLICIES = ("plas", "atlas", "quire", "gittins", "srpt")
ORACLES = ("quire, taught", "kind", "calls so far", "current", "calls", "calls, current")


def oracle(name: str, study: Study, plans: Sequence[ProgramPlan], num_taught: int) -> Made:
    by_kind: dict[str, list[ProgramPlan]] = defaultdict(list)
    for plan in draw_programs(create_workload(study.workload), 3000, ~study.seed):
        by_kind[plan.kind].append(plan)
    kinds = {kind: KnownKind(own) for kind, own in by_kind.items()}
    if name == "kind":
        return partial(GittinsOfKind, plans=plans, kinds=kinds)
    if name == "quire, taught":
        samples = [one for own in by_kind.values() for one in own[:num_taught]]
        return lambda works: taught(samples)
    return partial(
        Oracle,
        plans=plans,
        kinds=kinds,
        knows_calls=name in ("calls", "calls, current"),
        knows_current=name in ("current", "calls, current"),
    )


def play(run: tuple[Study, str, int]) -> Row:
    study, name, num_taught = run[0].settled(), run[1], run[2]
    plans, times_s = study.drawn()
    made = oracle(name, study, plans, num_taught)
    scheduler = SchedulerConfig(policy="fcfs", step_quantum_s=MESSAGE_S)
    played = SimulationRun(plans, times_s, study.engines, scheduler, policy=made).run()
    summary = summarize(played.outcomes)
    return {
        "workload": study.workload,
        "seed": study.seed,
        "policy": name,
        "ms_per_token": round(1000 * summary.token_latency_s.mean, 3),
        "response_s": round(summary.response_s.mean, 2),
        "failed": summary.num_failed,
    }


def closed(rows: Sequence[Row], policy: str, measure: str) -> str:
    """Return the median over seeds of the share of the distance, and the least."""
    shares = []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        value = {row["policy"]: float(str(row[measure])) for row in rows if row["seed"] == seed}
        base = value.get("atlas", value["plas"])
        shares.append((base - value[policy]) / (base - value["srpt"]))
    return f"{median(shares):.2f} ({min(shares):.2f})"


def line_of(rows: Sequence[Row], policy: str) -> dict[str, str]:
    """Return a line of the table: medians over seeds, and the shares that are closed."""
    line = {"policy": policy}
    for measure in MEASURES:
        values = [float(str(row[measure])) for row in rows if row["policy"] == policy]
        line[measure] = f"{median(values):.2f}"
        line[f"{measure} closed"] = closed(rows, policy, measure)
    return line


def main() -> None:
    made = simulation_parser(__doc__)
    made.add_argument("--workloads", nargs="+", choices=NUM_PROGRAMS, default=["mixed"])
    made.add_argument("--loads", nargs="+", type=float, default=[0.8, 0.95, 1.5])
    made.add_argument("--oracles", nargs="+", choices=ORACLES, default=[*ORACLES])
    made.add_argument("--taught", type=int, default=NUM_TAUGHT, metavar="PROGRAMS",
                      help="of each kind, by which quire is taught")  # fmt: skip
    made.add_argument("--references", type=Path, default=ROOT / "benchmarks" / "results",
                      help="folder with the rows of quire_policy.py")  # fmt: skip
    arguments = made.parse_args()
    seeds, num_taught = arguments.seeds or [0, 1, 2], arguments.taught
    rows: list[Row] = []
    for workload in arguments.workloads:
        number = NUM_PROGRAMS[workload] // (QUICK_SHARE if arguments.quick else 1)
        references = arguments.references / f"autellix-quire_policy-{workload}.json"
        for load in arguments.loads:
            runs = [
                (Study(workload, number, seed=seed, engines=ENGINE, load=load), name, num_taught)
                for seed in seeds
                for name in arguments.oracles
            ]
            by_number: dict[int, Row] = {}
            for index, row in in_processes(play, runs, arguments.jobs):
                by_number[index] = {"load": load, **row}
                print(by_number[index], file=sys.stderr, flush=True)
            own = [
                row
                for row in earlier_rows(references, number, ())
                if row["load"] == load and row["seed"] in seeds and row["policy"] in POLICIES
            ]
            own += [by_number[index] for index in range(len(runs))]
            rows += own
            table = [
                line_of(own, name) for name in dict.fromkeys(str(row["policy"]) for row in own)
            ]
            print_table(f"{workload}, {number} programs, a load of {load:g}", table)
    emit("autellix/oracles", arguments.out, rows=rows)


if __name__ == "__main__":
    main()
