"""``make mutate``: its faults, its sample, and that it leaves the real tree unchanged."""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import check_output
from typing import Any

import pytest

from tools.mutation.coverage_map import CoverageMap, _by_file, _key, _part, _trace, digest_of
from tools.mutation.ledger import Ledger, MutantOutcome, MutantResult
from tools.mutation.operators import Mutant, mutants_of, source_with
from tools.mutation.overlay import Overlay
from tools.mutation.processes import TIMED_OUT, forked, run_tests
from tools.mutation.report import Tried, reasons, report, share
from tools.mutation.sample import sample
from tools.mutation.targets import GROUPS, SOURCE, Group
from tools.mutation.trial import stages
from tools.mutation.workers import share_out

MODULE = '''
"""Words."""
LIMIT = 3

class Clock:
    def advance(self, by: int = 1) -> None:
        assert by
        if by > LIMIT:
            raise ValueError(f"too far: {by + 1}")
        self.now += by
        self.tell(by)

    def again(self):
        self.now += 1
        self.now += 1
'''


@pytest.fixture
def mutants(tmp_path: Path) -> list[Mutant]:
    (tmp_path / "clock.py").write_text(MODULE)
    return mutants_of(tmp_path / "clock.py", tmp_path)


def test_faults_are_forgotten_statements_conditions_and_numbers(mutants: list[Mutant]) -> None:
    found = {(mutant.before, mutant.after) for mutant in mutants}
    assert {
        ("self.tell(by)", "pass"),
        ("self.now += by", "pass"),
        ("by > LIMIT", "not (by > LIMIT)"),
        ("3", "4"),
    } <= found
    assert not any("by + 1" in before or before == "assert by" for before, _ in found)


def test_each_is_one_change_of_a_module_that_still_compiles(
    mutants: list[Mutant], tmp_path: Path
) -> None:
    sources = [source_with(mutant, tmp_path) for mutant in mutants]
    assert len(set(sources)) == len(mutants) == len({mutant.identity() for mutant in mutants})
    for source in sources:
        compile(source, "clock.py", "exec")
        assert source != MODULE


def test_a_piece_of_code_that_moves_stays_the_same_mutant(
    mutants: list[Mutant], tmp_path: Path
) -> None:
    (tmp_path / "clock.py").write_text("import os\n\n\n" + MODULE)
    moved = mutants_of(tmp_path / "clock.py", tmp_path)
    assert [one.identity() for one in moved] == [one.identity() for one in mutants]
    assert [one.start for one in moved] == [one.start + 3 for one in mutants]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_the_table_names_modules_and_tests_that_are_there(group: Group) -> None:
    assert all(file.is_file() for file in (*group.source_files(), *group.test_files()))


def test_a_seed_decides_the_sample() -> None:
    groups = [group for group in GROUPS if group.name == "stopping"]
    first = sample(groups, 12, seed=1)
    assert sample(groups, 12, seed=1) == first
    assert {m.identity() for _, m in sample(groups, 6, seed=1)} < {m.identity() for _, m in first}
    assert sample(groups, 12, seed=2) != first


def test_a_sample_of_its_own_leaves_that_of_the_others_as_it_was() -> None:
    named = {group.name: group for group in GROUPS}
    stopping, grammars = named["stopping"], replace(named["grammars"], own_sample=3)
    shared = sample([stopping], 12, seed=1)
    both = sample([stopping, grammars], 12, seed=1)
    assert both[:12] == shared
    assert [group.name for group, _ in both[12:]] == ["grammars"] * 3


def test_a_fault_is_seen_beside_the_real_tree_which_stays(tmp_path: Path) -> None:
    path = "quire/engine/stopping.py"
    real = (SOURCE / path).read_bytes()
    with Overlay(tmp_path / "tree") as overlay:
        with overlay.fault(path, "FAULT = 1\n"):
            assert (overlay.root / path).read_text() == "FAULT = 1\n"
            assert (SOURCE / path).read_bytes() == real
            asked = "from quire.engine import stopping; print(stopping.FAULT)"
            environment = {**os.environ, "PYTHONPATH": str(overlay.root)}
            assert check_output([sys.executable, "-c", asked], env=environment) == b"1\n"
        assert (overlay.root / path).read_bytes() == real
        assert (overlay.root / path).is_symlink()
    assert not overlay.root.exists()


def test_a_run_that_hangs_is_ended(tmp_path: Path) -> None:
    def hang(_: Sequence[str]) -> int:
        import signal

        signal.pause()
        return 0

    log = tmp_path / "log"
    assert forked([], path=tmp_path, log=log, limit_s=0.01, run=hang) == TIMED_OUT
    assert forked([], path=tmp_path, log=log, limit_s=60, run=lambda _: 3) == 3


def test_time_without_a_core_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(_: Sequence[str]) -> int:
        time.sleep(0.1)
        return 3

    monkeypatch.setattr("tools.mutation.processes._queued_s", lambda pid: 600.0)
    assert forked([], path=tmp_path, log=tmp_path / "log", limit_s=0.01, run=wait) == 3


def test_a_test_that_computes_for_ever_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "test_loop.py"
    file.write_text("def test_a(): pass\ndef test_b():\n    while True: pass\n")

    def ended(test: str) -> int:
        limits = {f"{file.name}::test_b": 0.05}
        run = partial(run_tests, limits=limits)
        test = f"{file}::{test}"
        arguments = [f"--rootdir={tmp_path}", "--import-mode=importlib", "--noconftest", test]
        return forked(arguments, path=tmp_path, log=tmp_path / "log", limit_s=300, run=run)

    assert ended("test_a") == 0
    assert ended("test_b") == TIMED_OUT


def test_tests_may_import_benchmarks(tmp_path: Path) -> None:
    file = tmp_path / "test_import.py"
    file.write_text("import benchmarks.pie.dispatch_policies, quire.core\ndef test_a(): pass\n")
    log = tmp_path / "log"
    assert forked([str(file)], path=SOURCE, log=log, limit_s=120, run=run_tests) == 0, (
        log.read_text(encoding="utf-8")
    )


def test_files_that_cannot_be_imported_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every fault of the group would count as met by no test."""
    monkeypatch.setattr("tools.mutation.coverage_map.WORK", tmp_path)
    file = tmp_path / "test_import.py"
    file.write_text("import no_such_module\ndef test_a(): pass\n")
    with pytest.raises(SystemExit, match=r"cannot be run, see .*trace-\d+\.log"):
        _trace([], {file: tmp_path / "kept.json"})
    assert not (tmp_path / "kept.json").exists()


def test_a_mutant_meets_the_tests_of_its_line_the_quickest_first() -> None:
    found = CoverageMap()
    found.add(
        {
            "seconds": {"slow": 9.0, "quick": 0.1, "other": 0.1},
            "lines": {"a.py": {"1": [-1], "5": [0, 1], "6": [2]}},
            "modules": ["json"],
        }
    )

    def tests_at(line: int, budget_s: float = 60.0) -> list[str]:
        return found.tests_of(Mutant("a.py", "f", "o", "b", "c", 0, line, line), budget_s)

    assert tests_at(5) == ["quick", "slow"]
    assert tests_at(5, budget_s=5.0) == ["quick"]
    assert sorted(tests_at(1)) == ["other", "quick", "slow"]
    assert tests_at(7) == []


def test_files_with_many_of_the_tests_come_first() -> None:
    tests = ["z.py::a", "a.py::a", "b.py::a", "a.py::b", "c.py::a", "b.py::b", "c.py::b"]
    assert list(stages(tests)) == [[one for one in tests if one[0] != "z"], ["z.py::a"]]
    assert list(stages(tests[1:])) == [tests[1:]]


def test_a_trace_is_divided_by_test_file_and_lacks_what_failed() -> None:
    found: dict[str, Any] = {
        "tests": ["a.py::x", "a.py::y", "b.py::z"],
        "seconds": {"a.py::y": 2.0, "b.py::z": 3.0},
        "lines": {"m.py": {"1": [-1], "2": [0, 1], "3": [2], "4": [1, 2]}},
        "modules": ["json"],
    }
    lines = _by_file(found["lines"], ["a.py", "a.py", "b.py"])
    assert lines["b.py"] == {"m.py": {"1": [-1], "3": [2], "4": [2]}}
    made = CoverageMap()
    for file in ("a.py", "b.py"):
        made.add(_part(found, file, lines[file]))
    assert made.seconds == found["seconds"]
    assert made.lines["m.py"] == {
        1: {""}, 2: {"a.py::y"}, 3: {"b.py::z"}, 4: {"a.py::y", "b.py::z"}
    }  # fmt: skip


def test_a_module_of_child_processes_meets_the_tests_that_start_these() -> None:
    found = CoverageMap([("child.py", "tests/test_child.py")])
    seconds = {"tests/test_child.py::test_a": 1.0, "tests/test_child_too.py::test_b": 1.0}
    found.add({"seconds": seconds, "lines": {}, "modules": []})
    mutant = Mutant("child.py", "f", "o", "b", "c", 0, 5, 5)
    assert found.tests_of(mutant, 60.0) == ["tests/test_child.py::test_a"]


def test_tests_of_real_processes_are_left_out() -> None:
    all_of_them = Group("stopping", (), ("engine/test_engine_st*.py",))
    without = Group("stopping", (), all_of_them.tests, ("engine/test_engine_stopping.py",))
    left_out = set(all_of_them.test_files()) - set(without.test_files())
    assert [file.name for file in left_out] == ["test_engine_stopping.py"]


def test_a_trace_holds_until_the_test_or_a_module_of_the_group_changes() -> None:
    ids, errors = (Group("g", (f"core/{name}.py",), ()) for name in ("ids", "errors"))
    file, other = SOURCE.parent / "tests/conftest.py", SOURCE.parent / "setup.py"
    assert _key(ids, file) == _key(Group("g", ("core/ids.py",), ()), file)
    assert len({_key(ids, file), _key(errors, file), _key(ids, other)}) == 3


def test_a_survivor_is_tried_again_when_the_tests_have_changed(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    Ledger(file).add(MutantResult("a", "module", "tests", MutantOutcome.SURVIVED, 1.0))
    Ledger(file).add(MutantResult("b", "module", "tests", MutantOutcome.KILLED, 1.0))
    ledger = Ledger(file)
    assert ledger.result("a", "module", "tests") is not None
    assert ledger.result("a", "module", "more tests") is None
    assert ledger.result("b", "module", "more tests") is not None
    assert ledger.result("b", "another module", "tests") is None


def test_a_survivor_that_is_no_fault_is_not_tried_again_until_its_module_changes(
    tmp_path: Path,
) -> None:
    file = tmp_path / "results.jsonl"
    Ledger(file).add(MutantResult("a", "module", "tests", MutantOutcome.SURVIVED, 1.0))
    ledger = Ledger(file)
    assert ledger.result("a", "module", "more tests", is_no_fault=True) is not None
    assert ledger.result("a", "another module", "tests", is_no_fault=True) is None


def test_results_hold_in_another_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(name: str, content: str) -> str:
        monkeypatch.setattr("tools.mutation.coverage_map.ROOT", tmp_path / name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "clock.py").write_text(content)
        return digest_of([tmp_path / name / "clock.py"])

    first = digest("first", MODULE)
    assert digest("second", MODULE) == first
    assert digest("third", MODULE + "LIMIT = 4") != first


def test_equivalent_mutants_are_marked_and_count_as_missed() -> None:
    mutants = [Mutant("a.py", "f", "o", "x", str(n), 0, 7, 7) for n in range(4)]
    outcomes = [
        MutantOutcome.KILLED,
        MutantOutcome.TIMED_OUT,
        MutantOutcome.SURVIVED,
        MutantOutcome.NOT_RUN,
    ]
    tried = [Tried("g", *pair) for pair in zip(mutants, outcomes, strict=True)]
    assert share(tried) == 0.5
    text = report(tried, {("a.py", "f", "x", "2"): "it is a cache"})
    listed, equivalent = text.split("## Not noticed: no faults: 1")
    assert "why: it is a cache" in equivalent
    assert "+ 3" in listed
    assert "+ 2" not in listed


def test_each_equivalent_mutant_is_of_code_that_is_there() -> None:
    """Otherwise the mutant of renamed code is reported as a fault that nobody notices."""
    for path, function, before, _ in reasons():
        file = SOURCE / path
        assert file.exists(), path
        text = file.read_text(encoding="utf-8")
        code = "\n".join(_segments(text, function)) if function else text
        assert _packed(before) in _packed(code), (path, function, before)


def _segments(text: str, function: str) -> Iterator[str]:
    """The code of the function or class ``function``, by its qualified name."""
    found: list[tuple[str, ast.AST]] = [("", ast.parse(text))]
    while found:
        name, node = found.pop()
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}".lstrip(".")
                if inner == function:
                    yield ast.get_source_segment(text, child) or ""
            found.append((inner, child))


def _packed(code: str) -> str:
    return "".join(code.split())


def test_workers_share_the_pieces_of_work(tmp_path: Path) -> None:
    def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            with (tmp_path / "done").open("a") as done:
                done.write(f"{number}\n")

    share_out(50, 3, work)
    assert sorted(map(int, (tmp_path / "done").read_text().split())) == list(range(50))


def test_a_worker_that_fails_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    def work(numbers: Iterator[int]) -> None:
        raise LookupError(f"piece {next(numbers)} has changed")

    with pytest.raises(SystemExit, match="run again"):
        share_out(1, 2, work)
    assert "piece 0 has changed" in capfd.readouterr().err
