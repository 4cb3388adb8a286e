"""Sizes of recordings, their order, and which one serves a batch."""

from __future__ import annotations

import pytest
import torch

from quire.core.errors import ConfigError
from quire.engine.cuda.graphs import GraphBuckets, Work, bucket_sizes


class CountingRecorder:
    """A graph that counts: recording runs the work once, replaying only counts."""

    def __init__(self) -> None:
        self.recorded: list[str] = []
        self.replayed = 0

    def record(self, work: Work) -> Work:
        work()
        return self._replay

    def _replay(self) -> None:
        self.replayed += 1


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 8, 9, 32, 100, 256, 1000])
def test_sizes(largest: int) -> None:
    sizes = bucket_sizes(largest)
    assert sizes[-1] == largest
    assert list(sizes) == sorted(set(sizes))
    padding = [
        (next(size for size in sizes if size >= rows) - rows) / rows
        for rows in range(8, largest + 1)
    ]
    assert max(padding, default=0) <= 0.875  # 8 rows past a size, among the smallest
    assert max(padding[56:], default=0) <= 0.25
    assert len(sizes) <= 40


def test_the_largest_is_recorded_first_and_the_smallest_that_fits_is_replayed() -> None:
    recorder, made = CountingRecorder(), []
    buckets = GraphBuckets("step", (4, 1, 8), lambda size: lambda: made.append(size), recorder)
    assert made == [8, 4, 1]
    assert [buckets.size_for(rows) for rows in (1, 2, 4, 5, 8, 9)] == [1, 4, 4, 8, 8, None]
    buckets.replay(4)
    assert (recorder.replayed, made) == (1, [8, 4, 1])


def test_the_error_for_recordings_that_do_not_fit_names_the_setting_to_lower() -> None:
    class Full:
        def record(self, work: Work) -> Work:
            raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")

    with pytest.raises(ConfigError, match=r"batches of 8 .*2\.00 GiB.*: lower kv_cache_bytes"):
        GraphBuckets("step", (4, 8), lambda size: lambda: None, Full())


def test_work_that_cannot_be_recorded_names_another_backend() -> None:
    class Refusing:
        def record(self, work: Work) -> Work:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(ConfigError, match=r"batches of 4 .*not permitted.*: choose backend torch"):
        GraphBuckets("step", (4,), lambda size: lambda: None, Refusing())
