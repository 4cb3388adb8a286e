"""K and V from one engine process to another: bytes per second, and the time over that of computing
them (Microserving, Table 3).

    python benchmarks/microserving/transfer.py [--models small] [--lengths 1000 3000 5000] [--quick]

One process with the CPU kernel's cache computes a prompt, in messages of 512 tokens, and then sends
its K and V to a second process, through the memory that engines of one machine share; the second
one has the same cache, or PyTorch's in pages of another size. Limits, in the same rounds and with
as many bytes: a copy in memory, and a plain TCP connection on loopback between two threads that
neither checks nor converts anything.
The transfer's time ends when the receiver has verified and written everything.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.measurement import Figure, figure, ratio
from benchmarks.microserving.widened import NUM_POSITIONS, widened
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import model_directory
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.core.batch import (
    Batch,
    BatchResult,
    CloseReceives,
    EngineAnswer,
    ForwardRows,
    OpenReceive,
    SendSlots,
    WriteTable,
)
from quire.core.config import EngineConfig
from quire.core.engine_info import EngineInfo
from quire.core.exchange import ReceiveEnded, SendEnded, SendTarget
from quire.core.ids import ModelId, TableId
from quire.node.transports import ZeroMQTransport

LENGTHS, QUICK_LENGTHS = (1000, 3000, 5000), (1000,)
CHUNK = 512
KEY = bytes(16)
RECEIVERS: dict[str, dict[str, Any]] = {
    "equal tiles": {"backend": "cpu", "page_size": 16},
    "plain pages of 64": {"backend": "torch", "page_size": 64},
}


def i32(values: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.asarray(values, np.int32)


class Process:
    """An engine process and its messages."""

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
        self._answers: asyncio.Queue[EngineAnswer] = asyncio.Queue()
        self._step = 0
        self.info: EngineInfo

    async def start(self) -> None:
        self.info = await self._transport.start(self._answers.put_nowait, _lost)

    async def close(self) -> None:
        await self._transport.close()

    async def run(self, **fields: Any) -> BatchResult:
        self._transport.send(Batch(step=self._step, **fields))
        self._step += 1
        answer = await self.answer()
        assert isinstance(answer, BatchResult), answer
        assert not answer.failures, answer.failures
        return answer

    async def answer(self) -> EngineAnswer:
        return await self._answers.get()

    async def compute(self, tokens: Sequence[int]) -> float:
        """Seconds to compute K and V of ``tokens``, in slots 0 and on."""
        size = self._config.page_size
        elapsed_s = 0.0
        for start in range(0, len(tokens), CHUNK):
            span = np.arange(start, min(start + CHUNK, len(tokens)))
            visible = np.zeros(-(-len(tokens) // size), np.uint64)
            for slot in range(start):
                visible[slot // size] |= np.uint64(1 << slot % size)
            table = WriteTable(
                table=TableId(0), start=0, blocks=i32(range(len(visible))), visible=visible
            )
            count = len(span)
            row = ForwardRows(
                row_starts=i32([0, count]),
                tables=i32([0]),
                sequences=i32([-1]),
                tokens=i32(tokens[start : start + CHUNK]),
                embeds=i32([-1] * count),
                positions=i32(span)[None],
                slots=i32(span)[None],
                outputs=i32([-1] * count),
            )
            elapsed_s += (await self.run(operations=[table], forward=row)).elapsed_s
        return elapsed_s


def _lost(reason: str) -> None:
    raise SystemExit(f"an engine is lost: {reason}")


async def transfer(sender: Process, receiver: Process, num_tokens: int) -> SendEnded:
    slots = i32(range(num_tokens))
    target = SendTarget(address=receiver.info.data_address, lease=1, key=KEY, first=0)
    await receiver.run(operations=[OpenReceive(lease=1, key=KEY, slots=slots)])
    await sender.run(operations=[SendSlots(send=1, slots=slots, target=target)])
    received, sent = await receiver.answer(), await sender.answer()
    assert isinstance(received, ReceiveEnded), received
    assert isinstance(sent, SendEnded), sent
    assert sent.error is None, sent.error
    await receiver.run(operations=[CloseReceives(leases=[1])])
    return sent


def copy_s(num_bytes: int) -> float:
    source, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    began_s = time.perf_counter()
    target[:] = source
    return time.perf_counter() - began_s


def tcp_s(num_bytes: int) -> float:
    """Until the receiver has said that it has everything."""
    source, target = np.ones(num_bytes, np.uint8), memoryview(bytearray(num_bytes))
    listener = socket.create_server(("127.0.0.1", 0))
    sending = socket.create_connection(listener.getsockname())
    receiving, _ = listener.accept()

    def receive() -> None:
        done = 0
        while done < num_bytes:
            done += receiving.recv_into(target[done:])
        receiving.sendall(b"1")

    thread = threading.Thread(target=receive)
    began_s = time.perf_counter()
    thread.start()
    sending.sendall(source.data)
    sending.recv(1)
    elapsed_s = time.perf_counter() - began_s
    thread.join()
    for one in listener, sending, receiving:
        one.close()
    return elapsed_s


async def measure(
    directory: Path, dtype: str, name: str, lengths: Sequence[int], arguments: Any
) -> list[dict[str, Any]]:
    threads = arguments.num_threads
    sender = Process(directory, dtype, threads, backend="cpu", page_size=16)
    receiver = Process(directory, dtype, threads, **RECEIVERS[name])
    try:
        await sender.start()
        await receiver.start()
        return [
            await _measure_length(sender, receiver, name, dtype, length, rounds_of(arguments))
            for length in lengths
        ]
    finally:
        await sender.close()
        await receiver.close()


async def _measure_length(
    sender: Process, receiver: Process, name: str, dtype: str, num_tokens: int, num_rounds: int
) -> dict[str, Any]:
    tokens = np.random.default_rng(0).integers(3, sender.info.vocab_size, num_tokens).tolist()
    num_layers = sender.info.num_layers
    took: tuple[list[float], ...] = ([], [], [], [])
    computed, sent, copied, plain = took
    num_bytes = 0
    for number in range(num_rounds + 1):
        round_s = [await sender.compute(tokens)]
        ended = await transfer(sender, receiver, num_tokens)
        num_bytes = ended.num_bytes
        round_s += [ended.elapsed_s, copy_s(num_bytes), tcp_s(num_bytes)]
        if number:
            for values, value in zip(took, round_s, strict=True):
                values.append(value)
    return {
        "receiver": name,
        "dtype": dtype,
        "tokens": num_tokens,
        "MB": round(num_bytes / 1e6, 1),
        "GB/s": figure([num_bytes / one / 1e9 for one in sent]).rounded(),
        "GB/s memcpy": figure([num_bytes / one / 1e9 for one in copied]).rounded(),
        "GB/s plain TCP": figure([num_bytes / one / 1e9 for one in plain]).rounded(),
        "over plain TCP": ratio(plain, sent).rounded(),
        "ms per layer": figure(sent).scaled(1e3 / num_layers).rounded(),
        "ms per layer computed": figure(computed).scaled(1e3 / num_layers).rounded(),
        "transfer over compute": ratio(sent, computed).rounded(),
    }


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Of the first model and number type."""
    shown = [row for row in rows if all(row[key] == rows[0][key] for key in ("model", "dtype"))]
    lengths = list(dict.fromkeys(row["tokens"] for row in shown))
    series = {
        name: [
            Figure(**row["transfer over compute"]).scaled(100)
            for row in shown
            if row["receiver"] == name
        ]
        for name in RECEIVERS
    }
    draw_bars(
        out / "microserving-transfer.png",
        f"K and V of {shown[0]['model']} to another engine, {shown[0]['dtype']}",
        "transfer over compute, %",
        [f"{length} tokens" for length in lengths],
        series,
    )


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--lengths", nargs="+", type=int, help=f"tokens (default: {LENGTHS})")
    made.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    arguments = made.parse_args()
    lengths = arguments.lengths or (QUICK_LENGTHS if arguments.quick else LENGTHS)
    rows = []
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as scratch:
            directory = widened(model_directory(arguments.cache, model), Path(scratch))
            for dtype in arguments.dtypes:
                for name in RECEIVERS:
                    found = asyncio.run(measure(directory, dtype, name, lengths, arguments))
                    rows += [{"model": model, **row} for row in found]
    shown = [
        {key: value["median"] if isinstance(value, dict) else value for key, value in row.items()}
        for row in rows
    ]
    print_table("K and V between two engine processes", shown)
    emit("microserving/transfer", arguments.out, results=rows)
    draw(rows, arguments.out)


if __name__ == "__main__":
    main()
