"""Moves blocks between device and host together and one at a time (Autellix, Fig. 19).

    python benchmarks/autellix/bulk.py [--quick] [--blocks 1 16 128]

The caches of the engine's backends: the kernel's and PyTorch's on the processor, and on a CUDA
device where there is one. A message's swaps are one operation in each direction; *one at a time* is
an operation for each block, the baseline. Blocks are of 16 tokens of eight layers with eight heads
of 128 in bf16: 512 KiB. Every round moves the same blocks out and back in both ways, in turn.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from benchmarks.measurement import figure, ratio, take_turns
from benchmarks.options import plain_parser, rounds_of
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.core.batch import I32
from quire.engine.cpu.library import load_kernel
from quire.engine.cpu.native_pool import NativeKVPool
from quire.engine.cpu.team import Team
from quire.engine.cuda.kv_pool import CudaKVPool
from quire.engine.kv_cache.pool import BlockShape, KVPool
from quire.engine.kv_cache.torch_pool import TorchKVPool
from quire.engine.layers.key_turn import KeyTurn

HEAD_DIM = 128
SHAPE = BlockShape(8, 8, HEAD_DIM, 16, torch.bfloat16)
BLOCKS, QUICK_BLOCKS = (1, 16, 128, 512), (1, 16, 64)


def pools(num_blocks: int) -> dict[str, KVPool]:
    """Return the pool of each backend that this machine has, by name."""
    turn = KeyTurn((), (), HEAD_DIM)  # which is for other operations
    sizes = {"num_blocks": num_blocks, "num_host_blocks": num_blocks}
    made: dict[str, KVPool] = {
        "kernel": NativeKVPool(
            Team(load_kernel(), 1), SHAPE, HEAD_DIM, turn, num_scratch=16, num_axes=1, **sizes
        ),
        "torch": TorchKVPool(
            SHAPE, num_scratch=16, num_axes=1, device=torch.device("cpu"), turn=turn, **sizes
        ),
    }
    if torch.cuda.is_available():
        made["cuda"] = CudaKVPool(
            SHAPE, num_scratch=16, num_axes=1, device=torch.device("cuda"), turn=turn, **sizes
        )
    return made


def move(pool: KVPool, blocks: list[I32]) -> float:
    """Return the seconds for an operation out and one back for each of ``blocks``."""
    began_s = time.perf_counter()
    for some in blocks:
        pool.swap_out(some, some)
    for some in blocks:
        pool.swap_in(some, some)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began_s


def measure(name: str, pool: KVPool, num_blocks: int, num_rounds: int) -> dict[str, Any]:
    scattered = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
    ways: dict[str, Callable[[], float]] = {
        "together": partial(move, pool, [scattered]),
        "one at a time": partial(move, pool, list(scattered[:, None])),
    }
    found = take_turns(f"{name}, {num_blocks} blocks", ways, num_rounds)
    together_s, single_s = found["together"], found["one at a time"]
    num_bytes = 2 * num_blocks * SHAPE.bytes_per_block
    return {
        "cache": name,
        "blocks": num_blocks,
        "operations": 2,
        "operations one at a time": 2 * num_blocks,
        "ms": figure(together_s).scaled(1e3).rounded(),
        "ms one at a time": figure(single_s).scaled(1e3).rounded(),
        "over": ratio(single_s, together_s).rounded(3),
        "GB/s": round(num_bytes / figure(together_s).median / 1e9, 2),
    }


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--blocks", nargs="+", type=int, default=None)
    arguments = made.parse_args()
    numbers = arguments.blocks or (QUICK_BLOCKS if arguments.quick else BLOCKS)
    rows = []
    for number in numbers:
        for name, pool in pools(number).items():
            rows.append(measure(name, pool, number, rounds_of(arguments)))
    print_table(
        "blocks moved out and back",
        [{k: v["median"] if isinstance(v, dict) else v for k, v in row.items()} for row in rows],
    )
    names = list(dict.fromkeys(row["cache"] for row in rows))
    draw_bars(
        arguments.out / "autellix-bulk.png",
        "moved together, over one at a time",
        "times faster (median, interval)",
        [f"{number} blocks" for number in numbers],
        {
            name: [figure([row["over"]["median"]]) for row in rows if row["cache"] == name]
            for name in names
        },
    )
    emit("autellix/bulk", arguments.out, bytes_per_block=SHAPE.bytes_per_block, rows=rows)


if __name__ == "__main__":
    main()
