"""Sends K and V from one engine process to another: bytes per second, and the time over that of
computing them (Microserving, Table 3).

    python benchmarks/microserving/transfer.py [--models small] [--lengths 1000 3000 5000] [--quick]

One process with the CPU kernel's cache computes a prompt, in messages of 512 tokens, and then sends
its K and V to a second process, through the memory that engines of one machine share; the second
one has the same cache, or PyTorch's in pages of another size. Where NIXL is installed, it also
carries them instead of the shared memory. Limits, in the same rounds and with
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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.measurement import Figure, figure, ratio
from benchmarks.microserving.engine_process import EngineProcess, i32
from benchmarks.microserving.widened import widened
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import model_directory
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.core.batch import CloseReceives, OpenReceive, SendSlots
from quire.core.exchange import ReceiveEnded, SendEnded, SendTarget

LENGTHS, QUICK_LENGTHS = (1000, 3000, 5000), (1000,)
KEY = bytes(16)
RECEIVERS: dict[str, dict[str, Any]] = {
    "equal tiles": {"backend": "cpu", "page_size": 16},
    "plain pages of 64": {"backend": "torch", "page_size": 64},
}
if find_spec("nixl_cu12") is not None:
    RECEIVERS["equal tiles, NIXL"] = {"backend": "cpu", "page_size": 16, "kv_transport": "nixl"}


async def transfer(sender: EngineProcess, receiver: EngineProcess, num_tokens: int) -> SendEnded:
    slots = i32(range(num_tokens))
    target = SendTarget(address=receiver.info.data_address, lease=1, key=KEY, first=0)
    await receiver.run(operations=[OpenReceive(lease=1, key=KEY, slots=slots)])
    await sender.run(operations=[SendSlots(send=1, slots=slots, target=target)])
    received, sent = await receiver.report(), await sender.report()
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
    """Return the seconds until the receiver has confirmed all bytes."""
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
    transport = RECEIVERS[name].get("kv_transport", "tcp")
    cache = {"backend": "cpu", "page_size": 16, "kv_transport": transport}
    sender = EngineProcess(directory, dtype, threads, **cache)
    receiver = EngineProcess(directory, dtype, threads, **RECEIVERS[name])
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
    sender: EngineProcess,
    receiver: EngineProcess,
    name: str,
    dtype: str,
    num_tokens: int,
    num_rounds: int,
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
    """Draw the rows of the first model and number type."""
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
    print_table("K and V between two engine processes", rows)
    emit("microserving/transfer", arguments.out, results=rows)
    draw(rows, arguments.out)


if __name__ == "__main__":
    main()
