"""The kernel's threads: results do not depend on their number, and idle ones sleep."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from quire.core.errors import ConfigError, EngineFault
from quire.engine.cpu.library import kernel_report, load_kernel
from quire.engine.cpu.packed_matrix import PackedMatrix, WeightType, matmul
from quire.engine.cpu.team import Team

pytestmark = pytest.mark.skipif(
    kernel_report().chosen is None, reason="the kernel was not built on this machine"
)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_read_pass_reads_every_byte_once(num_threads: int) -> None:
    words = torch.arange(1 << 16, dtype=torch.int64) * 3
    with Team(load_kernel(), num_threads) as team:
        assert team.read_pass(words) == int(words.sum())
        words[-1] += 5
        words[0] += 1
        assert team.read_pass(words) == int(words.sum())


def test_a_read_pass_reads_a_ragged_end() -> None:
    words = torch.ones(1003, dtype=torch.int64)
    with Team(load_kernel(), 2) as team:
        assert team.read_pass(words) == 1003


def _other_threads() -> list[int]:
    return [int(task) for task in os.listdir("/proc/self/task") if int(task) != os.getpid()]


def _wait_for_sleep(threads: Iterable[int]) -> None:
    """Wait until every thread sleeps. A thread that spins is runnable for ever, until the test's
    time limit."""
    for thread in threads:
        state = Path(f"/proc/self/task/{thread}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "S":
            os.sched_yield()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_idle_threads_sleep_and_wake_for_the_next_call() -> None:
    before = set(_other_threads())
    with Team(load_kernel(), 3) as team:
        threads = set(_other_threads()) - before
        assert len(threads) == 2
        matrix = PackedMatrix(team, torch.eye(64), WeightType.F32)
        x_MK = torch.arange(128.0).view(2, 64)
        for _ in range(20):
            _wait_for_sleep(threads)
            assert torch.equal(matmul(team, matrix, x_MK), x_MK)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system sets no affinity")
def test_the_other_threads_leave_the_caller_its_core() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one core")
    before = set(_other_threads())
    with Team(load_kernel(), 2) as team:
        (other,) = set(_other_threads()) - before
        team.read_pass(torch.zeros(64, dtype=torch.int64))
        left = os.sched_getaffinity(other)
    assert left < allowed
    assert len(left) == len(allowed) - 1


ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch
from quire.engine.cpu.library import load_kernel
from quire.engine.cpu.team import Team
with Team(load_kernel(), 2) as team:
    print(team.read_pass(torch.ones(1003, dtype=torch.int64)))
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system sets no affinity")
def test_a_team_larger_than_its_cores_works() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", ONE_CORE], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1003"]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_an_exception_on_any_thread_is_an_error_of_the_call(num_threads: int) -> None:
    x_MK = torch.arange(192.0).view(3, 64)
    with Team(load_kernel(), num_threads) as team:
        matrix = PackedMatrix(team, torch.eye(64), WeightType.F32)
        native = team.library.native
        for thread in range(num_threads):
            for _ in range(5):
                status = native.quire_team_fail(team.handle, thread, b"three blind mice")
                with pytest.raises(EngineFault, match="in a test: three blind mice"):
                    team.check(status, "a test")
                status = native.quire_team_fail(team.handle, thread, None)
                with pytest.raises(EngineFault, match="no memory left for a test: rest"):
                    team.check(status, "a test", "rest")
                assert torch.equal(matmul(team, matrix, x_MK), x_MK)


def test_a_closed_team_is_refused() -> None:
    team = Team(load_kernel(), 2)
    team.close()
    team.close()
    with pytest.raises(ConfigError, match="was closed"):
        team.read_pass(torch.zeros(8))
    with pytest.raises(ConfigError, match="at least 1"):
        Team(load_kernel(), 0)


def test_a_team_does_not_survive_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    with Team(load_kernel(), 2) as team:
        parent = os.getpid()
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: parent + 1)
            with pytest.raises(ConfigError, match="left behind by a fork"):
                team.read_pass(torch.zeros(8))
