"""K and V that a sender writes to memory of the receiver: who has NIXL, and what is not trusted."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import msgspec
import pytest
from test_exchange_tcp import RawPeer, RawReceiver, connect, listen, sockets

from quire.core.errors import ConfigError, Forbidden, TransferFailed
from quire.core.exchange import SendTarget
from quire.core.kv_transport import Piece, SendResult
from quire.core.wire import PROTOCOL_VERSION
from quire.exchange import ExchangeLimits, TcpTransport, nixl
from quire.exchange.nixl import NixlMemory
from quire.exchange.tcp_frames import Greeting, ReceiverWelcome, SharedPart, checksum
from quire.testing.conformance.kv_transport import (
    CONTENT,
    KEY,
    LEASE,
    TOKEN_BYTES,
    SendEnds,
    TokenSink,
    TokenSource,
    bytes_of,
    target,
)

__all__ = ["connect", "listen", "sockets"]

needs_nixl = pytest.mark.skipif(
    find_spec("nixl_cu12") is None, reason="needs NIXL: pip install 'quire[nixl]'"
)
LIMITS = ExchangeLimits(shares_memory=False)
ALL = b"".join(map(bytes_of, range(8)))
PIECE = Piece(first=0, num_tokens=8, first_layer=0, num_layers=1)
GREETING = Greeting(
    version=PROTOCOL_VERSION, lease=LEASE, key=KEY, content=CONTENT, layout="", has_nixl=True
)

Make = Callable[..., TcpTransport]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[TcpTransport] = []

    def make(*, has_nixl: bool = True, limits: ExchangeLimits = LIMITS) -> TcpTransport:
        made.append(TcpTransport(limits=limits, has_nixl=has_nixl))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each write by NIXL."""
    sizes: list[int] = []
    write = NixlMemory.write

    async def counted(self: NixlMemory, *args: Any) -> None:
        await write(self, *args)
        sizes.append(args[-1])

    monkeypatch.setattr(NixlMemory, "write", counted)
    return sizes


def arrives(sender: TcpTransport, receiver: TcpTransport, num_tokens: int = 8) -> bool:
    sink, ends = TokenSink(num_tokens), SendEnds()
    receiver.accept(LEASE, KEY, sink)
    sender.send(target(receiver), TokenSource(num_tokens), ends)
    return ends.take() == SendResult(num_tokens * TOKEN_BYTES) and sink.holds(range(num_tokens))


@needs_nixl
@pytest.mark.parametrize(("here", "there"), [(True, True), (True, False), (False, True)])
def test_pieces_go_through_nixl_where_both_have_it(
    make: Make, written: list[int], here: bool, there: bool
) -> None:
    assert arrives(make(has_nixl=here), make(has_nixl=there))
    assert written == ([4 * TOKEN_BYTES] * 2 if here and there else [])


@needs_nixl
def test_receivers_that_were_not_written_to_for_longest_are_forgotten(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And known anew when they are written to again."""
    monkeypatch.setattr(nixl, "_MAX_KNOWN", 2)
    sender, *receivers = (make() for _ in range(4))
    assert sender._nixl is not None
    agent, forgotten = sender._nixl._agent, list[str]()
    remove = agent.remove_remote_agent

    def removed(name: str) -> None:
        forgotten.append(name)
        remove(name)

    monkeypatch.setattr(agent, "remove_remote_agent", removed)
    first, second, third = receivers
    for receiver, num_forgotten in ((first, 0), (second, 0), (first, 0), (third, 1), (second, 2)):
        assert arrives(sender, receiver)
        assert len(forgotten) == num_forgotten
        assert len(sender._nixl._known) <= 2
    assert forgotten == [one._nixl._name for one in (second, first) if one._nixl is not None]


@needs_nixl
def test_more_transfers_than_windows(make: Make) -> None:
    sender, receiver = make(), make()
    sink, ends = TokenSink(40 * 8), SendEnds()
    receiver.accept(LEASE, KEY, sink)
    for first in range(0, 40 * 8, 8):
        sender.send(target(receiver), TokenSource(8, first=first), ends)
    assert [ends.take() for _ in range(40)] == [SendResult(8 * TOKEN_BYTES)] * 40
    assert sink.holds(range(40 * 8))


@needs_nixl
def test_windows_come_back_from_transfers_that_fail(make: Make, written: list[int]) -> None:
    sender, receiver = make(), make()
    ends = SendEnds()
    for _ in range(20):
        receiver.accept(LEASE, KEY, TokenSink(4))
        sender.send(target(receiver), TokenSource(8), ends)
        assert ends.take().error is not None
    written.clear()
    assert arrives(sender, receiver)
    assert sum(written) == 8 * TOKEN_BYTES


@needs_nixl
def test_a_piece_is_larger_than_a_window(make: Make, written: list[int]) -> None:
    limits = ExchangeLimits(shares_memory=False, window_bytes=3 * TOKEN_BYTES)
    assert arrives(make(limits=limits), make(limits=limits))
    assert written == []


@needs_nixl
def test_what_is_written_late_is_noticed(
    make: Make, connect: Callable[[TcpTransport], RawPeer]
) -> None:
    """The receiver verifies a copy: what the memory becomes afterwards does not reach the sink."""
    receiver = make()
    sink = TokenSink(8, before_write=lambda: write(b"\xff" * len(ALL)))
    receiver.accept(LEASE, KEY, sink)
    peer = connect(receiver)
    peer.say(GREETING)
    remote = peer.hear().remote

    def write(payload: bytes) -> None:
        ctypes.memmove(remote.address, payload, len(payload))  # as NIXL does, within a process

    part = SharedPart(piece=PIECE, checksum=checksum(ALL), offset=0, num_bytes=len(ALL))
    write(ALL)
    peer.say(part)
    assert peer.hear().num_bytes == len(ALL)
    assert sink.holds(range(8))
    peer.say(part)
    assert "damaged" in peer.hear().error.message
    assert sink.holds(range(8))


@needs_nixl
@pytest.mark.parametrize(
    "changes",
    [
        {"agent": b""},
        {"agent": b"no agent" * 20},
        {"address": 4096},
        {"address": 2**64 - 8},
        {"num_bytes": 2**62, "address": 0},
    ],
)
def test_a_receiver_names_memory_that_is_not_there(
    make: Make, listen: Callable[[], RawReceiver], changes: dict[str, Any]
) -> None:
    sender, honest, memory = make(), make(), NixlMemory(1 << 16)
    window = memory.take()
    assert window is not None
    receiver, ends = listen(), SendEnds()
    sender.send(receiver.target, TokenSource(8), ends)
    peer = receiver.accept()
    peer.hear(Greeting)
    remote = msgspec.structs.replace(memory.name(window), **changes)
    peer.say(ReceiverWelcome(piece_bytes=1 << 20, is_raw=False, remote=remote))
    error = ends.take().error
    assert isinstance(error, TransferFailed)
    assert "NIXL" in error.message
    assert arrives(sender, honest)
    memory.close()


@needs_nixl
def test_another_key_is_lent_no_memory(
    make: Make, connect: Callable[[TcpTransport], RawPeer]
) -> None:
    receiver = make()
    receiver.accept(LEASE, KEY, TokenSink(8))
    peer = connect(receiver)
    peer.say(msgspec.structs.replace(GREETING, key=b"o" * 16))
    assert peer.hear().error.code == Forbidden.code


def test_nixl_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl, "_PACKAGES", ("nixl_of_nobody",))
    with pytest.raises(ConfigError, match=r"pip install 'quire\[nixl\]'"):
        TcpTransport(has_nixl=True)


RECEIVER = """
import sys, time
from quire.exchange import ExchangeLimits, TcpTransport
from quire.testing.conformance.kv_transport import KEY, LEASE, TokenSink

sink = TokenSink(700)
transport = TcpTransport(limits=ExchangeLimits(shares_memory=False), has_nixl=True)
transport.accept(LEASE, KEY, sink)
print(transport.address, flush=True)
sys.stdin.readline()
print(sink.holds(range(700)), flush=True)
transport.close()
"""


@needs_nixl
@pytest.mark.e2e
def test_between_two_processes(make: Make, written: list[int]) -> None:
    sender, ends = make(), SendEnds()
    process = subprocess.Popen(
        [sys.executable, "-c", RECEIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        there = SendTarget(address=address, lease=LEASE, key=KEY, first=0)
        sender.send(there, TokenSource(700, step=7), ends)
        assert ends.take() == SendResult(700 * TOKEN_BYTES)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "True\n"
        assert sum(written) == 700 * TOKEN_BYTES
        process.send_signal(signal.SIGKILL)
        process.wait()
        sender.send(there, TokenSource(700, step=7), ends)
        assert isinstance(ends.take().error, TransferFailed)
        assert arrives(sender, make())
    finally:
        process.kill()
        process.communicate()
