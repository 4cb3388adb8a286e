"""The engine's disk tier: bytes come back as they were or not at all, and nothing stays behind."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
from engine_driver import Driver, Row, forward_rows, i32

from quire.core.batch import ReadDisk, SwapOut, WriteDisk
from quire.core.batch_result import TransfersEnded
from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.core.ids import ModelId
from quire.engine.engine import Engine
from quire.engine.kv_cache.disk_slab import DiskSlab

MakeDriver = Callable[..., Driver]
RECORD_BYTES = 100


@pytest.fixture
def slab(tmp_path: Path) -> DiskSlab:
    return DiskSlab(tmp_path, 4, RECORD_BYTES)


def records(*values: int) -> np.ndarray:
    return np.repeat(np.array(values, np.uint8)[:, None], RECORD_BYTES, axis=1)


def test_what_was_written_is_read_in_any_order(slab: DiskSlab) -> None:
    slab.write(i32([2, 0]), records(7, 8))
    slab.write(i32([3]), records(9))
    slab.write(i32([2]), records(6))
    found, problems = slab.read(i32([0, 3, 2]))
    assert problems == {}
    assert found[:, 0].tolist() == [8, 9, 6]
    assert found[:, -1].tolist() == [8, 9, 6]


def test_a_wrong_byte_a_missing_end_and_another_record_are_noticed(slab: DiskSlab) -> None:
    slab.write(i32([0, 1, 2, 3]), records(1, 2, 3, 4))
    os.pwrite(slab._file, b"!", RECORD_BYTES + 50)
    os.pwrite(slab._file, records(1).tobytes(), 2 * RECORD_BYTES)
    os.ftruncate(slab._file, 4 * RECORD_BYTES - 10)
    found, problems = slab.read(i32([0, 1, 2, 3]))
    assert found[0].tolist() == [1] * RECORD_BYTES
    assert problems == {
        1: "block 1 is not what was written: its checksum differs",
        2: "block 2 is not what was written: its checksum differs",
        3: "block 3 ends 10 bytes short",
    }


def test_the_file_has_its_size_and_no_name_and_is_for_this_user_alone(
    slab: DiskSlab, tmp_path: Path
) -> None:
    found = os.fstat(slab._file)
    assert (found.st_size, found.st_nlink) == (4 * RECORD_BYTES, 0)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [], "a killed process leaves nothing"
    slab.close()
    slab.close()


def test_short_writes_are_continued(slab: DiskSlab, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, left, at: pwrite(file, left[:33], at))
    slab.write(i32([1]), records(5))
    found, problems = slab.read(i32([1]))
    assert (found[0].tolist(), problems) == ([5] * RECORD_BYTES, {})


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be used .No such file"):
        DiskSlab(tmp_path / "missing", 4, RECORD_BYTES)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be used .Not a directory"):
        DiskSlab(tmp_path / "file", 4, RECORD_BYTES)


def test_a_disk_without_room_is_refused_with_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda directory: SimpleNamespace(free=399))
    with pytest.raises(ConfigError, match=r"asks for 400 bytes in .* where 399 are free"):
        DiskSlab(tmp_path, 4, RECORD_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda directory: SimpleNamespace(free=400))

    def full(file: int, offset: int, num_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"the 400 bytes .* cannot be had .*No space left"):
        DiskSlab(tmp_path, 4, RECORD_BYTES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"disk_cache_bytes": -1}, "disk_cache_bytes is -1"),
        ({"disk_cache_bytes": 1}, "give both"),
        ({"disk_cache_dir": "/"}, "give both"),
        ({"disk_cache_bytes": 1, "disk_cache_dir": "/", "tensor_parallel": 2}, "tensor_parallel 2"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        EngineConfig(source="", name=ModelId("m"), **changes)  # type: ignore[arg-type]


def test_less_than_one_block_is_refused(make_driver: MakeDriver, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"disk_cache_bytes is 10, but one page of 4 tokens"):
        make_driver(disk_cache_bytes=10, disk_cache_dir=str(tmp_path))


class DiskDriver:
    """An engine with a disk, some tokens in its first blocks, and their canonical bytes."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.num_transfers = 0
        engine = driver.engine
        assert isinstance(engine, Engine)
        assert engine._disk is not None
        self.disk, self.rung = engine._disk, Event()
        engine.wake_by(self.rung.set)
        driver.good(
            operations=[driver.write_table(1, [0, 1])],
            forward=forward_rows([Row([5, 6, 7, 8, 9, 10, 11, 12], 1, slots=range(8))]),
        )
        self.before = self.bytes_of([0, 1])

    def bytes_of(self, blocks: list[int]) -> bytes:
        """K, V and positions of device blocks."""
        return self.disk._records.read(i32(blocks), on_host=False).tobytes()

    def move(self, kind: type, blocks: list[int], lower: list[int], **fields: object) -> list[int]:
        """Begin transfers and wait for their ends; the indices of those that failed."""
        ids = i32(range(self.num_transfers, self.num_transfers + len(blocks)))
        self.num_transfers += len(blocks)
        column = "host_blocks" if kind is SwapOut else "disk_blocks"
        operation = kind(transfers=ids, blocks=i32(blocks), **{column: i32(lower)}, **fields)
        self.driver.good(operations=[operation])
        failed: list[int] = []
        num_ended = 0
        while num_ended < len(blocks):
            ended = self.driver.engine.transfer()
            if ended is None:
                assert self.rung.wait(60)
                self.rung.clear()
                continue
            assert isinstance(ended, TransfersEnded)
            num_ended += len(ended.transfers)
            failed += (ended.failed - ids[0]).tolist()
            assert ended.elapsed_s > 0
        return failed


@pytest.fixture
def disk(make_driver: MakeDriver, backend: str, tmp_path: Path) -> DiskDriver:
    return DiskDriver(
        make_driver(backend=backend, disk_cache_bytes=1 << 20, disk_cache_dir=str(tmp_path))
    )


def test_bytes_are_equal_after_device_host_disk_and_device(disk: DiskDriver) -> None:
    assert disk.move(SwapOut, [0, 1], [3, 2]) == []
    assert disk.move(WriteDisk, [3, 2], [7, 9], tier="host") == []
    assert disk.move(ReadDisk, [5, 4], [7, 9]) == []
    assert disk.bytes_of([5, 4]) == disk.before
    assert disk.bytes_of([4, 5]) != disk.before


def test_bytes_are_equal_after_device_disk_and_device(disk: DiskDriver) -> None:
    assert disk.move(WriteDisk, [0, 1], [1, 0], tier="device") == []
    assert disk.move(ReadDisk, [40, 41], [1, 0]) == []
    assert disk.bytes_of([40, 41]) == disk.before


def test_a_block_that_was_changed_on_the_disk_fails_alone(
    disk: DiskDriver, caplog: pytest.LogCaptureFixture
) -> None:
    disk.move(WriteDisk, [0, 1], [0, 1], tier="device")
    os.pwrite(disk.disk._slab._file, b"!?", 20)
    with caplog.at_level(logging.WARNING):
        assert disk.move(ReadDisk, [4, 5], [0, 1]) == [0]
        assert disk.move(ReadDisk, [4], [0]) == [0]
    assert disk.bytes_of([5]) == disk.bytes_of([1])
    warnings = [one.getMessage() for one in caplog.records]
    assert len(warnings) == 1, "a disk that goes on failing is told of once"
    assert "block 0 is not what was written" in warnings[0]


def test_a_full_disk_fails_the_transfer_and_leaves_the_block(
    disk: DiskDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, left: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        assert disk.move(WriteDisk, [0, 1], [0, 1], tier="device") == [0, 1]
    assert disk.bytes_of([0, 1]) == disk.before
    assert disk.move(WriteDisk, [0, 1], [0, 1], tier="device") == []
    assert disk.move(ReadDisk, [4, 5], [0, 1]) == []
    assert disk.bytes_of([4, 5]) == disk.before


def test_a_disk_that_cannot_be_written_is_told_of_once_and_again_when_it_works(
    disk: DiskDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(file: int, left: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.move(WriteDisk, [0], [0], tier="device")
    with caplog.at_level(logging.INFO, "quire.engine.disk_transfers"):
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            for _ in range(2):
                assert disk.move(WriteDisk, [1], [1], tier="device") == [0]
                assert disk.move(ReadDisk, [4], [0]) == [], "what is there can be read"
        for _ in range(2):
            assert disk.move(WriteDisk, [1], [1], tier="device") == []
    fails, works = [one.getMessage() for one in caplog.records]
    assert "the disk tier fails" in fails
    assert works == "the disk tier works again: pages are written"


def test_a_closed_engine_leaves_nothing_and_writes_nothing(
    disk: DiskDriver, tmp_path: Path
) -> None:
    disk.move(WriteDisk, [0], [0], tier="device")
    disk.driver.engine.close()
    assert list(tmp_path.iterdir()) == []
    assert disk.driver.engine.transfer() is None
