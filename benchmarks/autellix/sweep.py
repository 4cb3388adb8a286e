"""Plays contenders at rising rates of arrival: what each row of a load curve contains, and when a
contender is out.

Owns the order of runs: at each rate every contender with every seed, then the next rate. Who is
far above the latency that matters is not run at higher rates: the queue only grows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.autellix.playing import Task, play_all
from benchmarks.autellix.rates import Rate, rate_at
from benchmarks.autellix.systems import SYSTEMS, System
from quire.simulation.arrivals import Arrivals
from quire.simulation.engines import EngineSpec
from quire.simulation.outcomes import plain
from quire.simulation.studies import Study, StudyResult
from quire.simulation.workloads import create_workload, draw_programs
from quire.simulation.workloads.plan import ProgramPlan
from quire.simulation.workloads.recorded import RecordedLoad

Row = dict[str, Any]

TIMES_ALONE = (2.0, 3.0, 5.0)
"""The latencies that count are those of programs that have the engine for themselves, times these;
for P95 and P99 times these again by ``TAILS``."""
TAILS: Mapping[str, float] = {"mean": 1.0, "p95": 2.0, "p99": 4.0}
GIVE_UP = 3.0
"""A contender is out when its mean is beyond the largest latency that counts by so much."""
_NUM_ALONE = 20


@dataclass(frozen=True, slots=True)
class Contender:
    system: System
    engines: EngineSpec


@dataclass(frozen=True, slots=True)
class Trace:
    """Programs of ``workload`` at rising loads. ``num_programs``: their number for one engine; n
    engines get n times as many. ``wait_s``: seconds between the end of a call and those that follow
    it, beside what the workload has."""

    workload: str
    num_programs: int
    seeds: Sequence[int]
    loads: Sequence[float]
    wait_s: float = 0.0

    def study(self, engines: EngineSpec, load: float, seed: int) -> Study:
        """Return the run of this load and seed. All seeds have the same rate of arrivals."""
        rate = load * Study(self.workload, 1, engines=engines).capacity()
        number = self.num_programs * engines.num_engines
        study = Study(
            self.workload, number, seed=seed, engines=engines, arrivals=Arrivals(rate=rate)
        )
        return waiting(study, self.wait_s) if self.wait_s else study


def waiting(study: Study, wait_s: float) -> Study:
    """Return the same programs at the same times, whose later calls come ``wait_s`` later."""
    plans = draw_programs(create_workload(study.workload), study.num_programs, study.seed)
    times_s = study.arrivals.times_s(study.num_programs, study.seed)
    later = tuple(_later(plan, wait_s) for plan in plans)
    return replace(study, recorded=RecordedLoad(later, tuple(times_s), num_left_out=0))


def _later(plan: ProgramPlan, wait_s: float) -> ProgramPlan:
    calls = (
        replace(call, wait_s=call.wait_s + wait_s) if call.after else call for call in plan.calls
    )
    return ProgramPlan(plan.kind, tuple(calls))


class KeptRows:
    """The rows of runs that were made, one in each line of the file at ``path`` (None: nowhere), so
    that a long sweep can be interrupted and continued. The caller names a file for each choice of
    systems and engines: a row says what was run, not how."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[tuple[Any, ...], Row] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self._rows[_key_of(row)] = row

    def get(self, name: str, load: float, study: Study) -> Row | None:
        """Return the row of that run, if it was made."""
        programs, engines = study.num_programs, study.engines.num_engines
        return self._rows.get((study.workload, name, engines, programs, load, study.seed))

    def add(self, row: Row) -> None:
        """Keep ``row``, in the file at once."""
        self._rows[_key_of(row)] = row
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _key_of(row: Row) -> tuple[Any, ...]:
    names = ("workload", "system", "engines", "programs", "load", "seed")
    return tuple(row[name] for name in names)


def latency_alone_s(workload: str, engines: EngineSpec) -> float:
    """Return the mean latency of a token, in seconds, of programs that run one after the other,
    without further waits between their calls."""
    study = Study(workload, _NUM_ALONE, engines=engines, arrivals=Arrivals("closed", width=1))
    [found] = play_all([Task(f"{workload}, one at a time", study, SYSTEMS["fcfs"])], 1)
    return found.summary.token_latency_s.mean


def sweep(
    trace: Trace,
    contenders: Mapping[str, Contender],
    slo_s: float,
    num_jobs: int,
    kept: KeptRows | None = None,
) -> list[Row]:
    """Play all contenders at all loads with all seeds, and return a row for each run. A contender
    whose mean latency is beyond ``GIVE_UP`` times ``slo_s`` with every seed is not played at higher
    loads. Runs whose rows ``kept`` has are not made again; it gets the others."""
    rows: list[Row] = []
    left = dict(contenders)
    for load in trace.loads:
        runs = [(name, seed) for seed in trace.seeds for name in left]
        found = _play_rows(load, trace, left, runs, num_jobs, kept or KeptRows(None))
        rows += found
        for name in [*left]:
            means = [row["latency_s"]["mean"] for row in found if row["system"] == name]
            if min(inf if one is None else one for one in means) > GIVE_UP * slo_s:
                del left[name]
    return rows


def _play_rows(
    load: float,
    trace: Trace,
    contenders: Mapping[str, Contender],
    runs: Sequence[tuple[str, int]],
    num_jobs: int,
    kept: KeptRows,
) -> list[Row]:
    """The rows of ``runs`` (name of the contender and seed), in their order."""
    studies = [trace.study(contenders[name].engines, load, seed) for name, seed in runs]
    found = [kept.get(name, load, study) for (name, _), study in zip(runs, studies, strict=True)]
    missing = [number for number, row in enumerate(found) if row is None]
    tasks = []
    for number in missing:
        name, seed = runs[number]
        label = f"{trace.workload} at {load:g}, seed {seed}, {name}"
        tasks.append(Task(label, studies[number], contenders[name].system))

    def note(task: int, result: StudyResult) -> None:
        number = missing[task]
        row = found[number] = row_of(runs[number][0], load, studies[number], result)
        kept.add(row)

    play_all(tasks, num_jobs, note)
    return [row for row in found if row is not None]


def row_of(name: str, load: float, study: Study, found: StudyResult) -> Row:
    """Return one run as a row. Latencies are seconds per token of a program (Autellix, 6.2); None
    stands for infinite."""
    summary = found.summary
    num_prompt = summary.num_prefilled_tokens + summary.num_cached_tokens
    row: Row = {
        "workload": study.workload,
        "system": name,
        "engines": study.engines.num_engines,
        "programs": study.num_programs,
        "load": load,
        "rate": study.arrivals.rate,
        "seed": study.seed,
        "latency_s": summary.token_latency_s,
        "response_s": summary.response_s,
        "waiting_s": summary.waiting_s,
        "makespan_s": summary.makespan_s,
        "tokens_per_s": summary.tokens_per_s,
        "cached": summary.num_cached_tokens / num_prompt,
        "preempted": summary.num_preemptions,
        "failed": summary.num_failed,
    }
    return {key: _rounded(plain(value)) for key, value in row.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def rates_of(rows: Sequence[Row], slo_s: float) -> dict[str, dict[str, dict[int, Rate]]]:
    """Return the rate that each contender sustains, by its name, by the part of the latency
    (``TAILS``) and by seed."""
    found: dict[str, dict[str, dict[int, Rate]]] = {}
    for name in dict.fromkeys(row["system"] for row in rows):
        own = [row for row in rows if row["system"] == name]
        seeds = sorted({row["seed"] for row in own})
        found[name] = {
            tail: {seed: rate_at(_curve(own, seed, tail), slo_s * times) for seed in seeds}
            for tail, times in TAILS.items()
        }
    return found


def _curve(rows: Sequence[Row], seed: int, tail: str) -> list[tuple[float, float]]:
    latencies = [
        (row["rate"], row["latency_s"][tail]) for row in sorted(rows, key=lambda row: row["rate"])
        if row["seed"] == seed
    ]  # fmt: skip
    return [(rate, inf if latency is None else latency) for rate, latency in latencies]


def mean_curve(rows: Sequence[Row], name: str, figure: str, part: str) -> list[tuple[float, float]]:
    """Return the mean over seeds at each rate of one part of a figure, for a drawing. Rates at
    which a program failed are left out."""
    own = [row for row in rows if row["system"] == name]
    points = []
    for rate in sorted({row["rate"] for row in own}):
        values = [row[figure][part] for row in own if row["rate"] == rate]
        if None not in values:
            points.append((rate, fmean(values)))
    return points
