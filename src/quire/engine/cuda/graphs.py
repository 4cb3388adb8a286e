"""Recording work once and replaying it, for a few sizes of batch.

Recorded work reads and writes fixed memory only; whoever replays it fills that memory first. Owns
the sizes and the recordings; knows nothing of what is recorded.
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
"""Runs before a recording: kernels are compiled and libraries take their workspaces there."""


class GraphRecorder(Protocol):
    """Makes of work that touches fixed memory something that repeats it."""

    def record(self, work: Work) -> Work:
        """Run the work once or more and return what repeats it."""
        ...


class CudaGraphRecorder:
    """``torch.cuda.CUDAGraph``; all recordings share one memory pool, as one runs at a time, and
    one stream, as cuBLAS takes a workspace for each."""

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
    """Without the collector of cycles: what it finds may own memory of the device or kernels, and
    giving these back ends a recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class DirectRecorder:
    """Runs the work once, as warming up does, and then whenever it is repeated. For devices without
    graphs."""

    def record(self, work: Work) -> Work:
        work()
        return work


def bucket_sizes(largest: int) -> tuple[int, ...]:
    """Batch sizes with a recording: 1, 2, 4, then steps of an eighth to a quarter up to
    ``largest``, so that padding costs little more than that."""
    sizes = [size for size in (1, 2, 4) if size < largest]
    size = 8
    while size < largest:
        sizes.append(size)
        size += max(8, 1 << (size.bit_length() - 3))
    return (*sizes, largest)


class Buckets:
    """Recordings by batch size.

    ``make`` gives the work for a size. Everything is recorded at once, the largest first: what it
    allocates is then enough for the others.
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
