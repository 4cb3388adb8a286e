"""Batches whose server is killed before any operation on the disk, once or several times: each
request has one result, and nothing that is unfinished is left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_batches import NAMES, TENANT, Life

from quire.server.batches.record import BatchRecord
from quire.server.files.store import FileLimits, FileStore

FIRST = {"completed": 0, "cancelled": 14, "expired": 14, "failed": 14}
"""The first moment to try by the batch's ending: all of them begin alike."""
KILLED, ENDED = "killed", "ended"


class Lives:
    """Starts one process after another on a directory."""

    def __init__(self) -> None:
        script = str(Path(__file__).with_name("killed_batches.py"))
        self._process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def live(self, life: Life) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(life) + b"\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().decode().strip()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    found = Lives()
    yield found
    found.close()


def check(life: Life) -> None:
    """The directory behind a life that ended by itself."""
    files = FileStore(life.store, FileLimits(), lambda: 5000.0)
    (path,) = life.store.glob("batches/*.json")
    batch = BatchRecord.model_validate_json(path.read_bytes()).batch
    assert batch.status == life.ending
    found: dict[str, list[str]] = {}
    for kind, file_id in (("outputs", batch.output_file_id), ("errors", batch.error_file_id)):
        lines = []
        if file_id is not None:
            record = files.get(TENANT, file_id)
            content = files.path(record).read_bytes()
            assert len(content) == record.num_bytes
            lines = [json.loads(one)["custom_id"] for one in content.splitlines()]
        found[kind] = lines
    results = {one.id for one in files.files(TENANT) if one.purpose == "batch_output"}
    assert results == {batch.output_file_id, batch.error_file_id} - {None}
    named = [*found["outputs"], *found["errors"]]
    assert len(named) == len(set(named)), "a request has one result"
    assert set(found["outputs"]) <= {"one", "two", "late"}
    counts = batch.request_counts
    assert (counts.completed, counts.failed) == (len(found["outputs"]), len(found["errors"]))
    if life.ending == "completed":
        assert (set(found["outputs"]), found["errors"]) == ({"one", "two", "late"}, ["bad"])
    elif life.ending != "failed" and counts.total:
        assert set(named) == set(NAMES)
    left = {one.name for one in life.store.rglob("*") if one.is_file()}
    expected = {path.name} | {
        f"{record.id}{suffix}" for record in files.files(TENANT) for suffix in (".json", ".data")
    }
    assert left == expected, "nothing unfinished"


def lived(lives: Lives, directory: Path, ending: str, kills: Sequence[int]) -> list[str]:
    """What became of each process, the last of which is not killed."""
    became = [lives.live(Life(str(directory), ending, kill_at)) for kill_at in kills]
    last = Life(str(directory), ending)
    became.append(lives.live(last))
    assert became[-1] == ENDED
    check(last)
    return became


@pytest.mark.parametrize("ending", FIRST)
def test_a_server_killed_at_any_moment_loses_and_repeats_no_result(
    lives: Lives, tmp_path: Path, ending: str
) -> None:
    became, moment = KILLED, FIRST[ending]
    while became == KILLED:
        became, _ = lived(lives, tmp_path / str(moment), ending, [moment])
        moment += 1
    assert became == ENDED
    assert moment > 20, "as many moments as there are operations"


@settings(max_examples=10, deadline=None)
@given(
    ending=st.sampled_from(sorted(FIRST)),
    kills=st.lists(st.integers(0, 20), min_size=2, max_size=4),
)
def test_servers_may_be_killed_one_after_another(
    lives: Lives, ending: str, kills: list[int]
) -> None:
    with TemporaryDirectory() as directory:
        lived(lives, Path(directory) / "node", ending, kills)
