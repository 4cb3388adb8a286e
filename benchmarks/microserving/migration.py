"""Moves a context to another node, and compares the time with computing it again there
(Microserving, Fig. 12).

    python benchmarks/microserving/migration.py [--contexts 500 2500 4500] [--quick]

Two nodes on this machine, one thread each. One of them has a context in its prefix cache; a request
with this context and 500 new tokens goes to the other one. Migrated: the three calls bring K and V
of the context, and the new tokens are computed. Recomputed: everything is. Both are timed by the
client until the first token, in interleaved rounds, with prompts that no node has seen.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.checkpoints import SHAPES
from benchmarks.http.servers import Server
from benchmarks.measurement import Figure, figure, ratio, take_turns
from benchmarks.microserving.nodes import new_key, start_node
from benchmarks.microserving.widened import NUM_POSITIONS, widened
from benchmarks.options import parser, rounds_of
from benchmarks.peers.catalog import model_directory
from benchmarks.plots import draw_bars
from benchmarks.report import emit, print_table
from quire.client import Microserving

CONTEXTS, QUICK_CONTEXTS, NEW = (500, 2500, 4500), (500,), 500


class Nodes:
    """Two nodes: ``here`` has the contexts, ``there`` answers."""

    def __init__(self, here: Server, there: Server, key: str, vocab_size: int) -> None:
        self._here, self._there, self._key = here, there, key
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(0)

    def migrated_s(self, num_context: int) -> float:
        return asyncio.run(self._migrated_s(self._prompt(num_context), num_context))

    def recomputed_s(self, num_context: int) -> float:
        return asyncio.run(self._recomputed_s(self._prompt(num_context)))

    def _prompt(self, num_context: int) -> list[int]:
        tokens: list[int] = self._random.integers(3, self._vocab_size, num_context + NEW).tolist()
        return tokens

    async def _migrated_s(self, prompt: list[int], num_context: int) -> float:
        async with (
            Microserving(self._here.url, self._key) as here,
            Microserving(self._there.url, self._key) as there,
        ):
            await _first_token(here, prompt[:num_context])
            began_s = time.perf_counter()
            ready = await there.prep_recv(prompt, end=num_context)
            address = ready["kv_addr_info"]
            await here.remote_send(prompt, address, ready["matched_len"], end=num_context)
            await _first_token(there, prompt, begin=num_context, kv_addr_info=address)
            return time.perf_counter() - began_s

    async def _recomputed_s(self, prompt: list[int]) -> float:
        async with Microserving(self._there.url, self._key) as there:
            began_s = time.perf_counter()
            await _first_token(there, prompt)
            return time.perf_counter() - began_s


async def _first_token(node: Microserving, prompt: list[int], **fields: Any) -> None:
    async for _ in node.start_generate(prompt, max_tokens=1, ignore_eos=True, **fields):
        pass


def measure(nodes: Nodes, num_context: int, num_rounds: int) -> dict[str, Any]:
    contenders = {
        "migrated": lambda: nodes.migrated_s(num_context),
        "recomputed": lambda: nodes.recomputed_s(num_context),
    }
    rounds = take_turns(f"{num_context} tokens of context", contenders, num_rounds)
    return {
        "context": num_context,
        "new": NEW,
        "migrated_s": figure(rounds["migrated"]).rounded(),
        "recomputed_s": figure(rounds["recomputed"]).rounded(),
        "recomputed_over_migrated": ratio(rounds["recomputed"], rounds["migrated"]).rounded(),
    }


def of_model(arguments: Any, model: str, contexts: tuple[int, ...]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        key_file = new_key(Path(scratch))
        folder = Path(scratch) / "model"
        folder.mkdir()
        directory = widened(model_directory(arguments.cache, model), folder)
        here, there = (
            stack.enter_context(
                start_node(directory, key_file, arguments.dtype, arguments.num_threads or 1)
            )
            for _ in range(2)
        )
        nodes = Nodes(here, there, key_file.read_text(), SHAPES[model].vocab_size)
        rows = [measure(nodes, context, rounds_of(arguments)) for context in contexts]
    return [{"model": model, "dtype": arguments.dtype, **row} for row in rows]


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    models = list(dict.fromkeys(row["model"] for row in rows))
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    series = {
        model: [Figure(**row["recomputed_over_migrated"]) for row in rows if row["model"] == model]
        for model in models
    }
    draw_bars(
        out / "microserving-migration.png",
        f"A context moves to another node, with {NEW} new tokens",
        "first token: recomputed over migrated",
        [f"{context} tokens" for context in contexts],
        series,
    )


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--contexts", nargs="+", type=int, help=f"tokens (default: {CONTEXTS})")
    made.add_argument("--dtype", default="float32", help="default: %(default)s")
    arguments = made.parse_args()
    contexts = tuple(arguments.contexts or (QUICK_CONTEXTS if arguments.quick else CONTEXTS))
    if max(contexts) + NEW >= NUM_POSITIONS:
        made.error(f"the model has {NUM_POSITIONS} positions, {NEW} of them for new tokens")
    rows = [row for model in arguments.models for row in of_model(arguments, model, contexts)]
    print_table("A context on another node", rows)
    emit("microserving/migration", arguments.out, results=rows)
    draw(rows, arguments.out)


if __name__ == "__main__":
    main()
