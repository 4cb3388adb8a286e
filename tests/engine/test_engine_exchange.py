"""The operations of an exchange in a real engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_driver import Driver, i32

from quire.core.batch import CloseReceives, EngineReport, OpenReceive, SendSlots
from quire.core.exchange import ReceiveEnded, SendEnded, SendTarget

MakeDriver = Callable[..., Driver]

TARGET = SendTarget(address="tcp://127.0.0.1:1", lease=5, key=bytes(16), first=0)


def reports(driver: Driver) -> list[EngineReport]:
    found = []
    while (report := driver.engine.transfer()) is not None:
        found.append(report)
    return found


def test_an_engine_that_exchanges_nothing_says_so(make_driver: MakeDriver) -> None:
    driver = make_driver()
    assert driver.engine.info.data_address == ""
    slots = i32(range(3))
    result = driver.send(
        operations=[
            OpenReceive(lease=5, key=bytes(16), slots=slots),
            SendSlots(send=2, slots=slots, target=TARGET),
            CloseReceives(leases=[5]),
        ]
    )
    assert not result.failures
    received, sent = reports(driver)
    assert isinstance(received, ReceiveEnded)
    assert isinstance(sent, SendEnded)
    assert (received.lease, sent.send) == (5, 2)
    for error in received.error, sent.error:
        assert error is not None
        assert "exchanges no K and V" in error.message


@pytest.mark.parametrize("slot", [-1, 10**6])
def test_slots_outside_the_pool_are_a_failed_row(make_driver: MakeDriver, slot: int) -> None:
    driver = make_driver()
    sent = SendSlots(send=2, slots=i32([slot]), target=TARGET)
    received = OpenReceive(lease=5, key=bytes(16), slots=i32([slot]))
    result = driver.send(operations=[sent, received])
    assert [(row.stage, row.index) for row in result.failures] == [
        ("operations", 0),
        ("operations", 1),
    ]
    assert reports(driver) == []
