"""``RankGroup``: rank 0's control of the other ranks, from their start to their end.

Owns the processes and the channels to them. When a rank ends, the group ends: rank 0's next call
raises ``EngineFault`` with the reason, and the engine's supervisor starts a new engine with new
ranks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError, EngineFault, from_record
from quire.engine.device import choose_device
from quire.engine.parallel.channel import PeerGone, RankChannel
from quire.engine.parallel.collectives import Collectives, host_store
from quire.engine.parallel.messages import (
    Answer,
    AnyCall,
    AnyTokenCall,
    Join,
    Joined,
    Load,
    Loaded,
    TokensRead,
    answer_codec,
    call_codec,
    token_answer_codec,
    token_call_codec,
)
from quire.engine.parallel.shard import Shard

COMMAND = (sys.executable, "-P", "-m", "quire.engine.parallel.rank_process")

_END_S = 2.0
"""The seconds from the end of a rank's channel to SIGTERM, and from there to SIGKILL."""


@dataclass(slots=True)
class Follower:
    """One rank other than rank 0. ``code``: its exit status once it is known to have ended.
    ``tokens``: the channel of the data plane."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: RankChannel
    tokens: RankChannel

    @property
    def code(self) -> int | None:
        return self.process.returncode

    def reason(self) -> str:
        if self.code is None:
            return f"rank {self.rank} (pid {self.process.pid}) does not answer"
        how = (
            f"was ended by {signal.Signals(-self.code).name}"
            if self.code < 0
            else f"exited with {self.code}; its last words are in the log"
        )
        return f"rank {self.rank} (pid {self.process.pid}) {how}"


class RankGroup:
    """``size`` ranks, of which this process is rank 0. Use ``start``."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.device = device
        self._calls, self._answers = call_codec(), answer_codec()
        self._followers: list[Follower] = []
        self._collectives: Collectives | None = None
        self._token_calls, self._token_answers = token_call_codec(), token_answer_codec()
        self._asking = threading.Lock()
        self.num_calls = 0
        """Number of the calls that the other ranks were told."""

    @classmethod
    def start(cls, config: EngineConfig) -> RankGroup:
        """Start the other ranks and wait until they join.

        Raises:
            ConfigError: fewer devices than ranks, or this process already has a group.
            EngineFault: a rank ended before it had joined.
        """
        size, device = config.tensor_parallel, device_of_rank(config, 0)
        group = cls(size, device)
        try:
            store = host_store(size)
            for rank in range(1, size):
                group._spawn(rank)
            for follower in group._followers:
                name = str(device_of_rank(config, follower.rank))
                group._send(follower, Join(port=store.port, device=name))
            with group.guard():
                group._collectives = Collectives(Shard(0, size), device, store)
                group._hear(Joined)
        except BaseException:
            group.close()
            raise
        return group

    @property
    def collectives(self) -> Collectives:
        assert self._collectives is not None, "the group is closed"
        return self._collectives

    @property
    def pids(self) -> list[int]:
        """Process ids of the other ranks."""
        return [follower.process.pid for follower in self._followers]

    def tell(self, call: AnyCall) -> None:
        """Send ``call`` to every other rank; the caller then takes part in its collectives."""
        frames = self._calls.encode(call)
        self.num_calls += 1
        for follower in self._followers:
            follower.channel.send(frames)

    def ask_tokens(
        self, calls: Sequence[AnyTokenCall], meanwhile: Callable[[], None]
    ) -> list[TokensRead]:
        """Ask the other ranks, each its one of ``calls``, and return their answers; rank 0 does
        ``meanwhile``. On any thread.

        Raises:
            EngineFault: a rank has ended.
        """
        with self._asking, self.guard():
            for follower, call in zip(self._followers, calls, strict=True):
                follower.tokens.send(self._token_calls.encode(call))
            meanwhile()
            return [
                self._token_answers.decode(follower.tokens.receive())
                for follower in self._followers
            ]

    def begin_load(self, config: EngineConfig) -> None:
        """Let the others load their parts while this rank loads its own."""
        with self.guard():
            self.tell(Load(config=config))

    def end_load(self, mine: Loaded) -> None:
        """Wait for the others' models.

        Raises:
            QuireError: a rank could not load, or its sizes differ from this rank's.
        """
        for follower, answer in zip(self._followers, self.hear_loads(), strict=True):
            assert isinstance(answer, Loaded)
            if answer.error is not None:
                raise from_record(answer.error)
            if answer != mine:
                raise ConfigError(
                    f"rank {follower.rank} has loaded {answer}, rank 0 {mine}: the model directory "
                    "changed while it was read; start again"
                )

    def hear_loads(self) -> list[Answer]:
        """The results of the others' loads, in order of rank."""
        with self.guard():
            return self._hear(Loaded)

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Wraps operations that need the other ranks: an error names the rank that has ended."""
        try:
            yield
        except (PeerGone, RuntimeError, OSError) as exc:
            self._await_ends(0.5)
            gone = [one.reason() for one in self._followers if one.code is not None]
            reason = "; ".join(gone) or f"the ranks do not meet ({exc!r})"
            raise EngineFault(
                f"the tensor-parallel group of {self.size} is broken: {reason}"
            ) from exc

    def close(self) -> None:
        """End the other ranks; returns when they have ended. Idempotent."""
        for follower in self._followers:
            follower.channel.close()
            follower.tokens.close()
        for end in (None, subprocess.Popen.terminate, subprocess.Popen.kill):
            if end is not None:
                for follower in self._followers:
                    if follower.code is None:
                        end(follower.process)
            self._await_ends(_END_S)
        self._followers.clear()
        if self._collectives is not None:
            self._collectives.close()
            self._collectives = None

    def _spawn(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        our_tokens, their_tokens = socket.socketpair()
        with theirs, their_tokens:
            numbers = theirs.fileno(), their_tokens.fileno()
            process = subprocess.Popen(
                [*COMMAND, *map(str, (*numbers, rank, self.size, os.getpid()))],
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
                start_new_session=True,  # Ctrl-C is for the node, which then ends its engines
            )
        self._followers.append(Follower(rank, process, RankChannel(ours), RankChannel(our_tokens)))

    def _await_ends(self, limit_s: float) -> None:
        """Wait until ranks that are ending have ended, at most ``limit_s``."""
        ends_s = time.monotonic() + limit_s
        for follower in self._followers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                follower.process.wait(max(0.0, ends_s - time.monotonic()))

    def _send(self, follower: Follower, call: AnyCall) -> None:
        with self.guard():
            follower.channel.send(self._calls.encode(call))

    def _hear(self, kind: type[Answer]) -> list[Answer]:
        answers = [self._answers.decode(one.channel.receive()) for one in self._followers]
        assert all(isinstance(answer, kind) for answer in answers)
        return answers


def device_of_rank(config: EngineConfig, rank: int) -> torch.device:
    """CUDA: one device for each rank, from the configured one on. CPU: shared.

    Raises:
        ConfigError: fewer devices than ranks.
    """
    device = choose_device(config.device)
    if device.type != "cuda":
        return device
    first, count = device.index or 0, torch.cuda.device_count()
    if first + config.tensor_parallel > count:
        raise ConfigError(
            f"tensor_parallel is {config.tensor_parallel} from {device} on, and there are {count} "
            "CUDA devices: choose fewer ranks"
        )
    return torch.device("cuda", first + rank)


def local_engine_config(config: EngineConfig, device: torch.device) -> EngineConfig:
    """The configuration of one rank: its device, its share of the host's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = max(1, (cores or 1) // (config.tensor_parallel * config.replicas))
    num_threads = config.num_threads or (share if device.type == "cpu" else None)
    return replace(config, device=str(device), num_threads=num_threads)
