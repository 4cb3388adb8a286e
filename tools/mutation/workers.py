"""Processes that share numbered pieces of work: a process that has finished one takes the next."""

from __future__ import annotations

import os
import struct
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress

_NUMBER = struct.Struct("=I")

Work = Callable[[Iterator[int]], None]
"""Processes numbers until there are no more."""


def share_out(num_pieces: int, num_workers: int, work: Work) -> None:
    """Returns when every piece is done; raises ``SystemExit`` if a worker failed."""
    numbers, writing = os.pipe()  # all numbers fit into the pipe, so they are written at once
    os.write(writing, b"".join(_NUMBER.pack(number) for number in range(num_pieces)))
    os.close(writing)
    workers = [_forked(numbers, work) for _ in range(min(num_workers, num_pieces))]
    os.close(numbers)
    statuses = []
    for worker in workers:
        with suppress(KeyboardInterrupt):  # the workers get the signal too, and end
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
    if statuses != [0] * len(workers):
        raise SystemExit("not all mutants were tested: run again to continue")


def _forked(numbers: int, work: Work) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work(_taken(numbers))
        status = 0
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _taken(numbers: int) -> Iterator[int]:
    while piece := os.read(numbers, _NUMBER.size):
        yield _NUMBER.unpack(piece)[0]
