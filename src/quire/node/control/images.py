"""Decodes image files of programs into pixels, in child processes, before control receives the
command. In an engine process the decoding would delay every other program.

Owns those processes. The limits for each file are in ``quire.engine.vision.unpacker``. Only the
sender's own commands wait for its image.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import msgspec

from quire.core.commands import Command, EmbedImage
from quire.core.engine_info import ImageFraming
from quire.core.errors import Draining, EngineFault, QuireError
from quire.engine.vision.framing import frame, pack, read_pixels
from quire.engine.vision.unpacker import Unpacker
from quire.node.loops import call_on

logger = logging.getLogger(__name__)

NUM_PROCESSES = 2
"""One sender's file may take all the time that it is allowed; the second process serves the
others."""

Done = Callable[[list[Command]], None]


class ImageFramer:
    """Decodes images. ``frame`` is for any loop; ``close`` blocks until the processes have
    ended."""

    def __init__(self, make: Callable[[], Unpacker] | None = None) -> None:
        self._unpackers = [(make or _unpacker)() for _ in range(NUM_PROCESSES)]
        self._idle: SimpleQueue[Unpacker] = SimpleQueue()
        for unpacker in self._unpackers:
            self._idle.put(unpacker)
        self._pool = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="quire-images")
        self._closed = False

    def frame(self, commands: list[Command], framing: ImageFraming, done: Done) -> bool:
        """Decode the images of ``commands``. True: ``done`` is called later, on this loop, with
        commands whose images are decoded or refused. False: there is no running loop, or this
        object is closed; ``done`` is not called."""
        try:
            loop = asyncio.get_running_loop()
            self._pool.submit(self._work, commands, framing, loop, done)
        except RuntimeError:  # no loop, or closed
            return False
        return True

    def close(self) -> None:
        """Drop waiting files, whose programs have ended, and end the processes. Idempotent."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for unpacker in self._unpackers:
            unpacker.close()  # which ends what is being unpacked
        self._pool.shutdown()

    def _work(
        self,
        commands: list[Command],
        framing: ImageFraming,
        loop: asyncio.AbstractEventLoop,
        done: Done,
    ) -> None:
        unpacker = self._idle.get()
        try:
            ready = [self._framed(command, framing, unpacker) for command in commands]
        finally:
            self._idle.put(unpacker)
        call_on(loop, done, ready)

    def _framed(self, command: Command, framing: ImageFraming, unpacker: Unpacker) -> Command:
        if not isinstance(command, EmbedImage) or read_pixels(command.image) is not None:
            return command
        try:
            if self._closed:
                raise Draining("the node is stopping and unpacks no further image")
            image = pack(frame(command.image, framing, unpacker))
        except QuireError as exc:
            return msgspec.structs.replace(command, image=b"", refusal=exc.record())
        except Exception as exc:  # a bug of ours; all of its program's commands wait for an answer
            logger.exception("an image could not be unpacked")
            fault = EngineFault(f"the image could not be unpacked ({exc!r}): see the node's log")
            return msgspec.structs.replace(command, image=b"", refusal=fault.record())
        return msgspec.structs.replace(command, image=image)


def _unpacker() -> Unpacker:
    return Unpacker(own_session=True)
