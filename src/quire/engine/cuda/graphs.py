"""Records work once and replays it, for a few batch sizes.

Recorded work reads and writes fixed memory only; the caller fills that memory before a replay. Owns
the sizes and the recordings; does not know what is recorded.
"""

from __future__ import annotations

import bisect
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from quire.core.errors import ConfigError

logger = logging.getLogger(__name__)

Work = Callable[[], None]

_WARM_UPS = 2
"""Runs before a recording, in which kernels are compiled and libraries allocate workspaces."""


class GraphRecorder(Protocol):
    """Turns work on fixed memory into a function that repeats it."""

    def record(self, work: Work) -> Work:
        """Run the work at least once and return a function that repeats it."""
        ...


class CudaGraphRecorder:
    """``torch.cuda.CUDAGraph``. All recordings share one memory pool, because only one runs at a
    time, and one stream, because cuBLAS allocates a workspace for each stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, work: Work) -> Work:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                work()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disables the garbage collector: an object that it frees may own device memory or kernels, and
    releasing these aborts a recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class DirectRecorder:
    """Runs the work once, as a warm-up, and again at each repetition. For devices without
    graphs."""

    def record(self, work: Work) -> Work:
        work()
        return work


def bucket_sizes(largest: int) -> tuple[int, ...]:
    """Batch sizes with a recording: 1, 2, 4, then increments of an eighth to a quarter up to
    ``largest``, which bounds the share of padding."""
    sizes = [size for size in (1, 2, 4) if size < largest]
    size = 8
    while size < largest:
        sizes.append(size)
        size += max(8, 1 << (size.bit_length() - 3))
    return (*sizes, largest)


class GraphBuckets:
    """Recordings by batch size.

    ``make`` returns the work for a size. All sizes are recorded at once, the largest first, so that
    its allocations suffice for the others.
    """

    def __init__(
        self, name: str, sizes: Sequence[int], make: Callable[[int], Work], recorder: GraphRecorder
    ) -> None:
        self.sizes = tuple(sorted(sizes))
        self._replays: dict[int, Work] = {}
        for number, size in enumerate(reversed(self.sizes), start=1):
            try:
                self._replays[size] = recorder.record(make(size))
            except torch.OutOfMemoryError as exc:
                raise ConfigError(
                    f"the {name} for batches of {size} cannot be recorded ({exc}): lower "
                    "kv_cache_bytes or max_sequences"
                ) from exc
            except RuntimeError as exc:
                raise ConfigError(
                    f"the {name} for batches of {size} cannot be recorded here ({exc}): choose "
                    "backend torch"
                ) from exc
            logger.info("%s: %d of %d batch sizes recorded", name, number, len(self.sizes))

    def size_for(self, num_rows: int) -> int | None:
        """The smallest recorded size that holds ``num_rows``; None if there is none."""
        place = bisect.bisect_left(self.sizes, num_rows)
        return self.sizes[place] if place < len(self.sizes) else None

    def replay(self, size: int) -> None:
        self._replays[size]()
