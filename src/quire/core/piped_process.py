"""A child process that reads requests on its standard input and answers on its standard output."""

from __future__ import annotations

import subprocess
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress


class PipedProcess:
    """A running child. Must be closed; the process also ends when this object is garbage collected.
    ``close`` is idempotent and may be called from any thread. ``own_session``: detach it from a
    terminal's Ctrl-C.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], *, own_session: bool) -> None:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=own_session,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self.questions = process.stdin
        self.answers = process.stdout
        self.kill = process.kill
        self.wait = process.wait
        self.close: Callable[[], object] = weakref.finalize(self, _end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):  # what was not sent cannot be sent any more
            pipe.close()
    process.wait()
