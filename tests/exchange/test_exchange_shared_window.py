"""Shared memory of two engines: who finds it, and that nothing of it stays behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from quire.exchange.ring import Ring
from quire.exchange.shared_window import (
    IS_SUPPORTED,
    SharedWindow,
    SharedWindows,
    WindowName,
    open_window,
)

needs_linux = pytest.mark.skipif(not IS_SUPPORTED, reason="needs files without names")
SIZE = 3 * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def window() -> Iterator[SharedWindow]:
    made = SharedWindow(SIZE)
    yield made
    made.close()


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@needs_linux
def test_both_sides_see_the_same_bytes(window: SharedWindow) -> None:
    seen = open_window(window.name, SIZE)
    assert seen is not None
    assert seen.nbytes == SIZE
    window.view[5:8] = b"abc"
    assert seen[5:8] == b"abc"
    seen[5:8] = b"xyz"
    assert window.view[5:8] == b"abc", "the receiver cannot change it"


@needs_linux
@pytest.mark.parametrize(
    "changes",
    [
        {"proof": bytes(16)},
        {"proof": b""},
        {"pid": 2**22 + 1},
        {"pid": -1},
        {"descriptor": 10**6},
        {"num_bytes": SIZE - 1},
        {"num_bytes": 0},
        {"num_bytes": 2**62},
    ],
)
def test_another_file_is_not_taken(window: SharedWindow, changes: dict[str, object]) -> None:
    before = num_descriptors()
    assert open_window(msgspec.structs.replace(window.name, **changes), SIZE) is None
    assert num_descriptors() == before


@needs_linux
def test_a_window_larger_than_allowed_is_not_taken(window: SharedWindow) -> None:
    assert open_window(window.name, SIZE - 1) is None


@needs_linux
def test_a_file_that_may_shrink_is_not_taken(window: SharedWindow, tmp_path: Path) -> None:
    """Who reads a part that is cut off is killed by the system."""
    descriptor = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb") as file:
        file.write(bytes(SIZE) + window.name.proof)
        file.flush()
        assert (
            open_window(msgspec.structs.replace(window.name, descriptor=descriptor), SIZE) is None
        )
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(SIZE) + window.name.proof)
        file.flush()
        other = msgspec.structs.replace(window.name, descriptor=file.fileno())
        assert open_window(other, SIZE) is None


@needs_linux
def test_what_is_no_file_is_not_opened(window: SharedWindow, tmp_path: Path) -> None:
    """Whoever opens a named pipe waits for its other side."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)
    held = os.open(pipe, os.O_RDONLY)
    os.close(descriptor)
    assert open_window(msgspec.structs.replace(window.name, descriptor=held), SIZE) is None
    os.close(held)


@needs_linux
def test_a_window_is_used_again_only_when_it_was_read() -> None:
    windows = SharedWindows(SIZE, 1)
    first = windows.take()
    assert first is not None
    windows.give(first, is_read=True)
    assert windows.take() is first
    windows.give(first, is_read=False)
    second = windows.take()
    assert second is not None
    assert second is not first
    third = windows.take()
    assert third is not None
    before = num_descriptors()
    windows.give(second, is_read=True)
    windows.give(third, is_read=True)
    assert num_descriptors() == before - 1, "one is kept"
    windows.close()
    assert num_descriptors() == before - 2


@pytest.mark.e2e
@needs_linux
def test_a_killed_sender_leaves_nothing() -> None:
    """Its memory stays readable to who has it open, and nobody finds it any more."""
    script = (
        "import sys, time, msgspec\n"
        "from quire.exchange.shared_window import SharedWindow\n"
        f"window = SharedWindow({SIZE})\n"
        "window.view[:3] = b'abc'\n"
        "sys.stdout.buffer.write(msgspec.json.encode(window.name) + b'\\n')\n"
        "sys.stdout.flush()\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        name = msgspec.json.decode(process.stdout.readline(), type=WindowName)
        seen = open_window(name, SIZE)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert seen is not None
    assert seen[:3] == b"abc"
    assert open_window(name, SIZE) is None


def test_a_ring_waits_for_what_it_overwrites() -> None:
    ring = Ring(1024)
    assert ring.place(400, 400) == (0, 0)
    assert ring.place(400, 800) == (448, 0)
    assert ring.place(100, 900) == (896, 0)
    assert ring.place(100, 1000) == (0, 400), "it does not fit behind the last one"
    assert ring.place(300, 1300) == (128, 0), "which the first one left free"
    assert ring.place(300, 1600) == (448, 800)
    assert ring.place(1024, 2624) == (0, 1600)


def test_pieces_in_a_ring_never_overlap_unread_ones() -> None:
    generator, ring, num_sent = random.Random(1), Ring(4096), 0
    live: list[tuple[int, int, int]] = []
    for _ in range(2000):
        size = generator.choice([1, 60, 64, 700, 1500, 4096])
        num_sent += size
        offset, num_read = ring.place(size, num_sent)
        assert offset + size <= 4096
        live = [one for one in live if one[2] > num_read]
        assert all(offset + size <= start or stop <= offset for start, stop, _ in live)
        live.append((offset, offset + size, num_sent))
