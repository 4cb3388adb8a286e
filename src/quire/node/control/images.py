"""Decodes image files of programs into pixels, in child processes, before control receives the
command. In an engine process the decoding would delay every other program.

Owns those processes, and the turns that tenants take. The limits for each file are in
``quire.engine.vision.unpacker``. Only the sender's own commands wait for its image.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeGuard

import msgspec

from quire.core.commands import Command, EmbedImage
from quire.core.engine_info import ImageFraming
from quire.core.errors import Draining, EngineFault, QuireError, QuotaExceeded
from quire.core.ids import TenantId
from quire.engine.vision.framing import frame, pack, read_pixels
from quire.engine.vision.unpacker import Unpacker
from quire.node.grammars.turns import TenantTurns, work_off
from quire.node.loops import call_on

logger = logging.getLogger(__name__)

NUM_PROCESSES = 2
"""One sender's file may take all the time that it is allowed; the second process serves the
others."""

MAX_WAITING = 256
"""Messages with images of one tenant that may wait."""

Done = Callable[[list[Command]], None]


@dataclass(frozen=True, slots=True)
class _Task:
    commands: list[Command]
    framing: ImageFraming
    loop: asyncio.AbstractEventLoop
    done: Done


class ImageFramer:
    """Decodes images. ``frame`` is for any loop; ``close`` blocks until the processes have
    ended."""

    def __init__(self, make: Callable[[], Unpacker] | None = None) -> None:
        self._unpackers = [(make or _unpacker)() for _ in range(NUM_PROCESSES)]
        self._idle: SimpleQueue[Unpacker] = SimpleQueue()
        for unpacker in self._unpackers:
            self._idle.put(unpacker)
        self._turns: TenantTurns[_Task] = TenantTurns(
            NUM_PROCESSES, MAX_WAITING, "messages with images"
        )
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="quire-images")
        self._closed = False

    def frame(
        self, tenant: TenantId, commands: list[Command], framing: ImageFraming, done: Done
    ) -> bool:
        """Decode the images of ``commands``. True: ``done`` is called later, on this loop, with
        commands whose images are decoded or refused. False: there is no running loop, or this
        object is closed; ``done`` is not called."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        with self._lock:
            if self._closed:
                return False
            try:
                self._turns.add(tenant, _Task(commands, framing, loop, done))
            except QuotaExceeded as exc:
                loop.call_soon(done, [_refused(command, exc) for command in commands])
            else:
                self._pool.submit(self._work)
        return True

    def close(self) -> None:
        """Drop waiting files, whose programs have ended, and end the processes. Idempotent."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for unpacker in self._unpackers:
            unpacker.close()  # which ends what is being unpacked
        self._pool.shutdown()

    def _work(self) -> None:
        work_off(self._turns, self._lock, self._unpack)

    def _unpack(self, tenant: TenantId, task: _Task) -> None:
        unpacker = self._idle.get()
        try:
            ready = [self._framed(one, task.framing, unpacker) for one in task.commands]
            call_on(task.loop, task.done, ready)
        finally:
            self._idle.put(unpacker)

    def _framed(self, command: Command, framing: ImageFraming, unpacker: Unpacker) -> Command:
        if not _has_file(command):
            return command
        try:
            if self._closed:
                raise Draining("the node is stopping and unpacks no further image")
            image = pack(frame(command.image, framing, unpacker))
        except QuireError as exc:
            return _refused(command, exc)
        except Exception as exc:  # a bug of ours; all of its program's commands wait for an answer
            logger.exception("an image could not be unpacked")
            fault = EngineFault(f"the image could not be unpacked ({exc!r}): see the node's log")
            return _refused(command, fault)
        return msgspec.structs.replace(command, image=image)


def _has_file(command: Command) -> TypeGuard[EmbedImage]:
    return isinstance(command, EmbedImage) and read_pixels(command.image) is None


def _refused(command: Command, error: QuireError) -> Command:
    """``command`` with the refusal of its image, if it has one that is not decoded."""
    if not _has_file(command):
        return command
    return msgspec.structs.replace(command, image=b"", refusal=error.record())


def _unpacker() -> Unpacker:
    return Unpacker(own_session=True)
