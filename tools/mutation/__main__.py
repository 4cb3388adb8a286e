"""``python -m tools.mutation``: try a sample of mutants, and tell which the tests do not notice."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tools.mutation.coverage_map import CoverageMap, coverage_map, digest_of
from tools.mutation.ledger import Ledger, Outcome, Result
from tools.mutation.operators import Mutant, source_with
from tools.mutation.overlay import Overlay
from tools.mutation.processes import TIMED_OUT, forked, preload
from tools.mutation.report import Tried, reasons, report, share
from tools.mutation.sample import sample
from tools.mutation.targets import GROUPS, SOURCE, WORK, Group

REPORT = WORK / "report.md"
BUDGET_S = 30.0
"""The tests that a mutant meets took so long in all without it; more are not asked."""
LIMIT_S, LIMIT_FACTOR = 60.0, 10.0
"""What these tests may take with it: they hang, rather than being slow on a busy machine."""


class Trial:
    """Tries the mutants of one group. ``stop`` is the time at which no further one begins."""

    def __init__(self, group: Group, overlay: Overlay, ledger: Ledger) -> None:
        self._group = group
        self._overlay = overlay
        self._ledger = ledger
        self._tests = digest_of(group.test_files())
        self._coverage: CoverageMap | None = None

    def outcome(self, mutant: Mutant, *, anew: bool) -> Outcome | None:
        """What is known or, if ``anew``, found out now."""
        module = digest_of([SOURCE / mutant.path])
        known = self._ledger.result(mutant.identity(), module, self._tests)
        if known is not None or not anew:
            return None if known is None else known.outcome
        if self._coverage is None:
            preload(())
            self._coverage = coverage_map(self._group)
            preload(self._coverage.modules)
        started_s = time.monotonic()
        outcome = self._try(mutant, self._coverage)
        seconds = time.monotonic() - started_s
        self._ledger.add(Result(mutant.identity(), module, self._tests, outcome, seconds))
        return outcome

    def _try(self, mutant: Mutant, coverage: CoverageMap) -> Outcome:
        tests = coverage.tests_of(mutant, BUDGET_S)
        if not tests:
            return Outcome.NOT_RUN
        took_s = sum(coverage.seconds[test] for test in tests)
        with self._overlay.fault(mutant.path, source_with(mutant, SOURCE)):
            status = forked(
                ["-x", *tests],
                path=self._overlay.root,
                log=self._overlay.root.with_suffix(".log"),
                limit_s=LIMIT_S + LIMIT_FACTOR * took_s,
            )
        if status == TIMED_OUT:
            return Outcome.TIMED_OUT
        return Outcome.SURVIVED if status == 0 else Outcome.KILLED


def run(options: argparse.Namespace) -> list[Tried]:
    stop_s = time.monotonic() + 60 * options.minutes
    chosen = [
        (group, mutant)
        for group, mutant in sample(GROUPS, options.size, options.seed)
        if options.group in (None, group.name)
    ]
    ledger, tried = Ledger(WORK / "results.jsonl"), []
    with Overlay(WORK / f"overlay-{os.getpid()}") as overlay:
        trials = {group.name: Trial(group, overlay, ledger) for group in GROUPS}
        for number, (group, mutant) in enumerate(chosen, 1):
            anew = not options.known and time.monotonic() < stop_s
            outcome = trials[group.name].outcome(mutant, anew=anew)
            if outcome is None:
                continue
            tried.append(Tried(group.name, mutant, outcome))
            if not outcome.is_noticed:
                place = f"src/{mutant.path}:{mutant.start}"
                print(f"[{number}/{len(chosen)}] {outcome}: {place}", flush=True)
    print(f"{len(tried)} of {len(chosen)} are tried")
    return tried


def show(identity: str, options: argparse.Namespace) -> None:
    """The tests that a mutant of the sample meets; the fault in its place is in the report."""
    for group, mutant in sample(GROUPS, options.size, options.seed):
        if mutant.identity() == identity:
            print(mutant.path, mutant.start, mutant.before, "->", mutant.after, sep="\n")
            print("\n".join(coverage_map(group).tests_of(mutant, BUDGET_S)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--size", type=int, default=400, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--group", choices=[group.name for group in GROUPS], help="only these")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin none after so long")
    parser.add_argument("--known", action="store_true", help="try nothing, report what is known")
    parser.add_argument("--show", metavar="MUTANT", help="which tests a mutant meets")
    parser.add_argument("--bar", type=float, default=0.85, help="share that must be noticed")
    options = parser.parse_args(arguments)
    if options.show is not None:
        show(options.show, options)
        return 0
    tried = run(options)
    text = report(tried, reasons())
    REPORT.write_text(text, encoding="utf-8")
    print(text.split("\n## ")[0])
    print(f"{REPORT.relative_to(Path.cwd())}: what was not noticed")
    return 0 if share(tried) >= options.bar else 1


if __name__ == "__main__":
    raise SystemExit(main())
