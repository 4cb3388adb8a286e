"""Tests mutants of one group, one after another, with the tests that run their lines."""

from __future__ import annotations

import compileall
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from tools.mutation.coverage_map import CoverageMap, coverage_map, digest_of
from tools.mutation.ledger import Ledger, MutantOutcome, MutantResult
from tools.mutation.operators import Mutant, source_with
from tools.mutation.overlay import Overlay
from tools.mutation.processes import TIMED_OUT, forked, preload, run_tests
from tools.mutation.report import place_in_code, reasons
from tools.mutation.targets import ROOT, SOURCE, Group

BUDGET_S = 30.0
"""Unless another budget is given, a mutant is tested with tests of at most this processor time in
total, measured without the mutant."""
LIMIT_S, LIMIT_FACTOR = 5.0, 10.0
"""A test with a mutant hangs if it takes this processor time and this multiple of its normal
one."""
FIRST_FILES = 3
WAITING_LIMIT_S = 60.0
"""Limit of the time in which tests have a core or wait for something else."""


class MutantTrial:
    """Call ``prepare`` before the first ``new_outcome``; processes forked from this one share what
    it loaded."""

    def __init__(self, group: Group, ledger: Ledger, budget_s: float = BUDGET_S) -> None:
        self._group = group
        self._ledger = ledger
        self._budget_s = budget_s
        self._tests = digest_of(group.test_files())
        self._no_faults = reasons()
        self._coverage: CoverageMap | None = None

    def known_outcome(self, mutant: Mutant) -> MutantOutcome | None:
        """Return the recorded outcome for the present state of the module and the tests."""
        known = self._ledger.result(
            mutant.identity(),
            self._module(mutant),
            self._tests,
            is_no_fault=place_in_code(mutant) in self._no_faults,
        )
        return None if known is None else known.outcome

    def prepare(self) -> None:
        if self._coverage is None:
            compileall.compile_dir(ROOT / "tests", quiet=2)
            preload(())
            self._coverage = coverage_map(self._group)
            preload(self._coverage.modules)

    def new_outcome(self, mutant: Mutant, overlay: Overlay) -> MutantOutcome:
        started_s = time.monotonic()
        outcome = self._try(mutant, overlay)
        seconds = time.monotonic() - started_s
        self._ledger.add(
            MutantResult(mutant.identity(), self._module(mutant), self._tests, outcome, seconds)
        )
        return outcome

    def _module(self, mutant: Mutant) -> str:
        return digest_of([SOURCE / mutant.path])

    def _try(self, mutant: Mutant, overlay: Overlay) -> MutantOutcome:
        coverage = self._coverage
        assert coverage is not None, "not prepared"
        tests = coverage.tests_of(mutant, self._budget_s)
        if not tests:
            return MutantOutcome.NOT_RUN
        limits = {test: LIMIT_S + LIMIT_FACTOR * coverage.seconds[test] for test in tests}
        took_s = sum(coverage.seconds[test] for test in tests)
        with overlay.fault(mutant.path, source_with(mutant, SOURCE)):
            for stage in stages(tests):
                status = forked(
                    ["-x", *stage],
                    path=overlay.root,
                    log=overlay.root.with_suffix(".log"),
                    limit_s=WAITING_LIMIT_S + LIMIT_FACTOR * took_s,
                    run=partial(run_tests, limits=limits),
                )
                if status != 0:
                    break
        if status == TIMED_OUT:
            return MutantOutcome.TIMED_OUT
        return MutantOutcome.SURVIVED if status == 0 else MutantOutcome.KILLED


def stages(tests: Sequence[str]) -> Iterator[list[str]]:
    """Return first the tests of those files that have most of them, then the others: most mutants
    are killed before the other files need to be imported."""
    num_of_file = Counter(test.split("::")[0] for test in tests)
    first = {file for file, _ in num_of_file.most_common(FIRST_FILES)}
    for is_first in (True, False):
        if stage := [test for test in tests if (test.split("::")[0] in first) is is_first]:
            yield stage
