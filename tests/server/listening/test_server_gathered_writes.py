"""Gathered writes: what a pass of the loop writes leaves at its end, in order and whole."""

from __future__ import annotations

import asyncio
from typing import Any

from quire.server.listening.gathered_writes import GatheredTransport, GatheredWrites


class Wire(asyncio.Transport):
    """Notes what is asked of it in the log that it shares with others."""

    def __init__(self, log: list[tuple[str, bytes]], name: str) -> None:
        super().__init__()
        self._log = log
        self._name = name
        self._is_closing = False

    def write(self, data: Any) -> None:
        assert not self._is_closing, "a write to a connection that is gone"
        self._log.append((self._name, bytes(data)))

    def close(self) -> None:
        self._log.append((self._name, b"<close>"))
        self._is_closing = True

    def abort(self) -> None:
        self._log.append((self._name, b"<abort>"))
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 7


def two_connections() -> tuple[list[tuple[str, bytes]], GatheredTransport, GatheredTransport]:
    log: list[tuple[str, bytes]] = []
    writes = GatheredWrites()
    return log, GatheredTransport(Wire(log, "a"), writes), GatheredTransport(Wire(log, "b"), writes)


async def pass_of_the_loop() -> None:
    await asyncio.sleep(0)


async def test_the_writes_of_one_pass_leave_together() -> None:
    log, a, b = two_connections()
    a.write(b"one ")
    b.write(b"other")
    a.write(b"two")
    assert log == []
    assert a.get_write_buffer_size() == 7 + len(b"one two")
    await pass_of_the_loop()
    assert log == [("a", b"one two"), ("b", b"other")]
    assert a.get_write_buffer_size() == 7

    a.write(b"next")
    await pass_of_the_loop()
    assert log[2:] == [("a", b"next")]


async def test_what_is_held_leaves_before_the_connection_closes() -> None:
    log, a, _ = two_connections()
    a.write(b"the end")
    a.close()
    assert log == [("a", b"the end"), ("a", b"<close>")]
    await pass_of_the_loop()
    assert len(log) == 2


async def test_an_aborted_connection_sends_nothing_any_more() -> None:
    log, a, b = two_connections()
    a.write(b"never")
    b.write(b"still")
    a.abort()
    await pass_of_the_loop()
    assert log == [("a", b"<abort>"), ("b", b"still")]


async def test_a_connection_that_is_lost_in_between_costs_the_others_nothing() -> None:
    log: list[tuple[str, bytes]] = []
    writes = GatheredWrites()
    lost = Wire(log, "a")
    a, b = GatheredTransport(lost, writes), GatheredTransport(Wire(log, "b"), writes)
    a.write(b"never")
    b.write(b"still")
    lost.abort()
    await pass_of_the_loop()
    assert log == [("a", b"<abort>"), ("b", b"still")]


async def test_little_is_held_for_one_connection() -> None:
    """Else its limits, which make a fast writer wait for a slow reader, would not be seen."""
    log, a, _ = two_connections()
    a.write(b"x" * (48 << 10))
    assert log == []
    a.write(b"y" * (48 << 10))
    assert [len(data) for _, data in log] == [96 << 10]
    a.write(b"z")
    assert len(log) == 1
    await pass_of_the_loop()
    assert log[1] == ("a", b"z")
