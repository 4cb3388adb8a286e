"""Keeps the results so far, so that an interrupted run can be continued.

A result is valid while the mutant's module is unchanged and, if the mutant survived, while the
group's tests are unchanged. A survivor that is no fault stays one under any tests.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path


class MutantOutcome(StrEnum):
    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    NOT_RUN = "run by no test"

    @property
    def is_noticed(self) -> bool:
        return self in (MutantOutcome.KILLED, MutantOutcome.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class MutantResult:
    """``module`` and ``tests`` are digests; ``seconds``: duration of the trial."""

    identity: str
    module: str
    tests: str
    outcome: MutantOutcome
    seconds: float


class Ledger:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._results: dict[str, MutantResult] = {}
        if file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                fields = json.loads(line)
                result = MutantResult(**{**fields, "outcome": MutantOutcome(fields["outcome"])})
                self._results[result.identity] = result

    def result(
        self, identity: str, module: str, tests: str, *, is_no_fault: bool = False
    ) -> MutantResult | None:
        """Return the result, if it is valid for this state of module and tests."""
        known = self._results.get(identity)
        if known is None or known.module != module:
            return None
        holds = known.outcome.is_noticed or is_no_fault or known.tests == tests
        return known if holds else None

    def has_met(self, identity: str) -> bool:
        """Return whether it was tried before, if only in another state of module or tests."""
        return identity in self._results

    def add(self, result: MutantResult) -> None:
        self._results[result.identity] = result
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
