"""Ranks end with their engine, and an engine with its ranks; engines run in their own processes."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from parallel_engines import tiny

from quire.core.errors import ConfigError
from quire.engine.parallel.channel import PeerGone, RankChannel
from quire.engine.parallel.group import COMMAND, RankGroup

needs_pidfd = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="waits for a process by its pidfd"
)

OWNER = """
import sys
from parallel_engines import tiny
from quire.core.batch import Batch, EmbedRows
from quire.core.errors import EngineFault
from quire.engine.engine import Engine
import numpy as np

engine = Engine(tiny(sys.argv[1]))
one = np.zeros(1, np.int32)
step = 0
def run():
    global step
    step += 1
    return engine.execute(Batch(serial=step, embeds=EmbedRows(tokens=one, embeds=one)))
assert not run().failures
print(*engine.info.extra["rank_pids"], flush=True)
for line in sys.stdin:
    if line == "close\\n":
        engine.close()
        print("closed", flush=True)
    for _ in range(2):
        try:
            run()
        except EngineFault as exc:
            print(exc, flush=True)
"""


class Owner:
    """A process with an engine of two ranks."""

    def __init__(self, source: Path) -> None:
        paths = [str(Path(__file__).parent), *sys.path]
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def ready(self) -> int:
        """Wait for the engine; a pidfd of its rank 1."""
        self.pid = int(self.read())
        return os.pidfd_open(self.pid)

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


def assert_ended(pidfd: int) -> None:
    ended, _, _ = select.select([pidfd], [], [], 60)
    assert ended
    os.close(pidfd)


@pytest.fixture(scope="module")
def owners(checkpoint: Callable[[str], Path]) -> Iterator[list[Owner]]:
    """Two owners, started at once."""
    started = [Owner(checkpoint("llama")) for _ in range(2)]
    yield started
    for owner in started:
        owner.process.kill()
        owner.process.communicate()


@needs_pidfd
def test_a_rank_that_ends_ends_the_engine_and_is_named(owners: list[Owner]) -> None:
    rank = owners[0].ready()
    os.kill(owners[0].pid, signal.SIGKILL)
    assert_ended(rank)
    owners[0].write("run")
    said = owners[0].read()
    assert f"group of 2 is broken: rank 1 (pid {owners[0].pid}) was ended by SIGKILL" in said
    assert "has failed before: start a new one" in owners[0].read()


@needs_pidfd
def test_ranks_end_with_their_engine_however_it_ends(owners: list[Owner]) -> None:
    rank = owners[1].ready()
    owners[1].process.kill()
    assert_ended(rank)


def test_a_rank_whose_engine_ended_before_it_had_started_ends() -> None:
    """The signal for the end of a parent is not sent to who asks for it afterwards."""
    ours, theirs = socket.socketpair()
    our_tokens, their_tokens = socket.socketpair()
    with ours, theirs, our_tokens, their_tokens:
        numbers = theirs.fileno(), their_tokens.fileno()
        arguments = map(str, (*numbers, 1, 2, os.getppid()))
        rank = subprocess.Popen([*COMMAND, *arguments], pass_fds=numbers)
        assert rank.wait(120) == 0


def test_a_process_holds_one_group(ranks: RankGroup) -> None:
    with pytest.raises(ConfigError, match="holds a tensor-parallel engine already"):
        RankGroup.start(tiny("none"))


def test_a_channel_carries_frames_of_any_size_and_tells_its_end() -> None:
    left, right = (RankChannel(end) for end in socket.socketpair())
    messages = [[b"header", b"", bytes(range(256)) * 50], [], [b"x"]]
    for frames in messages:
        left.send(frames)
        assert [bytes(frame) for frame in right.receive()] == frames
    left.close()
    with pytest.raises(PeerGone):
        right.receive()
    with pytest.raises(PeerGone):
        right.send([b"to nobody"])
    right.close()
