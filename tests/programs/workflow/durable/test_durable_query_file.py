"""The file of one query: whatever its writer is cut off at, what was whole before is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.core.errors import CapacityError
from quire.programs.workflow.durable.query_file import FRAME_BYTES, MAGIC, DamagedQuery, QueryFile

FRAMES = [b"first", b"", b"third" * 40, b"\0" * 9]
NOW_S = 1e9


def written(path: Path, frames: list[bytes]) -> bytes:
    file = QueryFile(path, NOW_S)
    for frame in frames:
        file.append(frame, NOW_S)
    file.close()
    return path.read_bytes()


def read(path: Path) -> list[bytes]:
    file = QueryFile(path, NOW_S)
    file.close()
    return file.frames


def test_a_file_that_is_cut_anywhere_has_the_whole_frames_before(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole", FRAMES)
    ends = [len(MAGIC)]
    for frame in FRAMES:
        ends.append(ends[-1] + FRAME_BYTES + len(frame))
    assert ends[-1] == len(whole)
    path = tmp_path / "cut"
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        num = sum(end <= size for end in ends[1:])
        assert read(path) == FRAMES[:num], size
        written(path, [b"after"])
        assert read(path) == [*FRAMES[:num], b"after"], size


def test_space_that_was_made_and_not_written_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(written(path, FRAMES) + bytes(100))
    assert read(path) == FRAMES


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0), flipped=st.integers(1, 255))
def test_a_changed_byte_is_noticed(tmp_path: Path, place: int, flipped: int) -> None:
    """In front of the last frame it is damage. In the last one it may be how its writer was cut
    off."""
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    content = bytearray(written(path, FRAMES))
    place %= len(content)
    content[place] ^= flipped
    path.write_bytes(content)
    last = len(content) - len(FRAMES[-1]) - FRAME_BYTES
    try:
        assert read(path) == FRAMES[:-1]
        assert place >= last
    except DamagedQuery:
        return


def test_a_file_is_open_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = QueryFile(path, NOW_S)
    with pytest.raises(CapacityError, match="is being answered: wait"):
        QueryFile(path, NOW_S)
    file.close()
    QueryFile(path, NOW_S).close()
    with pytest.raises(CapacityError, match="is closed"):
        file.append(b"late", NOW_S)


def test_a_frame_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    file = QueryFile(path, NOW_S)
    file.append(b"one", NOW_S)

    def full(descriptor: int, content: memoryview, place: int) -> int:
        monkeypatch.undo()
        import os

        os.pwrite(descriptor, content[:5], place)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(CapacityError, match=r"No space left on device: check .* make room"):
        file.append(b"two", NOW_S)
    file.append(b"three", NOW_S)
    file.close()
    assert read(path) == [b"one", b"three"]
