"""The guest ABI's commands, byte by byte as docs/reference/guest-abi.md has them."""

from __future__ import annotations

import re
import struct
from typing import Any, get_args

import pytest

from quire.core import commands as c
from quire.core.calls import Call, SetQueuePriority
from quire.core.decoding import GrammarSpec
from quire.core.errors import ErrorRecord, InvalidArgument
from quire.core.ids import CommandId, ModelId, PageId, QueueId
from quire.programs.sandbox.module.abi import (
    GuestOp,
    RingCommand,
    Status,
    named_bytes,
    status_of,
)
from quire.programs.sandbox.module.commands import COMMANDS, queue_call, with_adapter
from quire.programs.sandbox.module.events import reply_event
from quire.programs.sandbox.module.memory import GuestMemory

AT = 16


def entry(
    op: GuestOp, *, a: int = 7, b: int = 0, c: int = 0, d: int = 0, length: int = 0
) -> RingCommand:
    return RingCommand(op, 0, 3, a, b, c, d, AT, length)


def issued(op: GuestOp, payload: bytes = b"", **fields: int) -> Any:
    memory = GuestMemory(memoryview(bytes(AT) + payload))
    command = COMMANDS[op](entry(op, length=len(payload), **fields), CommandId(3), memory)
    assert command.id == 3
    return command


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


LAYOUTS = {
    "FORWARD_WITH",
    "DECODE_WITH",
    "EMBED_SLOTS",
    "SAMPLE_SLOTS",
    "EXPORT_TEXT",
    "IMPORT_TEXT",
}
"""Commands in another layout than the one of their name."""


def test_operations_on_queues_have_the_names_of_calls_and_commands() -> None:
    known = (*get_args(c.Command), *get_args(Call))
    names = {re.sub("(?<=[a-z])(?=[A-Z])", "_", one.__name__).upper() for one in known}
    assert {op.name for op in GuestOp if op >= GuestOp.CREATE_QUEUE} <= names | LAYOUTS
    assert GuestOp.ASK_SERVICE.name in names


def test_priorities_are_signed() -> None:
    made = queue_call(entry(GuestOp.SET_QUEUE_PRIORITY, c=0xFFFFFFFE), [ModelId("m")])
    assert made == SetQueuePriority(QueueId(7), -2)


def test_pages_are_copied_cut_and_masked() -> None:
    copied = issued(GuestOp.COPY_PAGE, words(1, 2, 3, 4, 5))
    assert (copied.source, copied.source_offset, copied.target) == (1, 2, 3)
    assert (copied.target_offset, copied.num_slots) == (4, 5)
    cut = issued(GuestOp.TRUNCATE_PAGE, b=9, c=4)
    assert (cut.page, cut.fill) == (9, 4)
    for number, shift in ((5, 5), (0xFFFFFFFB, -5)):
        moved = issued(GuestOp.REPOSITION_PAGE, b=9, c=number)
        assert (moved.page, moved.shift) == (9, shift)
    masked = issued(GuestOp.MASK_PAGE, bytes([0b101, 0b10]), b=9, c=10)
    assert masked.visible == [True, False, True, *[False] * 6, True]


def test_exports_are_released_and_prefixes_imported() -> None:
    assert issued(GuestOp.RELEASE_EXPORT, b"name").name == "name"
    imported = issued(GuestOp.IMPORT_PREFIX, words(5, 6, 7), b=20, c=2)
    assert imported == c.ImportPrefix(id=CommandId(3), tokens=[5, 6, 7], pages=[20, 21])


def test_exports_and_imports_go_with_their_text() -> None:
    exported = issued(GuestOp.EXPORT_TEXT, words(3, 5, 7, 8, 9) + b"namen\0\0\0", b=20, c=2, d=60)
    assert exported == c.ExportPages(
        id=CommandId(3), pages=[20, 21], name="namen", ttl_s=60.0, tokens=[7, 8, 9]
    )
    imported = issued(GuestOp.IMPORT_TEXT, b"name", b=20, c=2)
    assert imported == c.ImportPages(id=CommandId(3), pages=[20, 21], name="name")
    page = c.ImportedPage(PageId(20), 3, [0, 1, 2], [True] * 3)
    told = reply_event(GuestOp.IMPORT_TEXT, 3, c.Imported([page], 3, [7, 8, 9, 4]), True)
    assert (told.a, told.b, told.c) == (1, 3, 4)
    assert told.payload == words(3, 7, 8, 9, 4)
    plain = reply_event(GuestOp.IMPORT_PAGES, 3, c.Imported([page], 3, [7, 8, 9, 4]), True)
    assert (plain.a, plain.b, plain.c, plain.payload) == (1, 3, 0, words(3))
    assert reply_event(GuestOp.IMPORT_TEXT, 3, c.Imported([page], 3), True).c == 0


def test_a_forward_has_a_mask_and_an_adapter() -> None:
    head = words(1, 2, 1, 1, 11, 3) + words(10, 30, 31, 10, 31)
    rows = bytes([0xFF, 0b011, 0x01, 0b111])
    forward = issued(GuestOp.FORWARD_WITH, head + b"ada\0" + rows)
    assert forward.adapter == "ada"
    assert forward.mask == [[True] * 10 + [False], [True] + [False] * 7 + [True] * 3]
    assert (forward.context, forward.inputs, forward.outputs) == ([10], [30, 31], [31])


def test_a_forward_with_neither_is_a_plain_one() -> None:
    ids = words(10, 30, 10)
    plain = issued(GuestOp.FORWARD, words(1, 1, 1, 0) + ids)
    assert issued(GuestOp.FORWARD_WITH, words(1, 1, 1, 0, 0, 0) + ids) == plain


def test_tokens_stay_in_slots() -> None:
    sampler = struct.pack("<IfIffI", 0, 0.0, 0, 0.0, 0.0, 0)
    sampled = issued(GuestOp.SAMPLE_SLOTS, sampler + words(30, 31, 5, 6, 70, 71), b=2)
    assert (sampled.embeds, sampled.positions, sampled.token_slots) == ([30, 31], [5, 6], [70, 71])
    embedded = issued(GuestOp.EMBED_SLOTS, words(70, 71, 5, 6), b=30, c=2)
    assert (embedded.token_slots, embedded.positions) == ([70, 71], [5, 6])
    assert embedded.embeds == [30, 31]


def decode(*, stops: int = 1) -> bytes:
    sampler = struct.pack("<IfIffI", 0, 0.0, 0, 0.0, 0.0, 0)
    return words(0, 8, 0, 1, 2, stops) + sampler + words(10, 5, 6, *range(stops))


def test_a_decode_has_a_grammar_and_an_adapter() -> None:
    plain = issued(GuestOp.DECODE, decode())
    constrained = issued(
        GuestOp.DECODE_WITH, words(2, 5, 2, 0) + b"[0-9]\0\0\0" + b"ad\0\0" + decode()
    )
    assert constrained.grammar == GrammarSpec("regex", "[0-9]")
    assert constrained.adapter == "ad"
    assert issued(GuestOp.DECODE_WITH, words(0, 0, 0, 0) + decode()) == plain


@pytest.mark.parametrize(
    ("op", "payload", "fields"),
    [
        (GuestOp.COPY_PAGE, words(1, 2, 3, 4), {}),
        (GuestOp.COPY_PAGE, words(1, 2, 3, 4, 5, 6), {}),
        (GuestOp.MASK_PAGE, b"\1", {"c": 9}),
        (GuestOp.FORWARD_WITH, words(0, 1, 0, 0, 100, 0) + words(30) + bytes(4), {}),
        (GuestOp.FORWARD_WITH, words(0, 0, 0, 0, 0, 1 << 31), {}),
        (GuestOp.FORWARD_WITH, words(0, 0, 0, 0, 0, 4) + b"\xff\xff\xff\xff", {}),
        (GuestOp.SAMPLE_SLOTS, words(0, 0, 0, 0, 0, 0, 1, 2), {"b": 1}),
        (GuestOp.DECODE_WITH, words(4, 0, 0, 0) + decode(), {}),
        (GuestOp.DECODE_WITH, words(1, 0xFFFFFFFF, 0, 0) + decode(), {}),
        (GuestOp.IMPORT_PREFIX, words(1), {"c": 1 << 31}),
        (GuestOp.EXPORT_TEXT, words(1 << 30, 4, 5) + b"name", {"c": 1}),
        (GuestOp.EXPORT_TEXT, words(1, 4, 5) + b"name" + bytes(4), {"c": 1}),
        (GuestOp.EXPORT_TEXT, words(1, 4, 5) + b"name", {"c": 1 << 31}),
    ],
)
def test_what_does_not_fit_is_refused(op: GuestOp, payload: bytes, fields: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        issued(op, payload, **fields)


def test_counts_are_part_of_what_a_turn_names() -> None:
    assert named_bytes(entry(GuestOp.ALLOC_PAGES, c=1000)) == 8000
    assert named_bytes(entry(GuestOp.EMBED_TEXT, c=1000)) == 8000
    assert named_bytes(entry(GuestOp.EXPORT_TEXT, c=1000, length=8)) == 8008
    assert named_bytes(entry(GuestOp.IMPORT_TEXT, c=1000, length=8)) == 8008
    assert named_bytes(entry(GuestOp.DETOKENIZE, b=1000)) == 4000
    assert named_bytes(entry(GuestOp.FORWARD, c=1000, length=20)) == 20


def test_an_adapters_model_runs_with_it() -> None:
    forward = c.Forward(id=CommandId(1), context=[], inputs=[], output=[], outputs=[])
    done = c.Synchronize(id=CommandId(2))
    changed = with_adapter(forward, "ada")
    assert isinstance(changed, c.Forward)
    assert changed.adapter == "ada"
    assert with_adapter(changed, "bob") is changed
    assert with_adapter(done, "ada") is done


def test_an_errors_status_is_the_number_that_the_reference_gives() -> None:
    numbers = {
        "invalid_argument": 1,
        "unknown_handle": 2,
        "quota_exceeded": 3,
        "queue_poisoned": 4,
        "program_cancelled": 5,
        "engine_lost": 6,
        "forbidden": 7,
        "mailbox_closed": 8,
        "program_failed": 15,
    }
    assert {code: int(status_of(ErrorRecord(code, ""))) for code in numbers} == numbers
    assert (int(Status.OK), int(Status.TOO_LARGE)) == (0, 9)
