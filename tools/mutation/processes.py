"""Runs tests in forked processes: third-party modules are imported once, Quire anew in each run.

This process never imports Quire, so that a run imports the modules of its overlay.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from tools.mutation.targets import ROOT

TIMED_OUT = -1
"""In place of an exit status: stopped by its time limit."""

OPTIONS = ("-q", "--assert=plain")
"""Plain assertions: the reason of a failure is not needed, and rewriting takes half of a short
run."""
SPARED = ("cacheprovider", "schemathesis")
"""Plugins that no test needs for its assertions and that cost a second per run."""

NO_LIMITS: Mapping[str, float] = MappingProxyType({})

RunTests = Callable[[Sequence[str]], int]
"""Takes pytest's arguments, returns its exit status."""


def preload(modules: Iterable[str]) -> None:
    """Import the modules that every run would import, pytest and its plugins first."""
    plugins = [point.module for point in entry_points(group="pytest11")]
    for name in ("pytest", *plugins, *modules):
        with suppress(ImportError):  # parts of a package that cannot be imported alone
            importlib.import_module(name)
    if any(name.split(".")[0] == "quire" for name in sys.modules):
        raise RuntimeError("a package that is no part of Quire imports it")


def foreign_modules() -> list[str]:
    """Return the modules of installed packages and of Python that this process has imported."""
    places = (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), str(sys.base_prefix))
    return [
        name
        for name, module in sys.modules.items()
        if (getattr(module, "__file__", None) or "").startswith(places) and name != "__main__"
    ]


class _ProcessorLimits:
    """A pytest plugin: a timer's signal ends the process when a test exceeds its processor time."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._limits = limits

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._limits.get(nodeid, 0.0))

    def pytest_runtest_logfinish(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def run_tests(arguments: Sequence[str], limits: Mapping[str, float] = NO_LIMITS) -> int:
    """Run pytest; returns its exit status. ``limits``: seconds of processor time by test."""
    import pytest

    return int(pytest.main([*arguments], plugins=[_ProcessorLimits(limits)]))


def forked(
    arguments: Sequence[str], *, path: Path, log: Path, limit_s: float, run: RunTests = run_tests
) -> int:
    """Run tests with ``path`` first on the path; returns the exit status. Output goes to ``log``.

    ``limit_s`` is elapsed time without that in which the process was ready but had no core, so that
    no result depends on the load of the machine.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _child(arguments, path, log, run)
    with suppress(OSError):  # it does the same; whoever is first, the group is there to be ended
        os.setpgid(pid, pid)
    ended = os.pidfd_open(pid)
    try:
        in_time = _ends_within(limit_s, pid, ended)
    finally:
        os.close(ended)
        _kill_group(pid)  # also ends processes that the tests have left
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if in_time and status != -signal.SIGPROF else TIMED_OUT


def _ends_within(limit_s: float, pid: int, ended: int) -> bool:
    started_s = time.monotonic()
    while (left_s := limit_s + _queued_s(pid) - (time.monotonic() - started_s)) > 0:
        if select.select([ended], [], [], left_s)[0]:
            return True
    return False


def _queued_s(pid: int) -> float:
    """How long the process was ready and waited for a core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the child has not created its group yet, or has ended with it
    except PermissionError:
        os.kill(pid, signal.SIGKILL)


def _child(arguments: Sequence[str], path: Path, log: Path, run: RunTests) -> NoReturn:
    status = 70
    try:
        os.setpgid(0, 0)
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(ROOT)
        os.environ.update(
            PYTHONPATH=str(path),
            PYTHONDONTWRITEBYTECODE="1",
            OMP_NUM_THREADS="1",
            HYPOTHESIS_STORAGE_DIRECTORY=str(log.parent / "hypothesis"),
        )
        sys.dont_write_bytecode = True
        others = (entry for entry in sys.path if entry != str(ROOT))
        sys.path[:] = [str(path), *others, str(ROOT)]  # tests import benchmarks and tools
        gc.freeze()  # objects from before the fork are exempt from garbage collection
        spared = (part for name in SPARED for part in ("-p", f"no:{name}"))
        status = run([*OPTIONS, *spared, *arguments])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
