"""A team of kernel threads, and the functions that it runs without a model. Owns the threads'
lifetime."""

from __future__ import annotations

import os
import threading
from types import TracebackType

import torch

from quire.core.errors import ConfigError, EngineFault
from quire.engine.cpu.abi import SIGNATURES
from quire.engine.cpu.library import KernelLibrary

_NO_MEMORY = -1
"""``kNoMemory`` of ``csrc/abi.h``."""


class Team:
    """``num_threads`` threads, the caller's included. One call at a time; idle threads sleep.

    The threads do not survive a fork: a child process must create its own team.

    Raises:
        ConfigError: fewer than one thread, or the system cannot create them.
    """

    def __init__(self, library: KernelLibrary, num_threads: int) -> None:
        if num_threads < 1:
            raise ConfigError(f"num_threads is {num_threads}; it must be at least 1")
        library.declare(SIGNATURES)
        self.library = library
        self.num_threads = num_threads
        self._process = os.getpid()
        self._handle: int | None = library.native.quire_team_create(num_threads)
        if self._handle is None:
            raise ConfigError(
                f"the system refused {num_threads - 1} threads ({threading.active_count()} run in "
                "Python): lower --num-threads or raise the limit on processes"
            )

    @property
    def handle(self) -> int:
        """The ``quire::Team*`` of the C interface.

        Raises:
            ConfigError: the team was closed, or belongs to the parent of this process.
        """
        if self._handle is None:
            raise ConfigError("this team of threads was closed: make another")
        if self._process != os.getpid():
            raise ConfigError("this team of threads was left behind by a fork: make another")
        return self._handle

    def check(self, status: int, work: str, remedy: str = "use a smaller model") -> None:
        """Raise the error that a library call's status stands for.

        Raises:
            EngineFault: something inside ``work`` failed, on any thread. The team can be used
                again; the outputs of the call are undefined.
        """
        if status == 0:
            return
        if status == _NO_MEMORY:
            raise EngineFault(f"there is no memory left for {work}: {remedy}")
        text = self.library.native.quire_failure_text().decode(errors="replace")
        raise EngineFault(f"the CPU kernel failed in {work}: {text}")

    def close(self) -> None:
        """End the threads; no call may be running. May be repeated."""
        handle, self._handle = self._handle, None
        if handle is not None and self._process == os.getpid():
            self.library.native.quire_team_destroy(handle)

    def read_pass(self, buffer: torch.Tensor) -> int:
        """Read every byte of a contiguous tensor once with all threads: timing it measures the
        memory bandwidth of this team. Returns the sum of its 8-byte words, modulo 2^64.
        """
        if not buffer.is_contiguous():
            raise ConfigError("the buffer of a read pass must be contiguous")
        num_bytes = buffer.numel() * buffer.element_size()
        native = self.library.native
        return int(native.quire_read_pass(self.handle, buffer.data_ptr(), num_bytes))

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
