"""Measures the processor time of a call while 896 programs are alive (Pie, Fig. 10).

    python benchmarks/pie/calls.py [--alive 896] [--kinds native compiled python] [--quick]

Control layer: ``alloc`` + ``dealloc`` of a page (two calls), and ``send``, a thousand times by one
program while the others wait for messages. Inference layer: ``embed_txt`` + ``forward`` +
``get_next_dist`` by all programs at once, from issue through control and a fake engine until each
continues; a call is one of the three, and each program makes sixteen such steps in a row. Shown
separately is a single step with everything around it: a message to the program, its queue, page and
embed, their release, a message from it. The time is that of all threads of the node's process (the
client's reading included) and of the sandbox's processes; the fake engine's own process is shown
separately. The baseline is a native program, in turns of the same rounds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measurement import Figure, figure, ratio, take_turns
from benchmarks.options import plain_parser, rounds_of
from benchmarks.pie.programs_node import KINDS, TENANT, EnginePid, Program, programs, started_node
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.core.event_loops import new_event_loop
from quire.node import Node, ProgramHandle

CALLS = 1000
STEPS = 16
CALLS_PER_STEP = 3
_REST_S = 1.0
"""A pause in which work left from earlier launches and calls finishes without being counted."""
ORDERS = {"alloc + dealloc": f"call {CALLS}", "send": f"send {CALLS}"}
STEPS_OF_ALL = {"embed + forward + dist": STEPS, "a single step": 1}


@dataclass(frozen=True, slots=True)
class CallCost:
    """The cost of one kind of call: microseconds of processor time per call."""

    node_us: float
    sandbox_us: float
    engine_us: float
    """Of the fake engine: shown separately, not part of the call."""

    @property
    def all_us(self) -> float:
        return self.node_us + self.sandbox_us


class Alive:
    """Programs that wait, and their messages."""

    def __init__(self, node: Node, engine_pid: int, program: Program, number: int) -> None:
        self._node = node
        self._engine_pid = engine_pid
        self._handles = [node.launch(program, tenant=TENANT) for _ in range(number)]

    async def ready(self) -> None:
        await asyncio.gather(*(self._answer(handle, 0) for handle in self._handles))

    async def one(self, order: str) -> CallCost:
        return await self._measure(self._handles[:1], order, CALLS)

    async def all(self, steps: int) -> CallCost:
        calls = steps * CALLS_PER_STEP * len(self._handles)
        return await self._measure(self._handles, f"step {steps}", calls)

    async def _measure(self, handles: list[ProgramHandle], order: str, calls: int) -> CallCost:
        answers = [
            asyncio.create_task(self._answer(handle, handle.record().num_messages))
            for handle in handles
        ]
        await asyncio.sleep(_REST_S)
        began = self._clocks()
        for handle in handles:
            handle.signal("message", order)
        await asyncio.gather(*answers)
        spent = zip(self._clocks(), began, strict=True)
        return CallCost(*(1e6 * (after_s - before_s) / calls for after_s, before_s in spent))

    async def _answer(self, handle: ProgramHandle, after: int) -> None:
        """Read until the program says that it is done (or ready)."""
        attachment = handle.attach(after=after)
        async for message in attachment:
            if message.text in ("here", "done"):
                break
        attachment.close()

    def _clocks(self) -> tuple[float, float, float]:
        """Processor seconds of node, sandbox and engine."""
        sandbox_s = sum(map(processor_s, self._node.sandbox_pids()))
        return time.process_time(), sandbox_s, processor_s(self._engine_pid)

    async def end(self) -> None:
        for handle in self._handles:
            handle.signal("end_of_input")
        await asyncio.gather(*(handle.wait_ended() for handle in self._handles))


def processor_s(pid: int) -> float:
    """Return the processor time of all threads of a process in seconds, from the scheduler's
    counter in nanoseconds."""
    folders = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((one / "schedstat").read_text().split()[0]) for one in folders) / 1e9


async def measure_once(
    node: Node, engine_pid: int, program: Program, number: int
) -> dict[str, CallCost]:
    alive = Alive(node, engine_pid, program, number)
    await alive.ready()
    spent = {name: await alive.one(order) for name, order in ORDERS.items()}
    for name, steps in STEPS_OF_ALL.items():
        spent[name] = await alive.all(steps)
    await alive.end()
    return spent


def measure_now(
    runner: asyncio.Runner, node: Node, engine: EnginePid, program: Program, number: int
) -> dict[str, CallCost]:
    return runner.run(measure_once(node, engine.get(), program, number))


def row(
    kind: str, call: str, rounds: list[dict[str, CallCost]], native: list[dict[str, CallCost]]
) -> dict[str, Any]:
    spent = [one[call].all_us for one in rounds]
    return {
        "kind": kind,
        "call": call,
        "us": figure(spent).rounded(),
        "node_us": figure([one[call].node_us for one in rounds]).rounded(),
        "sandbox_us": figure([one[call].sandbox_us for one in rounds]).rounded(),
        "engine_us": figure([one[call].engine_us for one in rounds]).rounded(),
        "over_native": ratio(spent, [one[call].all_us for one in native]).rounded(),
    }


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--alive", type=int, default=896, help="programs (default: %(default)s)")
    made.add_argument("--kinds", nargs="+", choices=KINDS, default=["native", "compiled"])
    arguments = made.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        engine = EnginePid()
        started = started_node(engine)
        node = runner.run(started.__aenter__())
        try:
            found = runner.run(programs(node, arguments.kinds))
            results = take_turns(
                f"calls with {arguments.alive} alive",
                {
                    kind: partial(measure_now, runner, node, engine, program, arguments.alive)
                    for kind, program in found.items()
                },
                rounds_of(arguments),
            )
        finally:
            runner.run(started.__aexit__(None, None, None))
    native = results.get("native", next(iter(results.values())))
    calls = [*ORDERS, *STEPS_OF_ALL]
    rows = [row(kind, call, rounds, native) for kind, rounds in results.items() for call in calls]
    print_table(
        f"processor time of a call, {arguments.alive} programs alive",
        [{k: v["median"] if isinstance(v, dict) else v for k, v in one.items()} for one in rows],
    )
    draw_bars(
        arguments.out / "pie-calls.png",
        f"processor time of a call, {arguments.alive} programs alive",
        "µs (median, 95 % interval)",
        calls,
        {kind: [Figure(**one["us"]) for one in rows if one["kind"] == kind] for kind in results},
    )
    emit("pie/calls", arguments.out, alive=arguments.alive, results=rows)


if __name__ == "__main__":
    main()
