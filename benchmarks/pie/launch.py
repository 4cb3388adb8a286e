"""Measures the time from launch to first message, of 1 to 896 programs at once (Pie, Fig. 9).

    python benchmarks/pie/launch.py [--numbers 1 64 896] [--kinds native compiled python] [--quick]

All programs of a round are launched in one turn of the edge's loop. A program's time runs from the
start of the round (``common``) or from its own launch (``own``) until an attached client has its
first message. Programs are uploaded and compiled before, like Pie's warm launches; no engine is
involved. The baseline is the native program, in the same rounds.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measurement import Figure, figure, ratio, take_turns
from benchmarks.options import plain_parser, rounds_of
from benchmarks.pie.programs_node import KINDS, TENANT, Program, programs, started_node
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.core.event_loops import new_event_loop
from quire.node import Node, ProgramHandle

NUMBERS = (1, 8, 64, 256, 896)
_REPEATS = {1: 15, 8: 5}
"""Launches of few programs are repeated within a round."""
_REST_S = 0.4
"""Pause between two launches, in which warm instances are created again."""


@dataclass(frozen=True, slots=True)
class Launched:
    """One round, in seconds. ``per_s``: programs divided by the time of the last one."""

    common_p50: float
    common_max: float
    own_p50: float
    per_s: float


async def launch(node: Node, program: Program, number: int) -> Launched:
    gc.collect()
    began_s = time.perf_counter()
    handles: list[ProgramHandle] = []
    launched_s: list[float] = []
    for _ in range(number):
        launched_s.append(time.perf_counter())
        handles.append(node.launch(program, tenant=TENANT))
    arrived_s = await asyncio.gather(*map(first_message, handles))
    for handle in handles:
        handle.signal("end_of_input")
    await asyncio.gather(*(handle.wait_ended() for handle in handles))
    common = sorted(at - began_s for at in arrived_s)
    own = sorted(at - since for at, since in zip(arrived_s, launched_s, strict=True))
    return Launched(common[number // 2], common[-1], own[number // 2], number / common[-1])


async def first_message(handle: ProgramHandle) -> float:
    attachment = handle.attach()
    message = await anext(attachment)
    at_s = time.perf_counter()
    attachment.close()
    assert message.text == "here", message
    return at_s


async def launch_some(node: Node, program: Program, number: int) -> Launched:
    rounds = []
    for _ in range(_REPEATS.get(number, 1)):
        rounds.append(await launch(node, program, number))
        await asyncio.sleep(_REST_S)
    return sorted(rounds, key=lambda one: one.common_p50)[len(rounds) // 2]


def launch_now(runner: asyncio.Runner, node: Node, program: Program, number: int) -> Launched:
    return runner.run(launch_some(node, program, number))


def row(kind: str, number: int, rounds: list[Launched], native: list[Launched]) -> dict[str, Any]:
    return {
        "kind": kind,
        "programs": number,
        "p50_ms": figure([1000 * one.common_p50 for one in rounds]).rounded(),
        "last_ms": figure([1000 * one.common_max for one in rounds]).rounded(),
        "own_p50_ms": figure([1000 * one.own_p50 for one in rounds]).rounded(),
        "per_s": figure([one.per_s for one in rounds]).rounded(),
        "p50_over_native": ratio(
            [one.common_p50 for one in rounds], [one.common_p50 for one in native]
        ).rounded(),
    }


def measure(
    runner: asyncio.Runner, node: Node, made: dict[str, Program], numbers: list[int], rounds: int
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in numbers:
        results = take_turns(
            f"{number} at once",
            {
                kind: partial(
                    lambda program, n: runner.run(launch_some(node, program, n)), one, number
                )
                for kind, one in made.items()
            },
            rounds,
        )
        baseline = results.get("native", next(iter(results.values())))
        rows += [row(kind, number, values, baseline) for kind, values in results.items()]
    return rows


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--numbers", nargs="+", type=int, default=list(NUMBERS))
    made.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = made.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        started = started_node()
        node = runner.run(started.__aenter__())
        try:
            found = runner.run(programs(node, arguments.kinds))
            rows = measure(runner, node, found, arguments.numbers, rounds_of(arguments))
        finally:
            runner.run(started.__aexit__(None, None, None))
    print_table(
        "launch to first message",
        [{k: v["median"] if isinstance(v, dict) else v for k, v in one.items()} for one in rows],
    )
    draw_bars(
        arguments.out / "pie-launch.png",
        "launch to first message, half of the programs",
        "ms (median, 95 % interval)",
        [str(number) for number in arguments.numbers],
        {kind: [Figure(**one["p50_ms"]) for one in rows if one["kind"] == kind] for kind in found},
        logarithmic=True,
    )
    emit("pie/launch", arguments.out, results=rows)


if __name__ == "__main__":
    main()
