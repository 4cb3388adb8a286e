"""One process that reads documents, within limits of time and memory: see ``reading_worker``.

Owns that process: the first file starts it; a file that exceeds a limit ends it, and the next file
starts another. ``read`` is for one thread at a time, ``close`` for any.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.core.errors import ConfigError, InvalidArgument
from quire.core.piped_process import PipedProcess
from quire.node.documents.reading_worker import MISSING

WORKER = (sys.executable, "-P", str(Path(__file__).with_name("reading_worker.py")))
EXTRA = "pip install 'quire[workflows]'"


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """``max_file_s``: seconds of processor time for a file; ``max_wait_s``: seconds until a process
    that does not answer is ended. ``max_chars``: the longest text of one document."""

    max_memory_bytes: int = 1 << 30
    max_file_s: float = 20.0
    max_wait_s: float = 300.0
    max_chars: int = 4 << 20


class ReadingProcess:
    """Reads one document after another in a process. Must be closed; the process also ends when
    this object is garbage collected."""

    def __init__(
        self, limits: ReadingLimits | None = None, command: Sequence[str] = WORKER
    ) -> None:
        self._limits = limits or ReadingLimits()
        figures = (self._limits.max_memory_bytes, self._limits.max_file_s)
        self._command = (*command, *map(str, figures))
        self._process: PipedProcess | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process, or None if it is not running."""
        return None if self._process is None else self._process.pid

    def read(self, name: str, kind: str, file: bytes) -> str:
        """The text of the document ``name``. Blocks.

        Raises:
            InvalidArgument: it cannot be read, has no text, or exceeds a limit.
            ConfigError: the extra that reads this kind is not installed.
        """
        process = self._running()
        watch = threading.Timer(self._limits.max_wait_s, process.kill)
        watch.start()
        try:
            return _ask(process, name, kind, file, self._limits.max_chars)
        except (OSError, EOFError, ValueError) as exc:  # ValueError: ``close`` has closed its pipes
            process.kill()
            status = process.wait()
            self.close()
            raise InvalidArgument(
                f"the document {name!r} cannot be read: {self._why(status)}", param="documents"
            ) from exc
        finally:
            watch.cancel()

    def close(self) -> None:
        """End the process; a file that is being read is refused. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _running(self) -> PipedProcess:
        if self._process is None:
            self._process = PipedProcess(self._command, own_session=True)
        return self._process

    def _why(self, status: int) -> str:
        if status == -signal.SIGPROF:
            return (
                f"reading it takes more than {self._limits.max_file_s:g} s of processor time: "
                "divide it, or convert it to text"
            )
        return f"it ended the process that reads documents (status {status}): convert it to text"


def _ask(process: PipedProcess, name: str, kind: str, file: bytes, max_chars: int) -> str:
    """Send the file and return its text. Raises ``OSError`` or ``EOFError`` when the process has
    ended."""
    questions, answers = process.questions, process.answers
    question = {"kind": kind, "num_bytes": len(file), "max_chars": max_chars}
    questions.write(json.dumps(question).encode() + b"\n")
    questions.write(file)
    questions.flush()
    line = answers.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    answer = json.loads(line)
    if answer.get("error") == MISSING:
        raise ConfigError(f"{kind.upper()} documents ({name!r}) need an extra: {EXTRA}")
    if "error" in answer:
        raise InvalidArgument(f"the document {name!r} {answer['error']}", param="documents")
    text = answers.read(answer["num_bytes"])
    if len(text) < answer["num_bytes"]:
        raise EOFError
    return text.decode()
