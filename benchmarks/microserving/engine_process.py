"""Starts engine processes to which a benchmark talks as a controller does, without one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.microserving.widened import NUM_POSITIONS
from quire.core.batch import Batch, BatchOperation, ForwardRows, WriteTable
from quire.core.batch_result import BatchResult, EngineAnswer, EngineReport
from quire.core.config import EngineConfig
from quire.core.engine_info import EngineInfo
from quire.core.ids import ModelId, TableId
from quire.node.transports import ZeroMQTransport

CHUNK = 512
"""Tokens of a prompt that are computed in one message."""


def i32(values: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.asarray(values, np.int32)


class EngineProcess:
    """An engine in a process of its own; results and ends of exchanges are kept apart."""

    def __init__(self, directory: Path, dtype: str, num_threads: int | None, **cache: Any) -> None:
        self._config = EngineConfig(
            source=str(directory),
            name=ModelId("m"),
            dtype=dtype,  # type: ignore[arg-type]
            num_blocks=2 * NUM_POSITIONS // cache["page_size"],
            host_cache_bytes=0,
            max_batch_tokens=CHUNK,
            num_threads=num_threads,
            data_address="tcp://127.0.0.1:0",
            **cache,
        )
        self._transport = ZeroMQTransport(self._config)
        self._results: asyncio.Queue[BatchResult] = asyncio.Queue()
        self._reports: asyncio.Queue[EngineReport] = asyncio.Queue()
        self._step = 0
        self.info: EngineInfo

    async def start(self) -> None:
        self.info = await self._transport.start(self._sort, _lost)

    def _sort(self, answer: EngineAnswer) -> None:
        if isinstance(answer, BatchResult):
            self._results.put_nowait(answer)
        else:
            self._reports.put_nowait(answer)

    async def close(self) -> None:
        await self._transport.close()

    async def run(self, **fields: Any) -> BatchResult:
        self._transport.send(Batch(serial=self._step, **fields))
        self._step += 1
        result = await self._results.get()
        assert not result.failures, result.failures
        return result

    async def report(self) -> EngineReport:
        return await self._reports.get()

    async def compute(self, tokens: Sequence[int], *, first_slot: int = 0) -> float:
        """Compute K and V of ``tokens``, in slots from ``first_slot`` on; return the seconds."""
        elapsed_s = 0.0
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK]
            elapsed_s += await self.compute_part(part, start, len(tokens), first_slot)
        return elapsed_s

    async def compute_part(
        self,
        part: Sequence[int],
        start: int,
        num_tokens: int,
        first_slot: int,
        operations: Sequence[BatchOperation] = (),
    ) -> float:
        """Compute tokens from ``start`` on of ``num_tokens``, after those before them, in one
        message; return the seconds. ``first_slot`` begins a page."""
        size = self._config.page_size
        span = np.arange(start, start + len(part))
        visible = np.zeros(-(-num_tokens // size), np.uint64)
        for slot in range(start):
            visible[slot // size] |= np.uint64(1 << slot % size)
        blocks = first_slot // size + np.arange(len(visible))
        table = WriteTable(table=TableId(0), start=0, blocks=i32(blocks), visible=visible)
        count = len(span)
        row = ForwardRows(
            row_starts=i32([0, count]),
            tables=i32([0]),
            sequences=i32([-1]),
            tokens=i32(part),
            embeds=i32([-1] * count),
            positions=i32(span)[None],
            slots=i32(first_slot + span)[None],
            outputs=i32([-1] * count),
        )
        return (await self.run(operations=[table, *operations], forward=row)).elapsed_s


def _lost(reason: str) -> None:
    raise SystemExit(f"an engine is lost: {reason}")
