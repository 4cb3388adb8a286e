"""Names the systems that stream tokens over HTTP, and how to ask each of them for an answer.

``quire`` answers completions with ``decode``; ``quire-fine`` runs a program for each request that
takes every step itself and sends its client a message per token (``step_program.py``);
``quire-torch`` is a server without the native kernel. ``vllm-float32`` is vLLM's server with
weights and cache in float32.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.http.servers import Server, start_quire, start_vllm
from benchmarks.http.stream_client import Streamed, completion_body, stream
from benchmarks.peers.catalog import MAX_SEQUENCES, PEERS, VLLM_TYPES, default_peers

STEP_PROGRAM = Path(__file__).with_name("step_program.py")


async def complete(server: Server, model: str, prompt: Sequence[int], num_tokens: int) -> Streamed:
    """Ask an OpenAI-compatible server for a streamed completion."""
    return await stream(server.completions_url, completion_body(model, prompt, num_tokens))


async def run_steps(server: Server, model: str, prompt: Sequence[int], num_tokens: int) -> Streamed:
    """Ask the same of a program that takes every step; its launch event is not counted."""
    source = STEP_PROGRAM.read_text(encoding="utf-8")
    args = [json.dumps(list(prompt)), str(num_tokens)]
    body = json.dumps({"source": source, "args": args, "stream": True}).encode()
    answer = await stream(f"{server.url}/v1/programs", body)
    del answer.event_s[0]
    return answer


class Start(Protocol):
    """Starts a server with the model, which runs at least ``max_sequences`` requests at once."""

    def __call__(self, model: str, cache: Path, max_sequences: int = MAX_SEQUENCES) -> Server: ...


@dataclass(frozen=True, slots=True)
class System:
    """``start`` returns a server with the model; ``ask`` an answer of exactly ``num_tokens``
    tokens."""

    start: Start
    ask: Callable[[Server, str, Sequence[int], int], Coroutine[Any, Any, Streamed]] = complete

    async def ask_all(
        self, server: Server, model: str, prompts: Sequence[Sequence[int]], num_tokens: int
    ) -> list[Streamed]:
        """Ask for all prompts concurrently."""
        asked = (self.ask(server, model, prompt, num_tokens) for prompt in prompts)
        return list(await asyncio.gather(*asked))


def _start(
    model: str, cache: Path, max_sequences: int = MAX_SEQUENCES, *, backend: str = "auto"
) -> Server:
    """Start Quire. ``max_sequences`` is passed on only above 256, which is its default."""
    more = ("--max-sequences", str(max_sequences)) if max_sequences > 256 else ()
    return start_quire(model, cache, "--allow-upload", "--backend", backend, *more)


SYSTEMS = {
    "quire": System(_start),
    "quire-fine": System(_start, run_steps),
    "quire-torch": System(partial(_start, backend="torch")),
    **{name: System(partial(start_vllm, dtype=dtype)) for name, dtype in VLLM_TYPES.items()},
}


def default_systems() -> list[str]:
    """Return the systems to measure on this machine; see ``catalog.default_peers``."""
    return [name for name in SYSTEMS if name not in PEERS or name in default_peers()]
