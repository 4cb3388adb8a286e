"""Converts entries of a compiled guest's ring to commands of the programming interface.

Pure functions of one ring entry and its payload in the guest's memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from quire.core import commands as c
from quire.core.calls import (
    AskService,
    Cancel,
    CloseQueue,
    CreateQueue,
    QueueCall,
    ResetQueue,
    SetQueuePriority,
)
from quire.core.decoding import GrammarSpec, SamplerSpec, StopSpec
from quire.core.errors import InvalidArgument
from quire.core.ids import CommandId, EmbedId, ModelId, PageId, QueueId, ThreadId, TokenSlotId
from quire.programs.sandbox.module.abi import GRAMMARS, GuestOp, RingCommand
from quire.programs.sandbox.module.memory import GuestMemory, Words, bits_of, ids_of
from quire.programs.sdk.samplers import greedy, temperature

Id = TypeVar("Id")

_SAMPLER = struct.Struct("<IfIffI")
_DECODE = struct.Struct("<6I")
_FORWARD = struct.Struct("<4I")
_FORWARD_WITH = struct.Struct("<6I")
_DECODE_WITH = struct.Struct("<4I")
_COPY = struct.Struct("<5I")
_EXPORT_TEXT = struct.Struct("<2I")

_MAX_IDS = 1 << 16
"""The most ids of one command: more than any pool has; a wrong count cannot fill memory."""


def queue_call(entry: RingCommand, models: Sequence[ModelId]) -> QueueCall | None:
    """The call to control about a queue itself; ``None`` if ``entry`` is another operation.

    ``models``: the models for new queues, by the index that guests use.
    """
    queue = QueueId(entry.a)
    match entry.op:
        case GuestOp.CREATE_QUEUE:
            if entry.b >= len(models):
                raise InvalidArgument(f"model {entry.b}: give 0 to {len(models) - 1}")
            return CreateQueue(queue, models[entry.b], ThreadId(entry.d), 0, _signed(entry.c))
        case GuestOp.CLOSE_QUEUE:
            return CloseQueue(queue)
        case GuestOp.RESET_QUEUE:
            return ResetQueue(queue)
        case GuestOp.CANCEL:
            return Cancel(CommandId(entry.a))
        case GuestOp.SET_QUEUE_PRIORITY:
            return SetQueuePriority(queue, _signed(entry.c))
    return None


def service_call(entry: RingCommand, number: int, memory: GuestMemory) -> AskService:
    """A call of a service of the node: the first ``a`` bytes are its name, the rest its arguments
    as JSON.

    Raises:
        InvalidArgument: the payload is outside of the memory, or not a JSON object.
    """
    if entry.a > entry.length:
        raise InvalidArgument(
            f"ask_service: a name of {entry.a} bytes in a payload of {entry.length}"
        )
    name = memory.text(entry.address, entry.a)
    given = memory.take(entry.address + entry.a, entry.length - entry.a)
    try:
        arguments = msgspec.json.decode(given, type=dict[str, Any]) if given else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidArgument(
            f"ask_service {name!r}: its arguments are not a JSON object: {exc}"
        ) from exc
    return AskService(number, name, arguments)


def with_adapter(command: c.Command, adapter: str) -> c.Command:
    """``command`` on a queue of a model with ``adapter``; a command that names an adapter keeps
    it."""
    if isinstance(command, c.Forward | c.Decode | c.ImportPrefix) and command.adapter is None:
        return msgspec.structs.replace(command, adapter=adapter)
    return command


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


def _run(kind: Callable[[int], Id], entry: RingCommand) -> list[Id]:
    """The ``c`` ids from ``b`` on."""
    if entry.c > _MAX_IDS:
        raise InvalidArgument(f"{entry.c} ids in one command, at most {_MAX_IDS} are allowed")
    return ids_of(kind, range(entry.b, entry.b + entry.c))


def _embed_text(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
    count = entry.c
    embeds = _run(EmbedId, entry)
    words = memory.u32s(entry.address, 2 * count)
    return c.EmbedText(id=command, tokens=words[:count], positions=words[count:], embeds=embeds)


def _forward(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
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


def _forward_with(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
    words = Words(memory, entry)
    num_context, num_inputs, num_output, num_outputs, row_bits, num_bytes = map(
        int, words.read(_FORWARD_WITH)
    )
    forward = c.Forward(
        id=command,
        context=words.ids(PageId, num_context),
        inputs=words.ids(EmbedId, num_inputs),
        output=words.ids(PageId, num_output),
        outputs=words.ids(EmbedId, num_outputs),
        adapter=words.text(num_bytes) or None,
        mask=words.bits(num_inputs, row_bits) if row_bits else None,
    )
    words.end()
    return forward


def _embed_slots(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
    count = entry.c
    embeds = _run(EmbedId, entry)
    words = memory.u32s(entry.address, 2 * count)
    slots = ids_of(TokenSlotId, words[:count])
    return c.EmbedText(
        id=command, tokens=[0] * count, positions=words[count:], embeds=embeds, token_slots=slots
    )


def _export_pages(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
    return c.ExportPages(
        id=command,
        pages=_run(PageId, entry),
        name=memory.text(entry.address, entry.length),
        ttl_s=float(entry.d) or None,
    )


def _export_text(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
    words = Words(memory, entry)
    num_tokens, name_bytes = map(int, words.read(_EXPORT_TEXT))
    export = c.ExportPages(
        id=command,
        pages=_run(PageId, entry),
        tokens=words.ids(int, num_tokens),
        name=words.text(name_bytes),
        ttl_s=float(entry.d) or None,
    )
    words.end()
    return export


def _import_pages(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
    return c.ImportPages(
        id=command, pages=_run(PageId, entry), name=memory.text(entry.address, entry.length)
    )


def _copy_page(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
    words = Words(memory, entry)
    source, source_offset, target, target_offset, num_slots = map(int, words.read(_COPY))
    words.end()
    return c.CopyPage(
        id=command,
        source=PageId(source),
        source_offset=source_offset,
        target=PageId(target),
        target_offset=target_offset,
        num_slots=num_slots,
    )


def _mask_page(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
    packed = memory.take(entry.address, -(-entry.c // 8))
    return c.MaskPage(id=command, page=PageId(entry.b), visible=bits_of(packed, entry.c))


def _sample(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
    words = Words(memory, entry)
    sampler = _sampler(words)
    sample = c.Sample(
        id=command,
        sampler=sampler,
        embeds=words.ids(EmbedId, entry.b),
        positions=words.ids(int, entry.b),
        token_slots=words.ids(TokenSlotId, entry.b) if entry.op == GuestOp.SAMPLE_SLOTS else None,
    )
    words.end()
    return sample


def _decode(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
    return _decode_of(Words(memory, entry), command)


def _decode_with(entry: RingCommand, command: CommandId, memory: GuestMemory) -> c.Command:
    words = Words(memory, entry)
    kind, grammar_bytes, adapter_bytes, _ = map(int, words.read(_DECODE_WITH))
    if kind and kind not in GRAMMARS:
        raise InvalidArgument(f"grammar kind {kind}: give 1 to {len(GRAMMARS)}, or 0 for none")
    source, adapter = words.text(grammar_bytes), words.text(adapter_bytes)
    grammar = GrammarSpec(GRAMMARS[kind], source) if kind else None  # type: ignore[arg-type]
    return _decode_of(words, command, grammar, adapter or None)


def _decode_of(
    words: Words,
    command: CommandId,
    grammar: GrammarSpec | None = None,
    adapter: str | None = None,
) -> c.Command:
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
        grammar=grammar,
        adapter=adapter,
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


Build = Callable[[RingCommand, CommandId, GuestMemory], c.Command]
"""Builds a command from ``entry`` with this id. Raises ``InvalidArgument``."""

COMMANDS: Mapping[int, Build] = {
    GuestOp.SYNCHRONIZE: lambda entry, command, memory: c.Synchronize(id=command),
    GuestOp.ALLOC_PAGES: lambda entry, command, memory: c.AllocPages(
        id=command, pages=_run(PageId, entry)
    ),
    GuestOp.DEALLOC_PAGES: lambda entry, command, memory: c.DeallocPages(
        id=command, pages=_run(PageId, entry)
    ),
    GuestOp.ALLOC_EMBEDS: lambda entry, command, memory: c.AllocEmbeds(
        id=command, embeds=_run(EmbedId, entry)
    ),
    GuestOp.DEALLOC_EMBEDS: lambda entry, command, memory: c.DeallocEmbeds(
        id=command, embeds=_run(EmbedId, entry)
    ),
    GuestOp.EXPORT_PAGES: _export_pages,
    GuestOp.IMPORT_PAGES: _import_pages,
    GuestOp.EXPORT_TEXT: _export_text,
    GuestOp.IMPORT_TEXT: _import_pages,
    GuestOp.EMBED_TEXT: _embed_text,
    GuestOp.FORWARD: _forward,
    GuestOp.GET_NEXT_DIST: lambda entry, command, memory: c.GetNextDist(
        id=command, embeds=[EmbedId(entry.b)], top_k=entry.c
    ),
    GuestOp.SAMPLE: _sample,
    GuestOp.DECODE: _decode,
    GuestOp.RELEASE_EXPORT: lambda entry, command, memory: c.ReleaseExport(
        id=command, name=memory.text(entry.address, entry.length)
    ),
    GuestOp.IMPORT_PREFIX: lambda entry, command, memory: c.ImportPrefix(
        id=command,
        tokens=memory.u32s(entry.address, entry.length // 4),
        pages=_run(PageId, entry),
    ),
    GuestOp.COPY_PAGE: _copy_page,
    GuestOp.TRUNCATE_PAGE: lambda entry, command, memory: c.TruncatePage(
        id=command, page=PageId(entry.b), fill=entry.c
    ),
    GuestOp.MASK_PAGE: _mask_page,
    GuestOp.FORWARD_WITH: _forward_with,
    GuestOp.EMBED_SLOTS: _embed_slots,
    GuestOp.SAMPLE_SLOTS: _sample,
    GuestOp.DECODE_WITH: _decode_with,
    GuestOp.REPOSITION_PAGE: lambda entry, command, memory: c.RepositionPage(
        id=command, page=PageId(entry.b), shift=_signed(entry.c)
    ),
}
"""The operations that are commands on a queue."""
