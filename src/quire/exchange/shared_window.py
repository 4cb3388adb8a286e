"""Memory that two engines of one machine share for the pieces of a transfer.

Owns a file without a name (``memfd_create``): the receiver finds it through the sender's process,
and the system frees it with the last process that has it open, also after a SIGKILL. Does not know
pieces; who may write what and when is agreed on the connection beside it.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import stat
import sys

import msgspec

logger = logging.getLogger(__name__)

IS_SUPPORTED = sys.platform == "linux"

_PROOF_BYTES = 16
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if IS_SUPPORTED else 0
"""The size stays: who reads memory behind the end of a file is killed."""


class WindowName(msgspec.Struct, frozen=True, kw_only=True):
    """Where the receiver finds it. ``proof``: random bytes that it ends with; a process of another
    machine or container has another file there, or none."""

    pid: int
    descriptor: int
    num_bytes: int
    proof: bytes


class SharedWindow:
    """``num_bytes`` of shared memory, made by the sender.

    Raises:
        OSError: the system gives none.
    """

    def __init__(self, num_bytes: int) -> None:
        proof = secrets.token_bytes(_PROOF_BYTES)
        self._descriptor = os.memfd_create("quire-exchange", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._descriptor, num_bytes + _PROOF_BYTES)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._memory = mmap.mmap(self._descriptor, num_bytes + _PROOF_BYTES)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._memory[num_bytes:] = proof
        self.view = memoryview(self._memory)[:num_bytes]
        self.name = WindowName(
            pid=os.getpid(), descriptor=self._descriptor, num_bytes=num_bytes, proof=proof
        )

    def close(self) -> None:
        """Nobody finds it any more. Its memory is given back with the last view of it, here and at
        the receiver."""
        os.close(self._descriptor)


class SharedWindows:
    """Belongs to one thread. Keeps at most ``num_kept`` windows that nobody uses: pages that the
    system must clear first cost as much as copying them."""

    def __init__(self, num_bytes: int, num_kept: int) -> None:
        self._num_bytes = num_bytes
        self._num_kept = num_kept
        self._free: list[SharedWindow] = []

    def take(self) -> SharedWindow | None:
        """None where the system gives no memory that can be shared."""
        if self._free:
            return self._free.pop()
        if not IS_SUPPORTED:
            return None
        try:
            return SharedWindow(self._num_bytes)
        except OSError as exc:
            logger.info("no memory can be shared, K and V go through the socket: %s", exc)
            return None

    def give(self, window: SharedWindow, *, is_read: bool) -> None:
        """``is_read``: the receiver has taken all that was written. Otherwise it may still read,
        and the window must not be written again."""
        if is_read and len(self._free) < self._num_kept:
            self._free.append(window)
        else:
            window.close()

    def close(self) -> None:
        while self._free:
            self._free.pop().close()


def open_window(name: WindowName, most_bytes: int) -> memoryview | None:
    """The memory that ``name`` says, to be read only; None if it is not of this machine, cannot be
    reached or is larger than ``most_bytes``. It is given back with its last view."""
    if not IS_SUPPORTED or not 0 < name.num_bytes <= most_bytes:
        return None
    path, size = f"/proc/{name.pid}/fd/{name.descriptor}", name.num_bytes + _PROOF_BYTES
    try:
        found = os.stat(path)
        if (
            not stat.S_ISREG(found.st_mode) or found.st_size != size
        ):  # a pipe could block its reader
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            return None
        if os.fstat(descriptor).st_size != size:
            return None
        # private, though nobody writes to it: PyTorch wants memory that may be written
        memory = mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError):  # of a file that cannot be sealed or mapped
        return None
    finally:
        os.close(descriptor)
    if not secrets.compare_digest(memory[name.num_bytes :], name.proof):
        return None
    return memoryview(memory)[: name.num_bytes]
