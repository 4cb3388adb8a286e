"""Which processes are signalled, and which are not."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.cluster.deployment.running import (
    ProcessIdentity,
    end_session,
    identify,
    is_running,
    parse_stat,
    send,
)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"], cwd=tmp_path, start_new_session=True) as process:
        yield process
        process.kill()


def test_an_identity_is_of_one_process_alone(sleeper: subprocess.Popen[bytes]) -> None:
    found = identify(sleeper.pid)
    assert found is not None
    assert is_running(found)
    former = ProcessIdentity(found.pid, found.start_ticks - 1, found.boot_id)
    other_boot = ProcessIdentity(found.pid, found.start_ticks, "other")
    for one in (former, other_boot):
        assert not is_running(one)
        assert not send(one, signal.SIGKILL)
    assert sleeper.poll() is None
    assert send(found, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL
    assert identify(sleeper.pid) is None


def test_a_session_is_ended_where_its_members_run(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    found = identify(sleeper.pid)
    assert found is not None
    assert end_session(sleeper.pid, found.start_ticks + 1, tmp_path) == 0  # older than that session
    assert end_session(sleeper.pid, found.start_ticks, tmp_path.parent) == 0
    assert sleeper.poll() is None
    assert end_session(sleeper.pid, found.start_ticks, tmp_path) == 1
    assert sleeper.wait() == -signal.SIGKILL


def test_names_with_spaces_and_zombies() -> None:
    rest = " ".join(str(number) for number in range(4, 30))
    assert parse_stat(f"12 (a b) c) S 3 {rest}") == (5, 21)
    assert parse_stat(f"12 (gone) Z 3 {rest}") is None
    assert parse_stat("") is None
