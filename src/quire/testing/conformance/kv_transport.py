"""``KVTransportSuite``: what every ``KVTransport`` must do.

Run it by subclassing in a test module::

    class TestTcp(KVTransportSuite):
        def make_transport(self):
            return TcpTransport()

pytest collects the inherited tests. Transports of one test must be able to reach one another.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from quire.core.errors import EngineFault, Forbidden, InvalidArgument, QuireError, TransferFailed
from quire.core.exchange import SendTarget
from quire.core.kv_transport import Carrier, KVTransport, Piece, SendResult, carried_by

KEY, OTHER_KEY = b"k" * 16, b"o" * 16
LEASE = 3
CONTENT = "the same K and V"
TOKEN_BYTES = 48
RAW_MARK = b"raw"
"""The beginning of raw pieces here."""

_PATIENCE_S = 60.0
"""The longest wait for an event that must happen: a transport that hangs fails its test."""


def bytes_of(token: int) -> bytes:
    """The bytes of token ``token`` of a lease."""
    return bytes((token * 7 + i) % 251 for i in range(TOKEN_BYTES))


class TokenSource:
    """``KVSource`` of one layer: ``num_tokens`` tokens from ``first``, ``step`` in a piece.
    ``fails_at``: the piece that cannot be read. ``extra`` bytes are added to each piece."""

    def __init__(
        self,
        num_tokens: int,
        *,
        first: int = 0,
        step: int = 4,
        content: str = CONTENT,
        fails_at: int | None = None,
        extra: int = 0,
        layout: str = "",
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        self.content = content
        self.layout = layout
        self.num_read = 0
        self._tokens = range(first, first + num_tokens)
        self._step = step
        self._fails_at = fails_at
        self._extra = extra
        self._on_read = on_read

    def pieces(self, *, is_raw: bool) -> Iterator[Piece]:
        for first in self._tokens[:: self._step]:
            count = min(self._step, self._tokens.stop - first)
            yield Piece(first=first, num_tokens=count, first_layer=0, num_layers=1, is_raw=is_raw)

    def num_bytes(self, piece: Piece) -> int:
        mark = len(RAW_MARK) if piece.is_raw else 0
        return mark + piece.num_tokens * TOKEN_BYTES + self._extra

    def is_ready(self, piece: Piece) -> bool:
        return True

    def wait(self, piece: Piece) -> None:
        """Return at once: all bytes are there."""

    def read(self, piece: Piece, payload: memoryview) -> None:
        if self.num_read == self._fails_at:
            raise OSError("the memory is gone")
        self.num_read += 1
        self._on_read()
        tokens = range(piece.first, piece.first + piece.num_tokens)
        raw = RAW_MARK if piece.is_raw else b""
        payload[:] = raw + b"".join(map(bytes_of, tokens)) + bytes(self._extra)


class TokenSink:
    """``KVSink`` of one layer. ``before_write`` runs before each piece is taken."""

    def __init__(
        self,
        num_tokens: int,
        *,
        content: str = CONTENT,
        layout: str = "",
        before_write: Callable[[], None] = lambda: None,
    ) -> None:
        self.content = content
        self.layout = layout
        self.num_raw = 0
        self.carriers: set[Carrier] = set()
        self.tokens: dict[int, bytes] = {}
        self.is_closed = False
        self._num_tokens = num_tokens
        self._before_write = before_write

    def num_bytes(self, piece: Piece) -> int:
        last = piece.first + piece.num_tokens
        if piece.first < 0 or piece.num_tokens < 1 or last > self._num_tokens:
            raise InvalidArgument(f"{piece} is outside of 0..{self._num_tokens - 1}")
        return piece.num_tokens * TOKEN_BYTES + (len(RAW_MARK) if piece.is_raw else 0)

    def write(self, piece: Piece, payload: memoryview, carrier: Carrier) -> None:
        self._before_write()
        self.carriers.add(carrier)
        if self.is_closed:
            raise Forbidden("the lease takes nothing more")
        if piece.is_raw:
            assert payload[: len(RAW_MARK)] == RAW_MARK
            payload = payload[len(RAW_MARK) :]
            self.num_raw += 1
        for index in range(piece.num_tokens):
            found = bytes(payload[index * TOKEN_BYTES : (index + 1) * TOKEN_BYTES])
            self.tokens[piece.first + index] = found

    def holds(self, tokens: range) -> bool:
        """Whether it has these tokens and no others."""
        return self.tokens == {token: bytes_of(token) for token in tokens}


class SendEnds:
    """The ends of sends, in their order."""

    def __init__(self) -> None:
        self._ends: queue.SimpleQueue[SendResult] = queue.SimpleQueue()

    def __call__(self, sent: SendResult) -> None:
        self._ends.put(sent)

    def take(self) -> SendResult:
        return self._ends.get(timeout=_PATIENCE_S)

    @property
    def is_empty(self) -> bool:
        return self._ends.empty()


def target(receiver: KVTransport, *, lease: int = LEASE, key: bytes = KEY) -> SendTarget:
    return SendTarget(address=receiver.address, lease=lease, key=key, first=0)


class KVTransportSuite:
    """See the module docstring."""

    def make_transport(self) -> KVTransport:
        """A fresh transport, for one engine."""
        raise NotImplementedError("say how to make the transport under test")

    @pytest.fixture
    def pair(self) -> Iterator[tuple[KVTransport, KVTransport]]:
        sender, receiver = self.make_transport(), self.make_transport()
        yield sender, receiver
        sender.close()
        receiver.close()

    def refused(
        self, pair: tuple[KVTransport, KVTransport], source: TokenSource, sink: TokenSink, **to: int
    ) -> QuireError:
        """The error of a send that must fail and of which nothing may be written; the next one must
        succeed."""
        sender, receiver = pair
        receiver.accept(LEASE, KEY, sink)
        ends = SendEnds()
        sender.send(target(receiver, **to), source, ends)  # type: ignore[arg-type]
        error = ends.take().error
        assert error is not None
        assert sink.tokens == {}
        good = TokenSink(8)
        receiver.accept(LEASE + 1, KEY, good)
        sender.send(target(receiver, lease=LEASE + 1), TokenSource(8), ends)
        assert ends.take() == SendResult(8 * TOKEN_BYTES)
        assert good.holds(range(8))
        return error

    def test_addresses_differ(self, pair: tuple[KVTransport, KVTransport]) -> None:
        sender, receiver = pair
        assert sender.address
        assert sender.address != receiver.address

    @pytest.mark.parametrize(("num_tokens", "step"), [(1, 1), (10, 4), (9, 9), (0, 1), (700, 7)])
    def test_all_that_is_sent_arrives(
        self, pair: tuple[KVTransport, KVTransport], num_tokens: int, step: int
    ) -> None:
        sender, receiver = pair
        sink, ends = TokenSink(num_tokens), SendEnds()
        receiver.accept(LEASE, KEY, sink)
        sender.send(target(receiver), TokenSource(num_tokens, step=step), ends)
        sent = ends.take()
        assert sent == SendResult(num_tokens * TOKEN_BYTES)
        assert sink.holds(range(num_tokens))
        assert sent.transport == carried_by(sink.carriers), "both ends name the same"
        assert bool(sent.transport) is bool(num_tokens)

    @pytest.mark.parametrize(
        ("here", "there", "num_raw"), [("a", "a", 3), ("a", "b", 0), ("", "", 0), ("", "a", 0)]
    )
    def test_pieces_are_raw_between_equal_layouts_alone(
        self, pair: tuple[KVTransport, KVTransport], here: str, there: str, num_raw: int
    ) -> None:
        sender, receiver = pair
        sink, ends = TokenSink(10, layout=there), SendEnds()
        receiver.accept(LEASE, KEY, sink)
        sender.send(target(receiver), TokenSource(10, layout=here), ends)
        assert ends.take() == SendResult(10 * TOKEN_BYTES + num_raw * len(RAW_MARK))
        assert sink.holds(range(10))
        assert sink.num_raw == num_raw

    def test_several_senders_fill_one_lease(self, pair: tuple[KVTransport, KVTransport]) -> None:
        sender, receiver = pair
        third = self.make_transport()
        sink, ends = TokenSink(30), SendEnds()
        receiver.accept(LEASE, KEY, sink)
        for one, first in (sender, 10), (third, 0), (receiver, 20):
            one.send(target(receiver), TokenSource(10, first=first), ends)
        assert [ends.take() for _ in range(3)] == [SendResult(10 * TOKEN_BYTES)] * 3
        assert sink.holds(range(30))
        third.close()

    def test_what_was_sent_may_be_sent_again(self, pair: tuple[KVTransport, KVTransport]) -> None:
        sender, receiver = pair
        sink, ends = TokenSink(8), SendEnds()
        receiver.accept(LEASE, KEY, sink)
        for _ in range(2):
            sender.send(target(receiver), TokenSource(8), ends)
            assert ends.take().error is None
        assert sink.holds(range(8))

    def test_another_key_is_refused(self, pair: tuple[KVTransport, KVTransport]) -> None:
        for key in (OTHER_KEY, b"", KEY + b"k"):
            error = self.refused(pair, TokenSource(4), TokenSink(4), key=key)  # type: ignore[arg-type]
            assert isinstance(error, Forbidden)

    def test_an_unknown_lease_is_refused(self, pair: tuple[KVTransport, KVTransport]) -> None:
        error = self.refused(pair, TokenSource(4), TokenSink(4), lease=LEASE - 1)
        assert isinstance(error, Forbidden)

    def test_a_lease_that_is_still_to_come_is_waited_for(
        self, pair: tuple[KVTransport, KVTransport]
    ) -> None:
        """Leases open in the order of their numbers, and a sender may know one before it is
        open. Others that open meanwhile are not in the way."""
        sender, receiver = pair
        sink, ends = TokenSink(8), SendEnds()
        source = TokenSource(8)
        sender.send(target(receiver), source, ends)
        receiver.accept(LEASE - 1, OTHER_KEY, TokenSink(8))
        assert ends.is_empty
        assert not source.num_read
        receiver.accept(LEASE, KEY, sink)
        assert ends.take() == SendResult(8 * TOKEN_BYTES)
        assert sink.holds(range(8))

    def test_a_lease_that_was_passed_over_is_not_waited_for(
        self, pair: tuple[KVTransport, KVTransport]
    ) -> None:
        sender, receiver = pair
        ends = SendEnds()
        sender.send(target(receiver), TokenSource(8), ends)
        receiver.accept(LEASE + 1, KEY, TokenSink(8))
        assert isinstance(ends.take().error, Forbidden)

    def test_closing_the_sender_ends_a_send_that_waits_for_its_lease(
        self, pair: tuple[KVTransport, KVTransport]
    ) -> None:
        sender, receiver = pair
        ends = SendEnds()
        sender.send(target(receiver), TokenSource(8), ends)
        sender.close()
        assert isinstance(ends.take().error, TransferFailed)

    def test_a_lease_that_was_refused_is_unknown(
        self, pair: tuple[KVTransport, KVTransport]
    ) -> None:
        sender, receiver = pair
        sink, ends = TokenSink(4), SendEnds()
        receiver.accept(LEASE, KEY, sink)
        receiver.refuse(LEASE)
        receiver.refuse(LEASE)
        sender.send(target(receiver), TokenSource(4), ends)
        assert isinstance(ends.take().error, Forbidden)
        assert sink.tokens == {}

    def test_other_k_and_v_are_refused(self, pair: tuple[KVTransport, KVTransport]) -> None:
        error = self.refused(pair, TokenSource(4, content="other weights"), TokenSink(4))
        assert isinstance(error, InvalidArgument)
        assert "other weight" in error.message

    @pytest.mark.parametrize("first", [1, 4, 2**40])
    def test_a_range_outside_of_the_lease_is_refused(
        self, pair: tuple[KVTransport, KVTransport], first: int
    ) -> None:
        error = self.refused(pair, TokenSource(4, first=first), TokenSink(4))
        assert isinstance(error, InvalidArgument)

    def test_a_piece_of_another_size_is_refused(
        self, pair: tuple[KVTransport, KVTransport]
    ) -> None:
        self.refused(pair, TokenSource(4, extra=1), TokenSink(4))

    def test_an_address_without_an_engine(self, pair: tuple[KVTransport, KVTransport]) -> None:
        sender, receiver = pair
        ends = SendEnds()
        gone = target(receiver)
        receiver.close()
        receiver.close()
        for nowhere in (gone, SendTarget(address="nowhere", lease=LEASE, key=KEY, first=0)):
            sender.send(nowhere, TokenSource(4), ends)
            assert isinstance(ends.take().error, TransferFailed | InvalidArgument | Forbidden)

    def test_a_source_that_fails_ends_its_own_send_alone(
        self, pair: tuple[KVTransport, KVTransport]
    ) -> None:
        sender, receiver = pair
        sink, ends = TokenSink(8), SendEnds()
        receiver.accept(LEASE, KEY, sink)
        sender.send(target(receiver), TokenSource(8, fails_at=1), ends)
        assert isinstance(ends.take().error, TransferFailed)
        sender.send(target(receiver), TokenSource(8), ends)
        assert ends.take().error is None
        assert sink.holds(range(8))

    def test_a_closed_sink_ends_the_send(self, pair: tuple[KVTransport, KVTransport]) -> None:
        sender, receiver = pair
        ends = SendEnds()
        num_writes = 0

        def close_at_the_third() -> None:
            nonlocal num_writes
            num_writes += 1
            sink.is_closed = num_writes >= 3

        sink = TokenSink(4000, before_write=close_at_the_third)
        receiver.accept(LEASE, KEY, sink)
        sender.send(target(receiver), TokenSource(4000), ends)
        assert isinstance(ends.take().error, Forbidden)
        assert sink.holds(range(8))

    def test_a_sink_that_fails_ends_the_send(self, pair: tuple[KVTransport, KVTransport]) -> None:
        def fail() -> None:
            raise EngineFault("the pool is gone")

        error = self.refused(pair, TokenSource(4), TokenSink(4, before_write=fail))
        assert isinstance(error, EngineFault)

    def test_closing_the_sender_ends_its_sends(self, pair: tuple[KVTransport, KVTransport]) -> None:
        """Sends under way, sends that wait, and sends that come too late."""
        sender, receiver = pair
        ends, is_reading = SendEnds(), threading.Event()
        receiver.accept(LEASE, KEY, TokenSink(1 << 30))
        sources = [TokenSource(1 << 30, on_read=is_reading.set) for _ in range(20)]
        for source in sources:
            sender.send(target(receiver), source, ends)
        assert is_reading.wait(_PATIENCE_S)
        sender.close()
        num_read = [source.num_read for source in sources]
        sender.send(target(receiver), TokenSource(4), ends)
        for _ in range(21):
            assert isinstance(ends.take().error, TransferFailed)
        assert ends.is_empty
        assert [source.num_read for source in sources] == num_read

    def test_closing_the_receiver_ends_what_is_sent_to_it(
        self, pair: tuple[KVTransport, KVTransport]
    ) -> None:
        sender, receiver = pair
        ends, is_writing = SendEnds(), threading.Event()
        sink = TokenSink(1 << 30, before_write=is_writing.set)
        receiver.accept(LEASE, KEY, sink)
        sender.send(target(receiver), TokenSource(1 << 30), ends)
        assert is_writing.wait(_PATIENCE_S)
        sink.is_closed = True
        receiver.close()
        assert ends.take().error is not None
