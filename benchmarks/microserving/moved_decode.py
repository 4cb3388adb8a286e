"""Moves a running decode to another node, and measures how long its client waits, in decode steps.

    python benchmarks/microserving/moved_decode.py [--contexts 500 2500] [--quick]

Two nodes on this machine, one thread each, behind a router. A client reads the stream of one
completion; in the middle of it, the node that gives it is drained, and the other one goes on. The
pause is the longest time between two events from the drain on, by the client's own clock. The
baseline is the same stream that stays where it is, in interleaved rounds: its median time of a
token is the step by which pauses are divided, and its own longest time between two events is what
the machine and the batching of steps into messages do without any move.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx
import numpy as np

from benchmarks.checkpoints import SHAPES
from benchmarks.http.servers import Server
from benchmarks.measurement import figure, ratio, take_turns
from benchmarks.microserving.nodes import MODEL, new_key, start_node, start_router
from benchmarks.microserving.widened import NUM_POSITIONS, widened
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import model_directory
from benchmarks.report import emit, print_table

CONTEXTS, QUICK_CONTEXTS = (500, 2500), (500,)
NUM_TOKENS, MOVED_AT = 128, 48


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream. ``came_s``: when it came, by the client's clock."""

    came_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """One stream. ``step_s``: the median time of a token before it is moved; ``pause_s``: the
    longest time between two events behind that place; ``ahead_s``: how long the call took that
    moved it."""

    step_s: float
    pause_s: float
    ahead_s: float = 0.0


class Cluster:
    """A cluster: ``router`` over two nodes, with ``admin_key``."""

    def __init__(self, router: Server, admin_key: str, vocab_size: int) -> None:
        self._router = router
        self._admin = {"authorization": f"Bearer {admin_key}"}
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(0)

    def run(self, num_context: int, *, moves: bool) -> Run:
        prompt = self._random.integers(3, self._vocab_size, num_context).tolist()
        return asyncio.run(self._run(prompt, moves=moves))

    async def _run(self, prompt: list[int], *, moves: bool) -> Run:
        body = {
            "model": MODEL, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0,
            "ignore_eos": True, "stream": True, "return_token_ids": True,
        }  # fmt: skip
        moving: asyncio.Task[float] | None = None
        events: list[Event] = []
        async with httpx.AsyncClient(base_url=self._router.url, timeout=600) as http:
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                assert answer.status_code == 200, await answer.aread()
                node = answer.headers["x-quire-node"]
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    came_s = time.perf_counter()
                    choice = json.loads(line[6:])["choices"][0]
                    events.append(Event(came_s, len(choice["token_ids"])))
                    num_tokens = sum(one.num_tokens for one in events)
                    if moves and moving is None and num_tokens >= MOVED_AT:
                        moving = asyncio.create_task(self._move(node))
            ahead_s = 0.0
            if moving is not None:
                ahead_s = await moving
                path = f"/router/nodes/{node}/drain"
                (await http.delete(path, headers=self._admin)).raise_for_status()
        assert sum(one.num_tokens for one in events) == NUM_TOKENS
        return _run_of(events, ahead_s)

    async def _move(self, node: str) -> float:
        """How long it took."""
        began_s = time.perf_counter()
        async with httpx.AsyncClient(base_url=self._router.url, timeout=600) as http:
            moved = await http.post(f"/router/nodes/{node}/drain", headers=self._admin)
        assert moved.json()["num_moved"] == 1, moved.text
        return time.perf_counter() - began_s


def _run_of(events: list[Event], ahead_s: float) -> Run:
    gaps = [(b.came_s - a.came_s, b.num_tokens) for a, b in itertools.pairwise(events)]
    place, told = 0, events[0].num_tokens
    while told < MOVED_AT:
        told += gaps[place][1]
        place += 1
    # the first events bring the prompt's end; a step is what the others take
    before = [gap / max(num, 1) for gap, num in gaps[1:place]]
    return Run(statistics.median(before), max(gap for gap, _ in gaps[place:]), ahead_s)


def measure(cluster: Cluster, num_context: int, num_rounds: int) -> dict[str, Any]:
    contenders = {
        "moved": lambda: cluster.run(num_context, moves=True),
        "stays": lambda: cluster.run(num_context, moves=False),
    }
    rounds = take_turns(f"{num_context} tokens of context", contenders, num_rounds)
    steps = [one.step_s for one in rounds["stays"]]
    return {
        "context": num_context,
        "step_ms": figure(steps).scaled(1e3).rounded(),
        "pause_ms": figure([one.pause_s for one in rounds["moved"]]).scaled(1e3).rounded(),
        "pause_steps": ratio([one.pause_s for one in rounds["moved"]], steps).rounded(),
        "longest_gap_of_one_that_stays_steps": ratio(
            [one.pause_s for one in rounds["stays"]], steps
        ).rounded(),
        "sent_ahead_ms": figure([one.ahead_s for one in rounds["moved"]]).scaled(1e3).rounded(),
    }


def of_model(arguments: Any, model: str, contexts: tuple[int, ...]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        key_file = new_key(Path(scratch))
        folder = Path(scratch) / "model"
        folder.mkdir()
        directory = widened(model_directory(arguments.cache, model), folder)
        nodes = [
            stack.enter_context(
                start_node(directory, key_file, arguments.dtype, arguments.num_threads or 1)
            )
            for _ in range(2)
        ]
        # the key of the cluster is as good as any for the router's own routes
        options = ("--cluster-key-file", str(key_file), "--admin-key-file", str(key_file))
        router = stack.enter_context(start_router(nodes, "least_used", "--resume", *options))
        cluster = Cluster(router, key_file.read_text(), SHAPES[model].vocab_size)
        rows = [measure(cluster, context, rounds_of(arguments)) for context in contexts]
    return [{"model": model, "dtype": arguments.dtype, **row} for row in rows]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--contexts", nargs="+", type=int, help=f"tokens (default: {CONTEXTS})")
    made.add_argument("--dtype", default="float32", help="default: %(default)s")
    arguments = made.parse_args()
    contexts = tuple(arguments.contexts or (QUICK_CONTEXTS if arguments.quick else CONTEXTS))
    if max(contexts) + NUM_TOKENS >= NUM_POSITIONS:
        made.error(f"the model has {NUM_POSITIONS} positions, {NUM_TOKENS} of them for the answer")
    rows = [row for model in arguments.models for row in of_model(arguments, model, contexts)]
    print_table("A running decode that moves", rows)
    emit("microserving/moved_decode", arguments.out, results=rows)


if __name__ == "__main__":
    main()
