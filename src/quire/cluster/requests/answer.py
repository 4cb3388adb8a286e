"""What a strategy returns: an answer on its way from an engine to the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quire.cluster.nodes.connection import AnswerHead, Sink
from quire.cluster.nodes.pool import NodeExchange


class RoutedAnswer(Protocol):
    """An answer that has begun at an engine; ``engine`` is the engine's name. The holder of an
    answer closes it; an answer that is closed before its end is cancelled at the engine."""

    @property
    def engine(self) -> str: ...
    @property
    def head(self) -> AnswerHead: ...

    async def read(self) -> bytes:
        """Return the next piece of the body, nothing at its end.

        Raises:
            EngineLost: the answer breaks off.
        """
        ...

    def pass_to(self, sink: Sink) -> None:
        """Give pieces to ``sink`` as they arrive while a ``read`` waits, instead of waking it. An
        answer may ignore this: then ``read`` returns all pieces."""
        ...

    def close(self) -> None:
        """End the answer. Idempotent."""
        ...


class NodeAnswer:
    """The answer of one exchange; ``on_close`` is called once."""

    def __init__(
        self, engine: str, head: AnswerHead, exchange: NodeExchange, on_close: Callable[[], None]
    ) -> None:
        self.engine = engine
        self.head = head
        self._exchange = exchange
        self._on_close: Callable[[], None] | None = on_close

    async def read(self) -> bytes:
        return await self._exchange.read()

    def pass_to(self, sink: Sink) -> None:
        self._exchange.pass_to(sink)

    def close(self) -> None:
        self._exchange.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()
