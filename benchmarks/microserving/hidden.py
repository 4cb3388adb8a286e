"""Measures what a transfer costs those who compute meanwhile: the prompt of the sender, and the
steps of the receiver (Microserving, Table 3: transfers are hidden).

    python benchmarks/microserving/hidden.py [--models small] [--lengths 1000 3000] [--quick]

A process computes a prompt in messages of 512 tokens. Each message also sends what it computes
itself, layer by layer ("with"), or what the one before it has computed ("behind"). The wait is from
the end of the last message until the receiver has everything. The receiving process runs steps of
one token behind 512 others without a pause, from the first message to the last one. In turn the
same is done without sending, so that the ratios are the transfer alone. Both processes have one
thread; the threads of the transfer need a core of their own, and where there are two cores they
take the time from the other two.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.measurement import figure, ratio
from benchmarks.microserving.engine_process import CHUNK, EngineProcess, i32
from benchmarks.microserving.widened import NUM_POSITIONS, widened
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import model_directory
from benchmarks.report import emit, print_table
from quire.core.batch import CloseReceives, OpenReceive, SendSlots
from quire.core.exchange import ReceiveEnded, SendEnded, SendTarget

LENGTHS, QUICK_LENGTHS, CONTEXT = (1000, 3000), (1000,), 512
KEY = bytes(16)

Way = Literal["alone", "behind", "with"]
WAYS: tuple[Way, ...] = ("alone", "behind", "with")


class Round:
    """One prompt at ``sender`` beside the steps of ``receiver``."""

    def __init__(self, sender: EngineProcess, receiver: EngineProcess, tokens: list[int]) -> None:
        self._sender, self._receiver, self._tokens = sender, receiver, tokens
        self._is_over = False

    async def run(self, way: Way) -> tuple[float, float, float]:
        """Run one round; return the seconds of the prompt, of a step, and of the wait."""
        is_sending = way != "alone"
        if is_sending:
            slots = i32(range(len(self._tokens)))
            await self._receiver.run(operations=[OpenReceive(lease=1, key=KEY, slots=slots)])
        steps = asyncio.create_task(self._steps())
        prompt_s, ended_s = await self._prompt(way)
        wait_s = time.perf_counter() - ended_s
        self._is_over = True
        step_s = await steps
        if is_sending:
            received = await self._receiver.report()
            assert isinstance(received, ReceiveEnded), received
            assert received.error is None, received.error
            await self._receiver.run(operations=[CloseReceives(leases=[1])])
        return prompt_s, step_s, wait_s

    async def _prompt(self, way: Way) -> tuple[float, float]:
        """Seconds of all messages, and the time at which the last one has ended."""
        prompt_s, num_tokens = 0.0, len(self._tokens)
        for start in range(0, num_tokens, CHUNK):
            sends = []
            if way == "with":
                sends = [self._send(start, min(start + CHUNK, num_tokens))]
            elif way == "behind" and start:
                sends = [self._send(start - CHUNK, start)]
            part = self._tokens[start : start + CHUNK]
            prompt_s += await self._sender.compute_part(part, start, num_tokens, 0, sends)
        ended_s = time.perf_counter()
        if way == "behind":
            last = (num_tokens - 1) // CHUNK * CHUNK
            await self._sender.run(operations=[self._send(last, num_tokens)])
        if way != "alone":
            for _ in range(0, num_tokens, CHUNK):
                ended = await self._sender.report()
                assert isinstance(ended, SendEnded), ended
                assert ended.error is None, ended.error
        return prompt_s, ended_s

    def _send(self, start: int, stop: int) -> SendSlots:
        address = self._receiver.info.data_address
        target = SendTarget(address=address, lease=1, key=KEY, first=start)
        return SendSlots(send=start + 1, slots=i32(range(start, stop)), target=target)

    async def _steps(self) -> float:
        taken = []
        while not self._is_over:
            taken.append(
                await self._receiver.compute_part([5], CONTEXT, CONTEXT + 1, NUM_POSITIONS)
            )
        return statistics.mean(taken)


async def of_length(
    sender: EngineProcess, receiver: EngineProcess, num_tokens: int, num_rounds: int
) -> dict[str, Any]:
    tokens = np.random.default_rng(0).integers(3, sender.info.vocab_size, num_tokens).tolist()
    taken: dict[Way, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    for number in range(num_rounds + 1):
        for way in WAYS if number % 2 else WAYS[::-1]:
            one = await Round(sender, receiver, tokens).run(way)
            if number:
                taken[way].append(one)
    (alone_s, step_alone_s, _), *sending = (tuple(zip(*taken[way], strict=True)) for way in WAYS)
    row: dict[str, Any] = {
        "tokens": num_tokens,
        "prompt_ms": figure(alone_s).scaled(1e3).rounded(),
        "step_ms": figure(step_alone_s).scaled(1e3).rounded(),
    }
    for way, (prompt_s, step_s, wait_s) in zip(WAYS[1:], sending, strict=True):
        row[f"prompt_{way}_over_alone"] = ratio(prompt_s, alone_s).rounded()
        row[f"step_{way}_over_alone"] = ratio(step_s, step_alone_s).rounded()
        row[f"wait_{way}_ms"] = figure(wait_s).scaled(1e3).rounded()
    return row


async def measure(
    directory: Path, dtype: str, lengths: Sequence[int], arguments: Any
) -> list[dict[str, Any]]:
    threads = arguments.num_threads or 1
    sender, receiver = (
        EngineProcess(directory, dtype, threads, backend="cpu", page_size=16) for _ in range(2)
    )
    try:
        await sender.start()
        await receiver.start()
        await receiver.compute([7] * CONTEXT, first_slot=NUM_POSITIONS)
        num_rounds = rounds_of(arguments)
        return [await of_length(sender, receiver, length, num_rounds) for length in lengths]
    finally:
        await sender.close()
        await receiver.close()


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--lengths", nargs="+", type=int, help=f"tokens (default: {LENGTHS})")
    made.add_argument("--dtypes", nargs="+", default=["float32"])
    arguments = made.parse_args()
    lengths = arguments.lengths or (QUICK_LENGTHS if arguments.quick else LENGTHS)
    rows = []
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as scratch:
            directory = widened(model_directory(arguments.cache, model), Path(scratch))
            for dtype in arguments.dtypes:
                found = asyncio.run(measure(directory, dtype, lengths, arguments))
                rows += [{"model": model, "dtype": dtype, **row} for row in found]
    print_table("Prompts and steps beside a transfer, over those without", rows)
    emit("microserving/hidden", arguments.out, results=rows)


if __name__ == "__main__":
    main()
