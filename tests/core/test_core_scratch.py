"""Temporary directories are removed when their owner ends, in whatever way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import quire
from quire.core.scratch import MIN_AGE_S, ScratchDirectory, remove_left_behind

OWNER = """
import signal, sys
from quire.core.scratch import ScratchDirectory
scratch = ScratchDirectory("test")
(scratch.path / "file").touch()
print(scratch.path, flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def grow_old(path: Path) -> None:
    then_s = time.time() - 2 * MIN_AGE_S
    os.utime(path, (then_s, then_s))


def test_a_closed_one_is_gone() -> None:
    with ScratchDirectory("test") as scratch:
        (scratch.path / "file").touch()
        assert scratch.path.stat().st_mode & 0o777 == 0o700
    assert not scratch.path.exists()
    scratch.close()


def test_only_directories_of_killed_processes_are_removed(temporary: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    owner = subprocess.Popen(
        (sys.executable, "-c", OWNER), stdout=subprocess.PIPE, text=True, env=environment
    )
    assert owner.stdout is not None
    left = Path(owner.stdout.readline().strip())
    with owner, ScratchDirectory("test") as mine:
        others = [temporary / "quire-of-somebody", temporary / "else"]
        for other in others:
            other.mkdir()
        (temporary / "quire-file").touch()
        for path in temporary.iterdir():
            grow_old(path)
        assert remove_left_behind() == [], "its owner lives"
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        grow_old(left)
        assert remove_left_behind() == [left]
        assert mine.path.exists()
        assert all(other.exists() for other in others)


def test_a_directory_that_has_just_been_made_is_kept(temporary: Path) -> None:
    young = temporary / "quire-test-young"
    young.mkdir()
    (young / ".lock").touch()
    assert remove_left_behind() == []
    grow_old(young)
    assert remove_left_behind() == [young]


_OTHERWISE = {
    "core/scratch.py",
    "core/executable_cache.py",  # in the directory of its results
    "compilation/building.py",  # in the directory of its results
    "engine/kv_cache/disk_slab.py",  # a file without a name
    "cluster/deployment/head.py",  # outlives its command: its path is in the cluster's record
}


def test_whatever_needs_a_temporary_directory_takes_one_that_is_found_when_left_behind() -> None:
    package = Path(quire.__file__).parent
    makes = re.compile(r"\b(mkdtemp|mkstemp|TemporaryDirectory|NamedTemporaryFile)\(")
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if makes.search(path.read_text(encoding="utf-8"))
    }
    assert found == _OTHERWISE
