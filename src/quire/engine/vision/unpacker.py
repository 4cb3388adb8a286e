"""Decodes image files to RGB in a process of its own, within limits of time and memory.

Files are untrusted, and decoders are written in C: one that crashes, hangs or takes all memory must
not take the engine with it. Owns that process: it is started by the first file, killed when a file
takes too long, and replaced at the next file. For one thread.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.errors import CapacityError, Draining, InvalidArgument
from quire.core.piped_process import PipedProcess

if TYPE_CHECKING:
    from quire.engine.vision.unpacking_worker import Resizing

Pixels = NDArray[np.uint8]
"""``[height, width, 3]``."""
Unpack = Callable[[bytes, "Resizing"], Pixels]

WORKER = (sys.executable, "-P", str(Path(__file__).with_name("unpacking_worker.py")))
MAX_IMAGE_BYTES = 16 << 20
TIMEOUT_S = 10.0
"""The largest accepted image needs a quarter of it on a slow processor."""
MAX_MEMORY_BYTES = 1 << 30


class Unpacker:
    """Decodes images in a process of its own. Must be closed; the process also ends when this
    object is garbage collected. ``command`` starts a process that implements ``unpacking_worker``;
    ``own_session``: detach it from a terminal's Ctrl-C."""

    def __init__(
        self,
        command: Sequence[str] = WORKER,
        *,
        timeout_s: float = TIMEOUT_S,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
        own_session: bool = False,
    ) -> None:
        self._own_session = own_session
        self._command = (*command, str(max_memory_bytes))
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: PipedProcess | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The id of the process, or None if it is not running."""
        return None if self._process is None else self._process.pid

    def __call__(self, file: bytes, resizing: Resizing) -> Pixels:
        """The image in ``file``, upright and resized.

        Raises:
            InvalidArgument: no PNG or JPEG, damaged, or over a bound, which includes those of time
                and memory.
            CapacityError: the system starts no process now.
            Draining: this object is closed.
        """
        if len(file) > MAX_IMAGE_BYTES:
            raise InvalidArgument(
                f"the image has {len(file)} bytes; at most {MAX_IMAGE_BYTES} are read: make it "
                "smaller"
            )
        process, too_long = self._running(), threading.Event()

        def end() -> None:
            too_long.set()
            process.kill()

        timer = threading.Timer(self._timeout_s, end)
        timer.start()
        try:
            pixels = _ask(process, file, resizing)
        except (OSError, EOFError) as exc:
            self._drop(process)
            why = f"took more than {self._timeout_s:g} s" if too_long.is_set() else "ended it"
            raise InvalidArgument(
                f"the image cannot be read: it {why} in the process that unpacks images; send it "
                "in another form"
            ) from exc
        finally:
            timer.cancel()
            timer.join()
        if too_long.is_set():
            self._drop(process)  # it was killed right after its answer
        return pixels

    def _running(self) -> PipedProcess:
        with self._lock:
            if self._is_closed:  # a process that starts behind ``close`` would be ended by nobody
                raise Draining("the process that unpacks images has been closed")
            if self._process is None:
                self._process = self._started()
            return self._process

    def _started(self) -> PipedProcess:
        try:
            return PipedProcess(self._command, own_session=self._own_session)
        except OSError as exc:
            raise CapacityError(
                f"no process for the image can be started ({exc}): try again later"
            ) from exc

    def _drop(self, process: PipedProcess) -> None:
        """End the process; the next file starts another."""
        with self._lock:
            if self._process is process:
                self._process = None
        process.close()

    def close(self) -> None:
        """End the process, and start none any more. Idempotent; for any thread."""
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
        if process is not None:
            process.close()


def _ask(process: PipedProcess, file: bytes, resizing: Resizing) -> Pixels:
    """Have the process decode ``file``. Raises ``OSError`` or ``EOFError``: the process has
    ended."""
    questions, answers = process.questions, process.answers
    questions.write(json.dumps({"num_bytes": len(file), **asdict(resizing)}).encode() + b"\n")
    questions.write(file)
    questions.flush()
    line = answers.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    answer = json.loads(line)
    if "error" in answer:
        raise InvalidArgument(answer["error"])
    width, height = answer["width"], answer["height"]
    pixels = answers.read(width * height * 3)
    if len(pixels) < width * height * 3:
        raise EOFError
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
