"""``python -m tools.mutation``: tests a sample of mutants, and reports those that survive."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tools.mutation.coverage_map import coverage_map
from tools.mutation.ledger import Ledger
from tools.mutation.operators import Mutant
from tools.mutation.overlay import Overlay
from tools.mutation.report import Tried, reasons, report, share
from tools.mutation.sample import sample
from tools.mutation.targets import GROUPS, WORK, Group
from tools.mutation.trial import BUDGET_S, MutantTrial
from tools.mutation.workers import share_out

REPORT = WORK / "report.md"
LEDGER = WORK / "results.jsonl"


def run(options: argparse.Namespace) -> list[Tried]:
    stop_s = time.monotonic() + 60 * options.minutes
    chosen = [
        (group, mutant)
        for group, mutant in sample(chosen_groups(options), options.size, options.seed)
        if options.group in (None, group.name)
    ]
    if not options.known:
        try_all(chosen, options.jobs, stop_s, options.budget_s)
    ledger = Ledger(LEDGER)
    trials = {group.name: MutantTrial(group, ledger) for group in GROUPS}
    known = [(group, mutant, trials[group.name].known_outcome(mutant)) for group, mutant in chosen]
    tried = [Tried(group.name, mutant, found) for group, mutant, found in known if found]
    print(f"{len(tried)} of {len(chosen)} are tried")
    return tried


def chosen_groups(options: argparse.Namespace) -> list[Group]:
    """Return all groups, or the named one if it has a sample of its own."""
    for group in GROUPS:
        if group.name == options.group:
            own_sample = options.own_sample or group.own_sample
            if own_sample is not None:
                return [replace(group, own_sample=own_sample)]
    return list(GROUPS)


def try_all(
    chosen: Sequence[tuple[Group, Mutant]], num_workers: int, stop_s: float, budget_s: float
) -> None:
    """Test the mutants without a known result; none is begun after ``stop_s``."""
    ledger = Ledger(LEDGER)
    trials = {group.name: MutantTrial(group, ledger, budget_s) for group in GROUPS}
    waiting = [
        (trials[group.name], mutant)
        for group, mutant in chosen
        if trials[group.name].known_outcome(mutant) is None
    ]
    waiting.sort(key=lambda pair: ledger.has_met(pair[1].identity()))  # news first
    for trial in dict.fromkeys(trial for trial, _ in waiting):
        trial.prepare()

    def work(numbers: Iterator[int]) -> None:
        with Overlay(WORK / f"overlay-{os.getpid()}") as overlay:
            for number in numbers:
                if time.monotonic() > stop_s:
                    break
                trial, mutant = waiting[number]
                outcome = trial.new_outcome(mutant, overlay)
                if not outcome.is_noticed:
                    place = f"src/{mutant.path}:{mutant.start}"
                    print(f"[{number + 1}/{len(waiting)}] {outcome}: {place}", flush=True)

    share_out(len(waiting), num_workers, work)


def show(identity: str, options: argparse.Namespace) -> None:
    """Print the tests that a mutant of the sample must pass; the report shows the mutant itself."""
    for group, mutant in sample(chosen_groups(options), options.size, options.seed):
        if mutant.identity() == identity:
            print(mutant.path, mutant.start, mutant.before, "->", mutant.after, sep="\n")
            print("\n".join(coverage_map(group).tests_of(mutant, options.budget_s)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--size", type=int, default=400, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--group", choices=[group.name for group in GROUPS], help="only these")
    parser.add_argument(
        "--own-sample", type=int, metavar="N", help="N mutants of the group instead of its share"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, default=600.0, help="begin none after this time")
    parser.add_argument(
        "--budget-s", type=float, default=BUDGET_S, help="processor time of a mutant's tests"
    )
    parser.add_argument("--known", action="store_true", help="run no tests, report known results")
    parser.add_argument("--show", metavar="MUTANT", help="show the tests of a mutant")
    parser.add_argument("--bar", type=float, default=0.85, help="share that must be noticed")
    options = parser.parse_args(arguments)
    if options.show is not None:
        show(options.show, options)
        return 0
    tried = run(options)
    text = report(tried, reasons())
    REPORT.write_text(text, encoding="utf-8")
    print(text.split("\n## ")[0])
    print(f"{REPORT.relative_to(Path.cwd())}: surviving mutants")
    return 0 if share(tried) >= options.bar else 1


if __name__ == "__main__":
    raise SystemExit(main())
