"""Peers of a TCP transport that are silent, cut off, too slow, or no engines at all."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from quire.core.errors import ConfigError, Forbidden, ProtocolMismatch, QuireError, TransferFailed
from quire.core.exchange import SendTarget
from quire.core.kv_transport import Piece, SendResult
from quire.core.wire import PROTOCOL_VERSION
from quire.exchange import ExchangeLimits, TcpTransport
from quire.exchange.shared_window import IS_SUPPORTED, SharedWindow
from quire.exchange.tcp_frames import (
    Greeting,
    Part,
    ReceiverWelcome,
    Refusal,
    SharedPart,
    ToSender,
    Written,
    checksum,
)
from quire.testing.conformance.kv_transport import (
    CONTENT,
    KEY,
    LEASE,
    RAW_MARK,
    TOKEN_BYTES,
    SendEnds,
    TokenSink,
    TokenSource,
    bytes_of,
    target,
)

PATIENT_S = 60.0
SHORT_S = 0.05
GREETS_QUICKLY = ExchangeLimits(greeting_s=SHORT_S, silence_s=PATIENT_S)
GOES_ON_QUICKLY = ExchangeLimits(greeting_s=PATIENT_S, silence_s=SHORT_S)
PRELUDE = struct.Struct("<4sII")
GREETING = Greeting(version=PROTOCOL_VERSION, lease=LEASE, key=KEY, content=CONTENT, layout="")
ALL = b"".join(map(bytes_of, range(8)))
PIECE = Piece(first=0, num_tokens=8, first_layer=0, num_layers=1)
PART = Part(piece=PIECE, checksum=checksum(ALL))


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> Iterator[TcpTransport]:
    made = TcpTransport(limits=getattr(request, "param", None))
    yield made
    made.close()


class RawPeer:
    """A peer that says whatever a test wants."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENT_S)
        self.socket = connection

    def say(self, message: msgspec.Struct, body: bytes = b"") -> None:
        header = msgspec.msgpack.encode(message)
        self.socket.sendall(PRELUDE.pack(b"QKV2", len(header), len(body)) + header + body)

    def hear(self, kind: Any = ToSender) -> Any:
        _, header_size, size = PRELUDE.unpack(self._take(PRELUDE.size))
        message = msgspec.msgpack.decode(self._take(header_size), type=kind)
        self._take(size)
        return message

    def greet(self) -> None:
        self.say(GREETING)
        welcome = self.hear()
        assert isinstance(welcome, ReceiverWelcome)
        assert not welcome.is_shared, "it has offered no memory"

    def has_ended(self) -> bool:
        """Whether the transport ends the connection; waits for it."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(1 << 16):
                pass
        return True

    def _take(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            some = self.socket.recv(count - len(found))
            assert some, "the connection has ended"
            found += some
        return found


class RawReceiver:
    """A receiver that says whatever a test wants to one sender."""

    def __init__(self, sockets: contextlib.ExitStack) -> None:
        self._sockets = sockets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENT_S)
        sockets.callback(self._listener.close)
        address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.target = SendTarget(address=address, lease=LEASE, key=KEY, first=0)

    def accept(self) -> RawPeer:
        peer = RawPeer(self._listener.accept()[0])
        self._sockets.callback(peer.socket.close)
        self._listener.close()
        return peer


Connect = Callable[[TcpTransport], RawPeer]
Listen = Callable[[], RawReceiver]


@pytest.fixture
def sockets() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def connect(sockets: contextlib.ExitStack) -> Connect:
    def connect(transport: TcpTransport) -> RawPeer:
        port = int(transport.address.rpartition(":")[2])
        peer = RawPeer(socket.create_connection(("127.0.0.1", port), PATIENT_S))
        sockets.callback(peer.socket.close)
        return peer

    return connect


@pytest.fixture
def listen(sockets: contextlib.ExitStack) -> Listen:
    return lambda: RawReceiver(sockets)


def serves_others(transport: TcpTransport) -> bool:
    """Whether another sender's tokens arrive."""
    sink, ends = TokenSink(8), SendEnds()
    transport.accept(LEASE + 1, KEY, sink)
    transport.send(target(transport, lease=LEASE + 1), TokenSource(8), ends)
    return ends.take() == SendResult(8 * TOKEN_BYTES) and sink.holds(range(8))


def test_a_sender_that_comes_before_its_lease_is_open_waits_for_it(
    transport: TcpTransport, connect: Connect
) -> None:
    early = connect(transport)
    early.say(GREETING)
    transport.accept(LEASE - 1, KEY, TokenSink(8))
    other = connect(transport)
    other.say(msgspec.structs.replace(GREETING, lease=LEASE - 1))
    assert isinstance(other.hear(), ReceiverWelcome)  # the one before it was heard by then
    sink = TokenSink(8)
    transport.accept(LEASE, KEY, sink)
    assert isinstance(early.hear(), ReceiverWelcome)
    early.say(PART, ALL)
    assert isinstance(early.hear(), Written)
    assert sink.holds(range(8))


@pytest.mark.parametrize(
    "transport", [ExchangeLimits(opening_s=SHORT_S, greeting_s=PATIENT_S)], indirect=True
)
def test_a_sender_of_a_lease_that_does_not_open_is_refused(
    transport: TcpTransport, connect: Connect
) -> None:
    peer = connect(transport)
    peer.say(GREETING)
    refusal = peer.hear()
    assert isinstance(refusal, Refusal)
    assert refusal.error.code == Forbidden.code
    assert peer.has_ended()
    assert serves_others(transport)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(64),
        PRELUDE.pack(b"QKV2", 1 << 31, 0),
        PRELUDE.pack(b"QKV2", 3, 0) + b"abc",
    ],
    ids=["http", "zeros", "long header", "no message"],
)
def test_garbage_is_refused(transport: TcpTransport, connect: Connect, garbage: bytes) -> None:
    sink = TokenSink(8)
    transport.accept(LEASE, KEY, sink)
    for is_greeted in (False, True):
        peer = connect(transport)
        if is_greeted:
            peer.greet()
        peer.socket.sendall(garbage)
        refusal = peer.hear()
        assert isinstance(refusal, Refusal)
        assert refusal.error.code == ProtocolMismatch.code
        assert peer.has_ended()
    assert sink.tokens == {}
    assert serves_others(transport)


def test_another_release_is_refused(transport: TcpTransport, connect: Connect) -> None:
    peer = connect(transport)
    peer.say(msgspec.structs.replace(GREETING, version=PROTOCOL_VERSION + 1))
    refusal = peer.hear()
    assert refusal.error.code == ProtocolMismatch.code
    assert f"version {PROTOCOL_VERSION + 1}" in refusal.error.message
    assert peer.has_ended()


def test_damaged_bytes_are_not_written(transport: TcpTransport, connect: Connect) -> None:
    sink = TokenSink(8)
    transport.accept(LEASE, KEY, sink)
    peer = connect(transport)
    peer.greet()
    peer.say(PART, b"\xff" + ALL[1:])
    refusal = peer.hear()
    assert refusal.error.code == TransferFailed.code
    assert "damaged" in refusal.error.message
    assert sink.tokens == {}


@pytest.mark.parametrize("size", [0, len(ALL) - 1, len(ALL) + 1])
def test_a_body_of_another_size_takes_no_memory(
    transport: TcpTransport, connect: Connect, size: int
) -> None:
    """It is refused before its bytes are read."""
    transport.accept(LEASE, KEY, TokenSink(8))
    peer = connect(transport)
    peer.greet()
    header = msgspec.msgpack.encode(PART)
    peer.socket.sendall(PRELUDE.pack(b"QKV2", len(header), size) + header)
    assert peer.hear().error.code == ProtocolMismatch.code


@pytest.mark.skipif(not IS_SUPPORTED, reason="needs files without names")
@pytest.mark.parametrize(
    ("offset", "num_bytes", "body", "is_known"),
    [
        (1, len(ALL), b"", True),
        (-1, len(ALL), b"", True),
        (0, len(ALL) + 1, b"", True),
        (2**62, len(ALL), b"", True),
        (0, len(ALL), b"x", True),
        (0, len(ALL), b"", False),
    ],
)
def test_a_shared_piece_outside_of_the_memory(
    transport: TcpTransport,
    connect: Connect,
    offset: int,
    num_bytes: int,
    body: bytes,
    is_known: bool,
) -> None:
    sink, window = TokenSink(8), SharedWindow(len(ALL))
    transport.accept(LEASE, KEY, sink)
    peer = connect(transport)
    name = window.name if is_known else msgspec.structs.replace(window.name, proof=bytes(16))
    peer.say(msgspec.structs.replace(GREETING, shared=name))
    assert peer.hear().is_shared is is_known
    peer.say(
        SharedPart(piece=PIECE, checksum=checksum(ALL), offset=offset, num_bytes=num_bytes), body
    )
    assert peer.hear().error.code == ProtocolMismatch.code
    assert sink.tokens == {}
    window.close()


@pytest.mark.skipif(not IS_SUPPORTED, reason="needs files without names")
def test_shared_memory_is_checked(transport: TcpTransport, connect: Connect) -> None:
    sink, window = TokenSink(8), SharedWindow(len(ALL))
    transport.accept(LEASE, KEY, sink)
    peer = connect(transport)
    peer.say(msgspec.structs.replace(GREETING, shared=window.name))
    peer.hear()
    part = SharedPart(piece=PIECE, checksum=checksum(ALL), offset=0, num_bytes=len(ALL))
    window.view[:] = ALL
    peer.say(part)
    assert peer.hear() == Written(num_bytes=len(ALL))
    assert sink.holds(range(8))
    window.view[7] ^= 1
    peer.say(part)
    assert "damaged" in peer.hear().error.message
    window.close()


@pytest.mark.parametrize(("layout", "is_raw"), [("", True), ("a", False)])
def test_a_piece_in_another_form_than_agreed(
    transport: TcpTransport, connect: Connect, layout: str, is_raw: bool
) -> None:
    sink = TokenSink(8, layout="a")
    transport.accept(LEASE, KEY, sink)
    peer = connect(transport)
    peer.say(msgspec.structs.replace(GREETING, layout=layout))
    assert peer.hear().is_raw is (layout == "a")
    body = RAW_MARK + ALL if is_raw else ALL
    piece = msgspec.structs.replace(PIECE, is_raw=is_raw)
    peer.say(Part(piece=piece, checksum=checksum(body)), body)
    assert peer.hear().error.code == ProtocolMismatch.code
    assert sink.tokens == {}


@pytest.mark.parametrize("transport", [ExchangeLimits(piece_bytes=len(ALL) - 1)], indirect=True)
def test_a_piece_has_a_largest_size(transport: TcpTransport, connect: Connect) -> None:
    transport.accept(LEASE, KEY, TokenSink(8))
    peer = connect(transport)
    peer.greet()
    peer.say(PART, ALL)
    assert peer.hear().error.code == ProtocolMismatch.code


@pytest.mark.parametrize(
    ("transport", "stage"),
    [
        (GREETS_QUICKLY, "connected"),
        (GREETS_QUICKLY, "in a greeting"),
        (GOES_ON_QUICKLY, "greeted"),
        (GOES_ON_QUICKLY, "in a piece"),
    ],
    indirect=["transport"],
)
def test_a_silent_sender_is_given_up(transport: TcpTransport, connect: Connect, stage: str) -> None:
    sink = TokenSink(8)
    transport.accept(LEASE, KEY, sink)
    peer = connect(transport)
    if stage == "in a greeting":
        peer.socket.sendall(PRELUDE.pack(b"QKV2", 50, 0) + b"x")
    elif stage != "connected":
        peer.greet()
    if stage == "in a piece":
        header = msgspec.msgpack.encode(PART)
        peer.socket.sendall(PRELUDE.pack(b"QKV2", len(header), len(ALL)) + header + ALL[:-1])
    assert peer.has_ended()
    assert sink.tokens == {}


def test_a_sender_that_is_cut_off_leaves_the_lease_open(
    transport: TcpTransport, connect: Connect
) -> None:
    sink, ends = TokenSink(8), SendEnds()
    transport.accept(LEASE, KEY, sink)
    peer = connect(transport)
    peer.greet()
    header = msgspec.msgpack.encode(PART)
    peer.socket.sendall(PRELUDE.pack(b"QKV2", len(header), len(ALL)) + header + ALL[:-1])
    peer.socket.close()
    transport.send(target(transport), TokenSource(8), ends)
    assert ends.take().error is None
    assert sink.holds(range(8))


@pytest.mark.parametrize("transport", [ExchangeLimits(num_connections=1)], indirect=True)
def test_connections_are_bounded(transport: TcpTransport, connect: Connect) -> None:
    transport.accept(LEASE, KEY, TokenSink(8))
    first = connect(transport)
    first.greet()
    ends = SendEnds()
    transport.send(target(transport), TokenSource(8), ends)
    assert isinstance(ends.take().error, TransferFailed)
    first.say(PART, ALL)
    assert first.hear() == Written(num_bytes=len(ALL))
    first.socket.close()


def error_of(ends: SendEnds) -> QuireError:
    error = ends.take().error
    assert error is not None
    return error


@pytest.mark.parametrize(
    ("transport", "is_welcoming"),
    [(GREETS_QUICKLY, False), (GOES_ON_QUICKLY, True)],
    indirect=["transport"],
)
def test_a_silent_receiver_is_given_up(
    transport: TcpTransport, listen: Listen, is_welcoming: bool
) -> None:
    receiver, ends = listen(), SendEnds()
    transport.send(receiver.target, TokenSource(8), ends)
    peer = receiver.accept()
    if is_welcoming:
        peer.say(ReceiverWelcome(piece_bytes=1 << 20, is_raw=False))
    error = error_of(ends)
    assert isinstance(error, TransferFailed)
    assert "silent" in error.message
    assert peer.has_ended()


@pytest.mark.parametrize(
    "answer",
    [Written(num_bytes=10**6), Written(num_bytes=0), ReceiverWelcome(piece_bytes=1, is_raw=False)],
)
def test_a_receiver_that_tells_nonsense(
    transport: TcpTransport, listen: Listen, answer: msgspec.Struct
) -> None:
    receiver, ends = listen(), SendEnds()
    transport.send(receiver.target, TokenSource(8), ends)
    peer = receiver.accept()
    peer.say(ReceiverWelcome(piece_bytes=1 << 20, is_raw=False))
    peer.say(answer)
    assert isinstance(error_of(ends), ProtocolMismatch)
    assert peer.has_ended()


def test_a_receiver_that_is_cut_off(transport: TcpTransport, listen: Listen) -> None:
    receiver, ends = listen(), SendEnds()
    transport.send(receiver.target, TokenSource(8), ends)
    peer = receiver.accept()
    peer.say(ReceiverWelcome(piece_bytes=1 << 20, is_raw=False))
    peer.socket.close()
    assert isinstance(error_of(ends), TransferFailed)


def test_a_refusal_amid_many_bytes_is_heard(transport: TcpTransport) -> None:
    """The sender is still sending when the receiver refuses."""
    large = ExchangeLimits(window_bytes=32 << 20)
    sender, ends = TcpTransport(limits=large), SendEnds()
    num_writes = 0

    def close() -> None:
        nonlocal num_writes
        num_writes += 1
        sink.is_closed = num_writes > 1

    sink = TokenSink(1 << 20, before_write=close)
    transport.accept(LEASE, KEY, sink)
    sender.send(target(transport), TokenSource(1 << 20, step=8192), ends)
    assert isinstance(error_of(ends), Forbidden)
    sender.close()


def test_the_window_bounds_what_is_read_ahead(transport: TcpTransport) -> None:
    """While the receiver's memory is busy, the sender reads no more than a window."""
    piece_bytes = 4 * TOKEN_BYTES
    sender = TcpTransport(limits=ExchangeLimits(window_bytes=10 * piece_bytes))
    is_full, go_on = threading.Event(), threading.Event()

    def on_read() -> None:
        if source.num_read >= 10:
            is_full.set()

    sink = TokenSink(400, before_write=lambda: _wait(go_on))
    source, ends = TokenSource(400, on_read=on_read), SendEnds()
    transport.accept(LEASE, KEY, sink)
    sender.send(target(transport), source, ends)
    assert is_full.wait(PATIENT_S)
    assert source.num_read == 10
    go_on.set()
    assert ends.take() == SendResult(400 * TOKEN_BYTES)
    sender.close()


def _wait(event: threading.Event) -> None:
    assert event.wait(PATIENT_S)


@pytest.mark.parametrize("transport", [ExchangeLimits(num_sends=2)], indirect=True)
def test_sends_beyond_their_number_wait(transport: TcpTransport, listen: Listen) -> None:
    receivers = [listen() for _ in range(3)]
    ends, read = SendEnds(), [threading.Event() for _ in range(3)]
    sources = [TokenSource(8, on_read=event.set) for event in read]
    for receiver, source in zip(receivers, sources, strict=True):
        transport.send(receiver.target, source, ends)
    peers = [receiver.accept() for receiver in receivers[:2]]
    for peer, event in zip(peers, read, strict=False):
        peer.hear(Greeting)
        peer.say(ReceiverWelcome(piece_bytes=1 << 20, is_raw=False))
        assert event.wait(PATIENT_S)
    assert not read[2].is_set()
    peers[0].socket.close()
    third = receivers[2].accept()
    third.say(ReceiverWelcome(piece_bytes=1 << 20, is_raw=False))
    assert read[2].wait(PATIENT_S)


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:0", "tcp://[::]:0", "127.0.0.1:0", "udp://127.0.0.1:0", "tcp://x:y"]
)
def test_an_address_that_cannot_be_served(address: str) -> None:
    with pytest.raises(ConfigError, match="tcp://"):
        TcpTransport(address)


def test_a_host_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **fields: object) -> None:
        raise socket.gaierror("it has no address")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match=r"engine\.example:7000, .*: it has no address"):
        TcpTransport("tcp://engine.example:7000")


def test_a_port_that_is_taken(transport: TcpTransport) -> None:
    with pytest.raises(ConfigError, match="no K and V can be received"):
        TcpTransport(transport.address)


@pytest.mark.parametrize(
    ("shares", "window_bytes", "transport"),
    [
        (False, 1 << 20, "tcp"),
        (True, 1 << 20, "shared_memory"),
        (True, 4 * TOKEN_BYTES, "shared_memory"),
        (True, 3 * TOKEN_BYTES, "tcp"),  # no piece of four tokens fits into the window
    ],
)
def test_what_carries_the_bytes_is_told_on_both_sides(
    shares: bool, window_bytes: int, transport: str
) -> None:
    limits = ExchangeLimits(shares_memory=shares, window_bytes=window_bytes)
    sender, receiver = TcpTransport(limits=limits), TcpTransport(limits=limits)
    try:
        sink, ends = TokenSink(8), SendEnds()
        receiver.accept(LEASE, KEY, sink)
        sender.send(target(receiver), TokenSource(8, step=4), ends)
        sent = ends.take()
        assert (sent.error, sent.transport) == (None, transport)
        assert sink.carriers == {transport}
    finally:
        sender.close()
        receiver.close()


def test_what_never_reaches_the_receiver_was_carried_by_nothing() -> None:
    sender, receiver = TcpTransport(), TcpTransport()
    receiver.close()
    ends = SendEnds()
    sender.send(target(receiver), TokenSource(8), ends)
    sent = ends.take()
    sender.close()
    assert sent.error is not None
    assert sent.transport == ""
