"""Knows which tests run which line, and how long each takes. A mutant is tested with those that run
its line.

The test files are run once with line tracing. A file's results are kept until it or a module of the
group changes: a change elsewhere moves none of the lines that matter. A test that fails without any
mutant is reported, and never counts as noticing one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tools.mutation.operators import Mutant
from tools.mutation.processes import foreign_modules, forked
from tools.mutation.targets import ROOT, SOURCE, WORK, Group

LIMIT_S = 3600.0
FORMAT = 2
"""Of the kept results."""
AT_IMPORT = -1
"""In place of a test's number: the line runs while its module is imported."""
HAVE_RUN = (0, 1)
"""Statuses of pytest when all files were collected: all tests passed, or some failed."""


class CoverageMap:
    """The map of one group. ``seconds``: by test; ``lines``: tests by line and path below ``src``;
    ``modules``: other packages' modules that the tests import."""

    def __init__(self, in_children: Iterable[tuple[str, str]] = ()) -> None:
        self._in_children = dict(in_children)
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[int, set[str]]] = {}
        self.modules: dict[str, None] = {}

    def tests_of(self, mutant: Mutant, budget_s: float) -> list[str]:
        """Return the fastest tests that run one of the mutant's lines, up to ``budget_s`` in total.

        A line that runs while its module is imported counts as run by every test.
        """
        lines = self.lines.get(mutant.path, {})
        found: set[str] = set()
        for line in range(mutant.start, mutant.end + 1):
            found |= lines.get(line, set())
        if "" in found:
            found = set().union(*lines.values())
        if file := self._in_children.get(mutant.path):
            found |= {test for test in self.seconds if test.startswith(f"{file}::")}
        chosen: list[str] = []
        total_s = 0.0
        for test in sorted(found & self.seconds.keys(), key=lambda test: self.seconds[test]):
            total_s += self.seconds[test]
            if chosen and total_s > budget_s:
                break
            chosen.append(test)
        return chosen

    def add(self, found: dict[str, Any]) -> None:
        """Add what ``_part`` made: ``lines`` name tests by their place in ``seconds``."""
        self.seconds.update(found["seconds"])
        self.modules.update(dict.fromkeys(found["modules"]))
        names = [*found["seconds"], ""]  # AT_IMPORT is the last place
        for path, lines in found["lines"].items():
            of_path = self.lines.setdefault(path, {})
            for line, tests in lines.items():
                of_path.setdefault(int(line), set()).update(names[test] for test in tests)


def coverage_map(group: Group) -> CoverageMap:
    kept = {file: WORK / "coverage" / f"{_key(group, file)}.json" for file in group.test_files()}
    missing = {file: place for file, place in kept.items() if not place.exists()}
    if missing:
        print(f"tracing {len(missing)} test files of {group.name}", flush=True)
        _trace([str(file) for file in group.source_files()], missing)
    made = CoverageMap(group.in_children)
    for place in kept.values():
        made.add(json.loads(place.read_text(encoding="utf-8")))
    return made


def _trace(sources: list[str], kept: dict[Path, Path]) -> None:
    (WORK / "coverage").mkdir(parents=True, exist_ok=True)
    log, all_of_them = (WORK / f"trace-{os.getpid()}.{kind}" for kind in ("log", "json"))

    def run(arguments: Sequence[str]) -> int:
        return _traced(arguments, sources, all_of_them)

    status = forked([str(file) for file in kept], path=SOURCE, log=log, limit_s=LIMIT_S, run=run)
    if status not in HAVE_RUN or not all_of_them.exists():
        raise SystemExit(f"the tests cannot be run, see {log}")
    found = json.loads(all_of_them.read_text(encoding="utf-8"))
    for file in (log, all_of_them):
        file.unlink()
    for test in found["failed"]:
        print(f"  fails without any fault, and is left out: {test}")
    by_file = _by_file(found["lines"], [test.split("::")[0] for test in found["tests"]])
    for file, place in kept.items():
        name = file.relative_to(ROOT).as_posix()
        part = _part(found, name, by_file.get(name, {}))
        place.write_text(json.dumps(part), encoding="utf-8")


LinesOfPath = dict[str, dict[str, list[int]]]
"""The tests of each line, by number, and ``AT_IMPORT``."""


def _by_file(lines: LinesOfPath, files: Sequence[str]) -> dict[str, LinesOfPath]:
    """Divided by the test files; lines that run at import belong to all of them."""
    divided: dict[str, LinesOfPath] = {file: {} for file in files}
    for path, tests_by_line in lines.items():
        for line, tests in tests_by_line.items():
            for test in tests:
                for file in divided if test == AT_IMPORT else (files[test],):
                    divided[file].setdefault(path, {}).setdefault(line, []).append(test)
    return divided


def _part(found: dict[str, Any], file: str, lines: LinesOfPath) -> dict[str, Any]:
    """The results of one test file, without those tests that failed."""
    seconds = {test: s for test, s in found["seconds"].items() if test.startswith(f"{file}::")}
    passed = {test: place for place, test in enumerate(seconds)}
    places = {number: passed.get(test) for number, test in enumerate(found["tests"])}
    places[AT_IMPORT] = AT_IMPORT
    kept = {
        path: {
            line: [place for test in tests if (place := places[test]) is not None]
            for line, tests in of_path.items()
        }
        for path, of_path in lines.items()
    }
    return {"seconds": seconds, "lines": kept, "modules": found["modules"]}


class _Contexts:
    """A pytest plugin that tells ``coverage`` the running test, and times it."""

    def __init__(self, coverage: Any) -> None:
        self._coverage = coverage
        self._started_s = 0.0
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)
        self._started_s = _processor_s()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = _processor_s() - self._started_s

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def _processor_s() -> float:
    """Processor time of this process and of the children that it has waited for, which depends
    little on the load of the machine."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _traced(arguments: Sequence[str], sources: list[str], kept: Path) -> int:
    import pytest
    from coverage import Coverage

    coverage = Coverage(data_file=None, include=sources, config_file=False)
    contexts = _Contexts(coverage)
    coverage.start()
    status = int(pytest.main([*arguments], plugins=[contexts]))
    coverage.stop()
    passed = {test: s for test, s in contexts.seconds.items() if test not in contexts.failed}
    tests = list(contexts.seconds)
    numbers = {test: number for number, test in enumerate(tests)} | {"": AT_IMPORT}
    lines = {
        str(Path(path).relative_to(SOURCE)): {
            line: [numbers[test] for test in found]
            for line, found in coverage.get_data().contexts_by_lineno(path).items()
        }
        for path in coverage.get_data().measured_files()
    }
    found = {
        "tests": tests,
        "seconds": passed,
        "failed": sorted(contexts.failed),
        "lines": lines,
        "modules": foreign_modules(),
    }
    kept.write_text(json.dumps(found), encoding="utf-8")
    return status


def _key(group: Group, file: Path) -> str:
    digest = hashlib.sha256(f"{FORMAT} {_sources(group)} {group.name}".encode())
    digest.update(digest_of([file]).encode())
    return digest.hexdigest()


@cache
def _sources(group: Group) -> str:
    return digest_of(group.source_files())


def digest_of(files: Iterable[Path]) -> str:
    """Over their places in the checkout, not the checkout's own: results may move to another."""
    digest = hashlib.sha256()
    for part in _parts(files):
        digest.update(part)
    return digest.hexdigest()


def _parts(files: Iterable[Path]) -> Iterator[bytes]:
    for file in files:
        yield file.relative_to(ROOT).as_posix().encode()
        yield file.read_bytes()
