"""From a compiled guest's ring to the commands of the programming interface.

Pure functions over one entry of the ring and the guest's memory, which they never trust: every
address and count is checked against the memory's present size before anything is read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from quire.core import commands as c
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.errors import InvalidArgument
from quire.core.ids import CommandId, EmbedId, EngineId, PageId, QueueId, ThreadId
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.abi import Op, RingCommand
from quire.programs.sdk.samplers import greedy, temperature

Id = TypeVar("Id")

_SAMPLER = struct.Struct("<IfIffI")
_DECODE = struct.Struct("<6I")
_FORWARD = struct.Struct("<4I")


class Memory:
    """A guest's memory as it was after its last call."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def take(self, address: int, length: int) -> memoryview:
        """Raises ``InvalidArgument`` for what is not all inside."""
        if address + length > len(self._view):
            raise InvalidArgument(
                f"the program named {length} bytes at {address}, its memory has {len(self._view)}"
            )
        return self._view[address : address + length]

    def text(self, address: int, length: int) -> str:
        try:
            return str(self.take(address, length), "utf-8")
        except UnicodeDecodeError as exc:
            raise InvalidArgument(f"the program named text that is not UTF-8: {exc}") from exc

    def u32s(self, address: int, count: int) -> list[int]:
        return self.take(address, 4 * count).cast("I").tolist() if count else []


class Words:
    """A command's payload, read from front to back; all of it must be used."""

    def __init__(self, memory: Memory, entry: RingCommand) -> None:
        self._memory = memory
        self._address = entry.address
        self._end = entry.address + entry.length

    def read(self, layout: struct.Struct) -> tuple[float, ...]:
        return layout.unpack(self._next(layout.size))

    def ids(self, kind: Callable[[int], Id], count: int) -> list[Id]:
        return [kind(number) for number in self._next(4 * count).cast("I")] if count else []

    def end(self) -> None:
        if self._address != self._end:
            raise InvalidArgument(
                f"the program's command has {self._end - self._address} bytes too many"
            )

    def _next(self, num_bytes: int) -> memoryview:
        if self._address + num_bytes > self._end:
            raise InvalidArgument(
                f"the program's command has {self._end - self._address} bytes left, "
                f"{num_bytes} are asked for: its length is wrong"
            )
        taken = self._memory.take(self._address, num_bytes)
        self._address += num_bytes
        return taken


def queue_call(
    entry: RingCommand, command: CommandId, memory: Memory, engines: Sequence[EngineId]
) -> m.GuestCalls | None:
    """What control is asked for; ``None`` if ``entry`` is about something else.

    ``engines``: of the models, by the index that guests use.
    """
    queue = QueueId(entry.a)
    match entry.op:
        case Op.OPEN_QUEUE:
            if entry.b >= len(engines):
                raise InvalidArgument(f"model {entry.b} of {len(engines)}: there are fewer")
            return m.OpenQueue(queue, engines[entry.b], ThreadId(entry.d), 0, _signed(entry.c))
        case Op.CLOSE_QUEUE:
            return m.CloseQueue(queue)
        case Op.RESET_QUEUE:
            return m.ResetQueue(queue)
        case Op.CANCEL:
            return m.CancelCommand(CommandId(entry.a))
    build = _COMMANDS.get(entry.op)
    return None if build is None else m.Issue(queue, [build(entry, command, memory)])


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


def _run(kind: Callable[[int], Id], entry: RingCommand) -> list[Id]:
    """``c`` ids from ``b`` on; a bound that no pool reaches keeps a count from filling memory."""
    if entry.c > _MAX_IDS:
        raise InvalidArgument(f"{entry.c} ids in one command, at most {_MAX_IDS} are allowed")
    return [kind(number) for number in range(entry.b, entry.b + entry.c)]


_MAX_IDS = 1 << 16


def _embed_text(entry: RingCommand, command: CommandId, memory: Memory) -> c.Command:
    count = entry.c
    embeds = _run(EmbedId, entry)
    words = memory.u32s(entry.address, 2 * count)
    return c.EmbedText(id=command, tokens=words[:count], positions=words[count:], embeds=embeds)


def _forward(entry: RingCommand, command: CommandId, memory: Memory) -> c.Command:
    words = Words(memory, entry)
    num_context, num_inputs, num_output, num_outputs = map(int, words.read(_FORWARD))
    forward = c.Forward(
        id=command,
        context=words.ids(PageId, num_context),
        inputs=words.ids(EmbedId, num_inputs),
        output=words.ids(PageId, num_output),
        outputs=words.ids(EmbedId, num_outputs),
    )
    words.end()
    return forward


def _sample(entry: RingCommand, command: CommandId, memory: Memory) -> c.Command:
    words = Words(memory, entry)
    sampler = _sampler(words)
    sample = c.Sample(
        id=command,
        sampler=sampler,
        embeds=words.ids(EmbedId, entry.b),
        positions=words.ids(int, entry.b),
    )
    words.end()
    return sample


def _decode(entry: RingCommand, command: CommandId, memory: Memory) -> c.Command:
    words = Words(memory, entry)
    position, max_tokens, *counts = map(int, words.read(_DECODE))
    sampler = _sampler(words)
    num_context, num_output, num_tokens, num_stops = counts
    decode = c.Decode(
        id=command,
        context=words.ids(PageId, num_context),
        output=words.ids(PageId, num_output),
        tokens=words.ids(int, num_tokens),
        position=position,
        sampler=sampler,
        stop=StopSpec(max_tokens, token_ids=tuple(words.ids(int, num_stops))),
    )
    words.end()
    return decode


def _sampler(words: Words) -> SamplerSpec:
    draw, heat, top_k, top_p, min_p, seed = words.read(_SAMPLER)
    if not draw:
        return greedy()
    return temperature(
        heat, top_p=top_p or 1.0, top_k=int(top_k), min_p=min_p, seed=int(seed) or None
    )


_COMMANDS: Mapping[int, Callable[[RingCommand, CommandId, Memory], c.Command]] = {
    Op.SYNCHRONIZE: lambda entry, command, memory: c.Synchronize(id=command),
    Op.ALLOC_PAGES: lambda entry, command, memory: c.AllocPages(
        id=command, pages=_run(PageId, entry)
    ),
    Op.FREE_PAGES: lambda entry, command, memory: c.DeallocPages(
        id=command, pages=_run(PageId, entry)
    ),
    Op.ALLOC_EMBEDS: lambda entry, command, memory: c.AllocEmbeds(
        id=command, embeds=_run(EmbedId, entry)
    ),
    Op.FREE_EMBEDS: lambda entry, command, memory: c.DeallocEmbeds(
        id=command, embeds=_run(EmbedId, entry)
    ),
    Op.EXPORT_PAGES: lambda entry, command, memory: c.ExportPages(
        id=command,
        pages=_run(PageId, entry),
        name=memory.text(entry.address, entry.length),
        ttl_s=float(entry.d) or None,
    ),
    Op.IMPORT_PAGES: lambda entry, command, memory: c.ImportPages(
        id=command, pages=_run(PageId, entry), name=memory.text(entry.address, entry.length)
    ),
    Op.EMBED_TEXT: _embed_text,
    Op.FORWARD: _forward,
    Op.NEXT_DIST: lambda entry, command, memory: c.GetNextDist(
        id=command, embeds=[EmbedId(entry.b)], top_k=entry.c
    ),
    Op.SAMPLE: _sample,
    Op.DECODE: _decode,
}

__all__ = ["Memory", "queue_call"]
