"""One node as a router sees it: how to ask it, whether it lives, and the figures that it has
reported.

Owns the form of a request on its way to the node. Must not know which node is asked for what.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import dataclass

from quire.cluster.nodes.addresses import NodeAddress
from quire.cluster.nodes.channel import NodeChannel
from quire.cluster.nodes.lane import Lane
from quire.cluster.nodes.liveness import Hysteresis, Liveness
from quire.cluster.nodes.pool import ConnectionPool, NodeExchange
from quire.server.microserving.channel_frames import CHANNEL_HEADER

_OWN_HEADERS = frozenset(
    {
        b"host",
        b"content-length",
        b"expect",
        b"origin",  # the router has checked it; a node would take it for another site's
        # these belong to a connection, not to the request
        b"connection",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        CHANNEL_HEADER.encode(),  # only the router's own
    }
)
"""Headers of a client that are not passed on."""


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """The figures that a node has reported last. ``epoch`` grows with each start of an engine.
    ``token_bytes``: bytes of K and V of one token; ``prompt_token_s``: time to compute one token of
    a prompt, None if it is not known yet. If the node has several engines, both are those of the
    engine where they are largest."""

    models: tuple[str, ...] = ()
    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    epoch: int = 0
    token_bytes: int = 0
    prompt_token_s: float | None = None


class RoutedNode:
    """A node behind the router. ``node_key``: the API key that requests to it carry in place of the
    client's, if any. ``cluster_headers`` prove that the router knows the cluster's key; without
    them there is no channel."""

    def __init__(
        self,
        address: NodeAddress,
        *,
        node_key: str | None = None,
        hysteresis: Hysteresis | None = None,
        cluster_headers: Mapping[str, str] | None = None,
    ) -> None:
        self.address = address
        self.name = address.name
        self.liveness = Liveness(hysteresis)
        self.pool = ConnectionPool(address)
        self.channel = (
            NodeChannel(address.name, self.ask, cluster_headers) if cluster_headers else None
        )
        self.figures = NodeFigures()
        self.unready_models = frozenset[str]()
        """Models that none of the node's engines can serve now."""
        self.serves_none = False
        """Whether no engine of the node can serve its model now."""
        self.num_others = 0
        """Requests of other clients that the node had when it was asked last."""
        self.on_change: Callable[[], object] = lambda: None
        """Called when the state of ``liveness`` or what the node's engines can serve has
        changed."""
        self.is_draining = False
        """Whether the operator of the router wants the node empty."""
        self._num_outstanding = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._key = None if node_key is None else f"Bearer {node_key}".encode()

    @property
    def num_outstanding(self) -> int:
        """Number of this router's requests that the node has not finished."""
        return self._num_outstanding

    def began(self) -> None:
        """Count a piece of work that the node receives; ``ended`` follows."""
        self._num_outstanding += 1
        self._is_idle.clear()

    def ended(self) -> None:
        self._num_outstanding -= 1
        if not self._num_outstanding:
            self._is_idle.set()

    async def wait_idle(self) -> None:
        """Wait until the node has no work of this router."""
        while self._num_outstanding:
            await self._is_idle.wait()

    @property
    def load(self) -> int:
        return self.num_outstanding + self.num_others

    @property
    def takes_work(self) -> bool:
        return self.liveness.state == "ready" and not self.is_draining

    def takes_work_for(self, model: str | None) -> bool:
        """Return whether the node ``serves`` the model, and an engine of it takes new work. For
        ``None``, which may be any of its models, all of them must be ready."""
        if not (self.takes_work and self.serves(model)) or self.lacks_engine_for(model):
            return False
        return model is not None or not self.unready_models

    @property
    def may_soon_serve(self) -> bool:
        """Whether the node has not been probed yet, or has just said that its engines are lost."""
        return self.liveness.state == "unknown" or (self.takes_work and self.serves_none)

    def lacks_engine_for(self, model: str | None) -> bool:
        """Return whether the node has said that no engine of it can serve the model now. For
        ``None``: that none can serve any of its models."""
        return self.serves_none or model in self.unready_models

    def serves(self, model: str | None) -> bool:
        """Return whether the node may be asked for ``model``: also if it has not reported its
        models yet."""
        return model is None or not self.figures.models or model in self.figures.models

    def told(self, figures: NodeFigures) -> None:
        self.figures = figures
        self.num_others = max(0, figures.num_running + figures.num_waiting - self.num_outstanding)

    async def ask(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: bytes | AsyncIterable[bytes] = b"",
        *,
        length: int | None = None,
        may_repeat: bool = True,
        is_stream: bool = False,
    ) -> NodeExchange:
        """Send a request; the answer's head has arrived when this returns.

        ``length``: the length of a ``body`` in pieces, in bytes (None: not known). ``may_repeat``:
        the request may reach the node twice. ``is_stream``: the answer is to be a stream of events,
        which may arrive over the channel.

        Raises:
            EngineLost: the node cannot be reached, or ends the connection before it answers.
        """
        if isinstance(body, bytes):
            length = len(body)
            pieces: bytes | AsyncIterable[bytes] = body
        else:
            pieces = body if length is not None else _chunked(body)
        has_body = method not in ("GET", "HEAD", "DELETE") or bool(length)
        lane = self.channel.lane() if is_stream and self.channel is not None else None
        head = self._head(method, target, headers, length, has_body=has_body, lane=lane)
        return await self.pool.send(
            head, pieces, may_repeat=may_repeat, is_head=method == "HEAD", lane=lane
        )

    def _head(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[bytes, bytes]],
        length: int | None,
        *,
        has_body: bool,
        lane: Lane | None,
    ) -> bytes:
        lines = [f"{method} {target} HTTP/1.1\r\nhost: {self.address.netloc}\r\n".encode()]
        for name, value in headers:
            if name not in _OWN_HEADERS and not (self._key and name in _KEYS):
                lines += (name, b": ", value, b"\r\n")
        if self._key:
            lines += (b"authorization: ", self._key, b"\r\n")
        if lane is not None:
            lines.append(b"%b: %b\r\n" % lane.header)
        if has_body and length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        elif has_body:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)


_KEYS = (b"authorization", b"x-api-key")


async def _chunked(body: AsyncIterable[bytes]) -> AsyncIterable[bytes]:
    async for piece in body:
        if piece:
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"
