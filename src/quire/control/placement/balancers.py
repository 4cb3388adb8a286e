"""Balancers choose which of a model's engines serves a queue that any of them may serve.

Owns the five choices. What binds a queue to one engine (pages, exports, other queues of its
program) is decided in ``deployments`` before a balancer is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.state import EngineState
from quire.control.memory.content import PromptKeys, packed_page_key
from quire.control.memory.packed_tokens import TOKEN_BYTES
from quire.control.programs.program import CommandQueue, Entry
from quire.core.errors import ConfigError
from quire.core.ids import EngineId

SHORT_PROMPT_TOKENS = 2048
"""Up to this length most of a prompt is a system prompt that every engine has (Autellix 4.3)."""

TOKENS_PER_CALL = 256
"""The prompt length whose computation delays a call as much as one more call beside it does."""

SPARE_CALLS = 16
"""How many spare calls one other call counts for, when an engine is chosen for a spare call."""


@dataclass(slots=True)
class PlacementRequest:
    """A queue to be placed. ``prompt``: the tokens that its first command runs from position 0 and
    may find in a prefix index; empty if there are none. ``adapter``: the name of the adapter to run
    them with. ``keys``: keys of the prompt, if a balancer has computed any."""

    queue: CommandQueue
    prompt: list[int] = field(default_factory=list)
    adapter: str | None = None
    keys: PromptKeys | None = None


class Balancer(Protocol):
    """Chooses among engines that are up, at least two. May keep state, but sees no clock: the same
    queues in the same order are placed alike in a replay."""

    def choose(self, placing: PlacementRequest, engines: Sequence[EngineState]) -> EngineState: ...


class InTurn:
    """``round_robin``: one engine after the other."""

    def __init__(self) -> None:
        self._num_placed = 0

    def choose(self, placing: PlacementRequest, engines: Sequence[EngineState]) -> EngineState:
        self._num_placed += 1
        return engines[(self._num_placed - 1) % len(engines)]


class LeastUsed:
    """``least_used``: the engine with the fewest calls, the first of equals."""

    def choose(self, placing: PlacementRequest, engines: Sequence[EngineState]) -> EngineState:
        return least_used(engines, for_spare=placing.queue.is_spare)


class ShortOrHome:
    """``autellix``: short prompts go to the least used engine; long ones to the engine of their
    program, which is the one that was least used when the first of them came (algorithm 2)."""

    def choose(self, placing: PlacementRequest, engines: Sequence[EngineState]) -> EngineState:
        if len(placing.prompt) <= SHORT_PROMPT_TOKENS:
            return least_used(engines)
        queue = placing.queue
        homes = queue.program.home_engines
        home = homes.get(queue.model)
        for engine in engines:
            if engine.id == home:
                return engine
        chosen = least_used(engines)
        homes[queue.model] = chosen.id
        return chosen


class OccupiedMemory:
    """``occupied_kv``: the engine whose KV memory is least occupied once the prompt is there (Ayo,
    section 6). Pages that programs hold count, and the prompts of calls that wait. Cached pages
    without a holder are free, and cached tokens of the prompt occupy nothing more."""

    def choose(self, placing: PlacementRequest, engines: Sequence[EngineState]) -> EngineState:
        cached = cached_tokens(placing, engines)
        num_tokens = len(placing.prompt)

        def share(engine: EngineState) -> float:
            occupied = occupied_tokens(engine) + num_tokens - cached.get(engine.id, 0)
            return occupied / (engine.memory.device.size * engine.page_size)

        return min(engines, key=share)


class CachedAgainstLoad:
    """``quire``: the engine where prompt and neighbours cost least. Tokens of the prompt that its
    prefix index has need not be computed there; each call that it already has counts like
    ``TOKENS_PER_CALL`` tokens. So leaving an engine costs the lost prefill, and staying costs the
    queue. Of equal engines, the one is chosen where the queue delays its own program least
    (``deepest_beside``)."""

    def choose(self, placing: PlacementRequest, engines: Sequence[EngineState]) -> EngineState:
        cached = cached_tokens(placing, engines)
        is_spare = placing.queue.is_spare
        costs = [
            num_calls(one, for_spare=is_spare) * TOKENS_PER_CALL - cached.get(one.id, 0)
            for one in engines
        ]
        least = min(costs)
        equals = [one for one, cost in zip(engines, costs, strict=True) if cost == least]
        if len(equals) == 1:
            return equals[0]
        return min(equals, key=lambda one: deepest_beside(placing.queue, one))


BALANCERS: Mapping[str, Callable[[], Balancer]] = MappingProxyType(
    {
        "round_robin": InTurn,
        "least_used": LeastUsed,
        "autellix": ShortOrHome,
        "occupied_kv": OccupiedMemory,
        "quire": CachedAgainstLoad,
    }
)


def create_balancer(name: str) -> Balancer:
    """A new balancer.

    Raises:
        ConfigError: none has this name.
    """
    if name not in BALANCERS:
        raise ConfigError(
            f"no balancer is called {name!r}: choose from {', '.join(sorted(BALANCERS))}"
        )
    return BALANCERS[name]()


def num_calls(engine: EngineState, *, for_spare: bool = False) -> int:
    """The number of queues that wait for the engine, and of commands that it has begun or that are
    sent. Those of spare queues give way at once, so they count only ``for_spare``; then any other
    call counts as ``SPARE_CALLS``, because no spare call runs beside it."""
    running, unfinished = engine.running, engine.unfinished
    sent = _sent(engine)
    num_all = len(engine.ready) + len(running) + len(unfinished) + len(sent)
    num_spare = engine.ready.num_spare
    if engine.ready.has_had_spare:  # to look at each command takes long on many engines
        num_spare += _num_spare(running) + _num_spare(unfinished) + _num_spare(sent)
    num_others = num_all - num_spare
    return num_spare + SPARE_CALLS * num_others if for_spare else num_others


def _num_spare(entries: Iterable[Entry]) -> int:
    return sum([entry.queue.is_spare for entry in entries])


def _sent(engine: EngineState) -> Collection[Entry]:
    """Commands in the engine's messages in flight that are neither running nor unfinished."""
    if not any(message.parts for message in engine.in_flight):
        return ()
    running, unfinished = engine.running, engine.unfinished
    sent = {part.entry for message in engine.in_flight for part in message.parts}
    return [entry for entry in sent if entry not in running and entry not in unfinished]


def occupied_tokens(engine: EngineState) -> int:
    """The number of slots of the pages that programs hold on the device, and of prompt tokens that
    are not computed yet, of calls that wait and of those that have begun."""
    num_left = 0
    for entry in engine.unfinished:
        run = entry.run
        if isinstance(run, DecodeRun):
            num_left += run.num_to_run
    memory = engine.memory
    num_held = (memory.device.num_taken - memory.index.num_cached) * engine.page_size
    return num_held + num_left + engine.ready.num_prompt_tokens


def deepest_beside(queue: CommandQueue, engine: EngineState) -> int:
    """The greatest depth of the commands that the program of ``queue`` has on ``engine`` and needs
    before what ``queue`` serves; 0 if none is deeper. A prefill in the same message would delay
    them, and the program with them."""
    others = (one for one in queue.program.queues.values() if one.placed_on == engine.id)
    depths = (entry.place.depth for one in others if one is not queue for entry in one.entries)
    return max((depth for depth in depths if depth > queue.place.depth), default=0)


def least_used(engines: Sequence[EngineState], *, for_spare: bool = False) -> EngineState:
    return min(engines, key=lambda one: num_calls(one, for_spare=for_spare))


def cached_tokens(placing: PlacementRequest, engines: Sequence[EngineState]) -> dict[EngineId, int]:
    """The number of prompt tokens that each engine's prefix index has, for engines that have any.
    Keys are computed once, and only as far as any engine has them; engines of one model have the
    same keys. They are kept in ``placing``, because the chosen engine looks them up again."""
    if not placing.prompt:
        return {}
    first = engines[0]
    adapter = first.adapter_index(placing.adapter)
    root = first.memory.index.root_key(placing.queue.program.tenant, adapter)
    size = first.page_size
    num_pages = len(placing.prompt) // size
    prompt = placing.queue.pack(placing.prompt) if num_pages else None
    if prompt is None:
        return {}
    known = placing.keys = PromptKeys(prompt.packed, root)
    known.keys.append(packed_page_key(root, prompt.packed[: size * TOKEN_BYTES]))
    holders = first.memory.heads.holders(known.keys[0])
    if not holders:
        return {}
    return {
        engine.id: engine.memory.index.num_found(known, num_pages) * size
        for engine in engines
        if engine.id in holders
    }
