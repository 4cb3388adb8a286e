"""Rings in the memory of guests that describe them wrongly, and events that find no room."""

from __future__ import annotations

from collections import deque
from typing import cast

import pytest

from quire.core.errors import InvalidArgument
from quire.programs.sandbox.module import abi
from quire.programs.sandbox.module.abi import GuestOp, Status
from quire.programs.sandbox.module.events import RingEvent
from quire.programs.sandbox.module.rings import ModuleRings
from quire.programs.sandbox.module.wasm_module import ModuleGuest

SIZE = 1 << 12
COMMANDS, EVENTS, INBOX = 256, 1024, 2048


class FakeGuest:
    """Its memory alone."""

    def __init__(self) -> None:
        self.content = bytearray(SIZE)

    def memory(self) -> memoryview:
        return memoryview(self.content)


def rings_of(guest: FakeGuest, address: int = 0, **changed: int) -> ModuleRings:
    area = abi.IoArea(COMMANDS, 4, EVENTS, 3, INBOX, 64, 0, 0)._replace(**changed)
    if address + abi.IO.size <= SIZE:
        abi.IO.pack_into(guest.content, address, *area)
    return ModuleRings(cast(ModuleGuest, guest), address)


@pytest.mark.parametrize(
    "changed",
    [
        {"commands": SIZE - 4 * abi.COMMAND.size + 1},
        {"commands": 0xFFFFFFFF},
        {"events": SIZE - 3 * abi.EVENT.size + 1},
        {"events": 0xFFFFFFE0},
        {"inbox": SIZE - 63},
        {"inbox": 0xFFFFFFFF, "inbox_bytes": 1},
        {"inbox_bytes": 0xFFFFFFFF},
        {"max_commands": 0},
        {"max_commands": abi.MAX_RING + 1},
        {"max_events": 0},
        {"max_events": 0xFFFFFFFF},
    ],
)
def test_what_is_not_all_inside_is_refused(changed: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        rings_of(FakeGuest(), **changed)


def test_the_description_itself_is_inside() -> None:
    rings_of(FakeGuest(), SIZE - abi.IO.size)
    for address in (SIZE - abi.IO.size + 1, 0xFFFFFFFF):
        with pytest.raises(InvalidArgument, match="its memory has"):
            rings_of(FakeGuest(), address)


def test_what_just_fits_is_taken() -> None:
    edges = {
        "commands": SIZE - 4 * abi.COMMAND.size,
        "events": SIZE - 3 * abi.EVENT.size,
        "inbox": SIZE - 64,
    }
    for name, place in edges.items():
        rings_of(FakeGuest(), **{name: place})


def test_commands_are_read_in_order_and_never_more_than_the_ring_has() -> None:
    guest = FakeGuest()
    rings = rings_of(guest)
    for index in range(4):
        place = COMMANDS + index * abi.COMMAND.size
        abi.COMMAND.pack_into(guest.content, place, GuestOp.SLEEP, 0, 10 + index, 1, 2, 3, 4, 5, 6)
    assert [one.id for one in rings.commands(4)] == [10, 11, 12, 13]
    assert rings.commands(1)[0] == abi.RingCommand(GuestOp.SLEEP, 0, 10, 1, 2, 3, 4, 5, 6)
    assert rings.commands(0) == []
    with pytest.raises(InvalidArgument, match="announced 5 commands"):
        rings.commands(5)


def test_arguments_end_with_a_nul_and_fit_the_inbox() -> None:
    guest = FakeGuest()
    rings = rings_of(guest)
    assert rings.put_arguments([]) == (INBOX, 0)
    assert rings.put_arguments(["a", "ü"]) == (INBOX, 5)
    assert guest.content[INBOX : INBOX + 5] == b"a\0\xc3\xbc\0"
    assert rings.put_arguments(["x" * 63]) == (INBOX, 64)
    with pytest.raises(InvalidArgument, match="65 bytes of arguments"):
        rings.put_arguments(["x" * 64])


def test_events_wait_for_room_in_order() -> None:
    guest = FakeGuest()
    rings = rings_of(guest)
    events = deque(
        RingEvent(GuestOp.RECEIVE, number, bytes([number]) * 30) for number in range(1, 4)
    )
    assert rings.put_events(events, events.remove) == 2, "the third payload has no room"
    first = abi.EVENT.unpack_from(guest.content, EVENTS)
    second = abi.EVENT.unpack_from(guest.content, EVENTS + abi.EVENT.size)
    assert (first[2], first[-2:]) == (1, (INBOX, 30))
    assert (second[2], second[-2:]) == (2, (INBOX + 32, 30))
    assert guest.content[INBOX + 32 : INBOX + 62] == b"\2" * 30
    assert [one.command for one in events] == [3]
    events.extend(RingEvent(GuestOp.SLEEP, number) for number in range(4, 8))
    assert rings.put_events(events, events.remove) == 3, "the ring has three entries"
    assert [one.command for one in events] == [6, 7]


def test_an_event_that_never_fits_goes_back_and_its_size_is_told() -> None:
    guest = FakeGuest()
    rings = rings_of(guest)
    large = RingEvent(GuestOp.ASK_SERVICE, 7, b"x" * 65)
    back: list[RingEvent] = []
    assert rings.put_events(deque([large]), back.append) == 1
    assert back == [large]
    told = abi.EVENT.unpack_from(guest.content, EVENTS)
    assert (told[2], told[3], told[6], told[8]) == (7, Status.TOO_LARGE, 65, 0)
