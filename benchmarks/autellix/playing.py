"""Plays simulated runs, one after the other or on several cores, and prints a line for each.

Virtual time: neither the machine nor the number of processes changes a figure, but for those that
are named so (``control_s``).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.autellix.systems import System, uncached
from benchmarks.options import plain_parser
from quire.simulation.outcomes import summarize
from quire.simulation.studies import Study, StudyResult, examine
from quire.simulation.trial import SimulationRun
from quire.simulation.workloads import create_workload, draw_programs

Given = TypeVar("Given")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Task:
    """One run to be played. ``label``: what the line says that is printed when it has been
    played."""

    label: str
    study: Study
    system: System


def play(task: Task) -> StudyResult:
    """Play ``task`` in this process."""
    study, system = task.study.settled(), task.system
    if system.is_caching:
        return examine(study, system.scheduler)
    plans = draw_programs(create_workload(study.workload), study.num_programs, study.seed)
    run = SimulationRun(
        [uncached(plan) for plan in plans],
        study.arrivals.times_s(study.num_programs, study.seed),
        study.engines,
        system.scheduler,
    ).run()
    policy = system.scheduler.policy
    return StudyResult(
        policy, summarize(run.outcomes), run.outcomes, run.num_messages, run.control_s
    )


def play_all(
    tasks: Sequence[Task],
    num_jobs: int,
    on_found: Callable[[int, StudyResult], None] | None = None,
) -> list[StudyResult]:
    """Play ``tasks`` in ``num_jobs`` processes; return their results in the order of ``tasks``.
    ``on_found`` receives the number and the result of each task as soon as it has run."""
    began_s = time.monotonic()

    def tell(number: int, num_done: int, found: StudyResult) -> None:
        latency_ms = 1000 * found.summary.token_latency_s.mean
        print(
            f"[{num_done}/{len(tasks)}, {time.monotonic() - began_s:.0f} s] {tasks[number].label}: "
            f"{latency_ms:.1f} ms/token, response {found.summary.response_s.mean:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        if on_found is not None:
            on_found(number, found)

    if num_jobs == 1:
        findings = []
        for number, task in enumerate(tasks):
            findings.append(play(task))
            tell(number, number + 1, findings[-1])
        return findings
    by_number: dict[int, StudyResult] = {}
    for number, found in in_processes(play, tasks, num_jobs):
        by_number[number] = found
        tell(number, len(by_number), found)
    return [by_number[number] for number in range(len(tasks))]


def in_processes(
    function: Callable[[Given], Found], given: Sequence[Given], num_jobs: int
) -> Iterator[tuple[int, Found]]:
    """Call ``function`` with each of ``given`` in ``num_jobs`` processes; yield the number and the
    result of each as soon as it is there. Processes inherit what is given: compiled control's
    frozen classes, such as ``StepCost``, cannot be unpickled."""
    forked = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(
        num_jobs, mp_context=forked, initializer=_inherit, initargs=(function, given)
    ) as pool:
        futures = {pool.submit(_call_with, number): number for number in range(len(given))}
        for future in as_completed(futures):
            yield futures[future], future.result()


_inherited: tuple[Callable[[Any], Any], Sequence[Any]]


def _inherit(function: Callable[[Any], Any], given: Sequence[Any]) -> None:
    global _inherited
    _inherited = function, given


def _call_with(number: int) -> Any:
    function, given = _inherited
    return function(given[number])


def simulation_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options of scripts that simulate: those of every script, seeds and
    processes."""
    made = plain_parser(description)
    made.add_argument("--seeds", nargs="+", type=int, default=None, help="default: 1 2 3")
    made.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        help="processes at a time; no figure depends on it (default: %(default)s)",
    )
    return made


def seeds_of(arguments: argparse.Namespace) -> list[int]:
    """Return the seeds, with ``--quick`` only the first."""
    seeds: list[int] = arguments.seeds or [1, 2, 3]
    return seeds[:1] if arguments.quick else seeds
