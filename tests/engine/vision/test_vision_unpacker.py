"""Image files are decoded in a process of their own, which protects the engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from vision_checkpoints import file_of, picture

from quire.core.errors import Draining, InvalidArgument
from quire.engine.vision import unpacker as unpacker_module
from quire.engine.vision.unpacker import Unpacker
from quire.engine.vision.unpacking_worker import MAX_IMAGE_PIXELS, Resizing, open_image, resized

RESIZING = Resizing(shortest_edge=28, size=None, resample=3)
AS_IT_IS = Resizing(None, None, 3)
NO_LIMIT_S = 3600.0
"""For a file that is decoded in the end, however long that takes on a busy machine."""


@pytest.fixture
def unpacker() -> Iterator[Unpacker]:
    made = Unpacker(timeout_s=NO_LIMIT_S)
    yield made
    made.close()
    assert made.pid is None


def test_pixels_equal_those_of_this_process(unpacker: Unpacker) -> None:
    pids = set()
    for size, kind in (((50, 37), "PNG"), ((37, 50), "JPEG"), ((200, 141), "PNG")):
        file = file_of(picture(*size), kind)
        found = unpacker(file, RESIZING)
        np.testing.assert_array_equal(found, np.asarray(resized(open_image(file), RESIZING)))
        pids.add(unpacker.pid)
    assert len(pids) == 1, "one process for file after file"


def test_a_bad_file_is_reported_and_the_process_continues(unpacker: Unpacker) -> None:
    good = file_of(picture(20, 20), "JPEG")
    unpacker(good, RESIZING)
    pid = unpacker.pid
    for bad in (b"", b"hello" * 9, good[: len(good) // 2]):
        with pytest.raises(InvalidArgument, match=r"no PNG or JPEG|cannot be read"):
            unpacker(bad, RESIZING)
    with pytest.raises(InvalidArgument, match="less narrow"):
        unpacker(file_of(picture(1, 60_000, mode="L")), RESIZING)
    assert unpacker(good, AS_IT_IS).shape == (20, 20, 3)
    assert unpacker.pid == pid


def test_the_largest_image_fits_into_its_memory(unpacker: Unpacker) -> None:
    edge = int(MAX_IMAGE_PIXELS**0.5)
    file = file_of(Image.new("RGBA", (edge, edge), (200, 100, 50, 128)))
    assert unpacker(file, RESIZING).shape == (28, 28, 3)


def test_too_many_bytes_do_not_get_there(
    unpacker: Unpacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = file_of(picture(20, 20), "JPEG")
    monkeypatch.setattr(unpacker_module, "MAX_IMAGE_BYTES", len(good) - 1)
    with pytest.raises(InvalidArgument, match="bytes; at most"):
        unpacker(good, RESIZING)
    assert unpacker.pid is None


def test_behind_its_close_no_process_is_started(unpacker: Unpacker) -> None:
    unpacker.close()
    with pytest.raises(Draining, match="has been closed"):
        unpacker(file_of(picture(20, 20), "JPEG"), RESIZING)
    assert unpacker.pid is None


def test_memory_is_bounded() -> None:
    little = Unpacker(timeout_s=NO_LIMIT_S, max_memory_bytes=160 << 20)
    try:
        file = file_of(Image.new("RGB", (5000, 5000)))
        with pytest.raises(InvalidArgument, match=r"MemoryError|too much memory|it ended it"):
            little(file, RESIZING)
    finally:
        little.close()


HOSTILE = """
import json, os, sys, time
for line in sys.stdin.buffer:
    file = sys.stdin.buffer.read(json.loads(line)["num_bytes"])
    if file == b"crash":
        os.abort()
    if file == b"hang":
        time.sleep(3600)
    cut = file == b"half"
    sys.stdout.buffer.write(b'{"width": 2, "height": 1}\\n' + (b"abc" if cut else b"abcdef"))
    sys.stdout.buffer.flush()
    if cut:
        os._exit(0)
"""


@pytest.mark.parametrize(
    ("file", "why"),
    [(b"crash", "ended it"), (b"half", "ended it"), (b"hang", r"took more than 0\.5 s")],
)
def test_a_file_that_breaks_the_process_is_refused_and_the_next_one_is_read(
    tmp_path: Path, file: bytes, why: str
) -> None:
    script = tmp_path / "hostile.py"
    script.write_text(HOSTILE)
    hostile = Unpacker((sys.executable, str(script)), timeout_s=NO_LIMIT_S)
    try:
        assert hostile(b"fine", RESIZING).tolist() == [[[97, 98, 99], [100, 101, 102]]]
        first = hostile.pid
        if file == b"hang":
            hostile._timeout_s = 0.5
        with pytest.raises(InvalidArgument, match=f"the image cannot be read: it {why}"):
            hostile(file, RESIZING)
        hostile._timeout_s = NO_LIMIT_S
        assert hostile(b"fine", RESIZING).shape == (1, 2, 3)
        assert hostile.pid != first
    finally:
        hostile.close()
