"""Memory of another engine that this one writes by itself, through NIXL.

NIXL (NVIDIA Inference Xfer Library) finds the fastest way between two processes that UCX knows:
RDMA, shared memory, TCP. Owns one registered block of memory, cut into windows: a receiver lends
one to a connection, a sender reads pieces into one of its own and writes them from there. What is
written where, and when it may be read, is agreed on the connection beside it (``tcp_frames``).

A sender that was cut off may still write a window after another has got it. Who reads a piece
therefore copies it out first and verifies the copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import mmap
import os
import uuid
from collections import OrderedDict
from typing import Any

import msgspec

from quire.core.errors import ConfigError, TransferFailed

_PACKAGES = ("nixl_cu12", "nixl_cu13")
"""The builds of NIXL, of which any moves memory of the host."""

_NUM_WINDOWS = 8
_POLL_S = 0.0005
"""Between two looks at a write that is under way. NIXL's own thread would look without a pause."""

_MAX_KNOWN = 64
"""Engines whose connection is kept for the next send."""


class RemoteName(msgspec.Struct, frozen=True, kw_only=True):
    """Where a window is. ``agent``: NIXL's description of the receiver and its memory."""

    agent: bytes
    address: int
    num_bytes: int


class NixlWindow:
    """``num_bytes`` of registered memory of this process, from ``address`` on."""

    def __init__(self, view: memoryview, address: int) -> None:
        self.view = view
        self.address = address

    @property
    def num_bytes(self) -> int:
        return self.view.nbytes


class NixlMemory:
    """The windows of one transport, each of ``window_bytes``. Made anywhere, then used by one
    loop.

    Raises:
        ConfigError: NIXL is not installed, or does not work here.
    """

    def __init__(self, window_bytes: int) -> None:
        self._name = f"quire-{uuid.uuid4().hex}"
        memory = mmap.mmap(-1, _NUM_WINDOWS * window_bytes)
        start = ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))
        self._agent, self._registered = _agent_of(self._name, start, len(memory))
        self._description: bytes = self._agent.get_agent_metadata()
        whole = memoryview(memory)
        self._free = [
            NixlWindow(whole[offset : offset + window_bytes], start + offset)
            for offset in range(0, len(memory), window_bytes)
        ]
        self._num_lent = 0
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._progress: asyncio.Task[None] | None = None

    def take(self) -> NixlWindow | None:
        """None if all are in use."""
        return self._free.pop() if self._free else None

    def give(self, window: NixlWindow) -> None:
        self._free.append(window)

    def lend(self) -> NixlWindow | None:
        """As ``take``, for a sender elsewhere: what it writes is moved on meanwhile."""
        window = self.take()
        if window is not None:
            self._num_lent += 1
            if self._progress is None:
                self._progress = asyncio.get_running_loop().create_task(self._move_on())
        return window

    def give_back(self, window: NixlWindow) -> None:
        self._num_lent -= 1
        self.give(window)

    def name(self, window: NixlWindow) -> RemoteName:
        return RemoteName(
            agent=self._description, address=window.address, num_bytes=window.num_bytes
        )

    async def write(self, own: NixlWindow, there: RemoteName, offset: int, num_bytes: int) -> None:
        """Write these bytes of ``own`` to the same place of ``there``. Returns when they are there.

        Raises:
            TransferFailed: they cannot be written.
        """
        try:
            agent = self._connected(there.agent)
            handle = self._agent.initialize_xfer(
                "WRITE",
                self._agent.get_xfer_descs([(own.address + offset, num_bytes, 0)], "DRAM"),
                self._agent.get_xfer_descs([(there.address + offset, num_bytes, 0)], "DRAM"),
                agent,
            )
            try:
                state = self._agent.transfer(handle)
                while state == "PROC":
                    await asyncio.sleep(_POLL_S)
                    state = self._agent.check_xfer_state(handle)
            finally:
                with contextlib.suppress(Exception):  # of one that is under way; it is aborted
                    handle.release()
        except Exception as exc:  # NIXL's have no class of their own
            self._forget(there.agent)
            raise TransferFailed(f"NIXL cannot write to the receiver: {exc!r}") from exc
        if state != "DONE":
            self._forget(there.agent)
            raise TransferFailed(f"NIXL has not written to the receiver: {state}")

    def close(self) -> None:
        """The windows must not be used any more."""
        if self._progress is not None:
            self._progress.cancel()
        for description in list(self._known):
            self._forget(description)
        self._agent.deregister_memory(self._registered)

    def _connected(self, description: bytes) -> str:
        """NIXL's name for the agent that describes itself so."""
        if description == self._description:
            return self._name
        if description not in self._known:
            self._known[description] = self._agent.add_remote_agent(description).decode()
            while len(self._known) > _MAX_KNOWN:
                self._forget(next(iter(self._known)))
        self._known.move_to_end(description)
        return self._known[description]

    def _forget(self, description: bytes) -> None:
        name = self._known.pop(description, None)
        if name is not None:
            with contextlib.suppress(Exception):  # it may be gone already
                self._agent.remove_remote_agent(name)

    async def _move_on(self) -> None:
        """Some ways into this memory need the process that owns it."""
        while self._num_lent:
            self._agent.get_new_notifs()
            await asyncio.sleep(_POLL_S)
        self._progress = None


def _agent_of(name: str, address: int, num_bytes: int) -> tuple[Any, Any]:
    """NIXL's agent of that name, and its registration of this memory of the host."""
    api = _api()
    try:
        agent = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=False))
        return agent, agent.register_memory([(address, num_bytes, 0, "")], "DRAM")
    except Exception as exc:
        raise ConfigError(f"NIXL does not work on this machine: {exc!r}") from exc


def _api() -> Any:
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # it would write to stdout
    for package in _PACKAGES:
        try:
            return importlib.import_module(f"{package}._api")
        except ModuleNotFoundError:
            continue
    raise ConfigError(
        "K and V are to be sent by NIXL, which is not installed: pip install 'quire[nixl]', or "
        "leave out --kv-transport"
    )
