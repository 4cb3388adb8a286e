"""The HTTP requests of a restartable guest: the node records them, the guest's process makes them.

A recorded answer is given to the guest without a request. Belongs to the link's loop. Must not know
how a request is made, nor what the guest may reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import count

from quire.core.errors import QuireError, from_record
from quire.programs.runtime.recorded_network import RecordedNetwork
from quire.programs.runtime.replay_port import ReplayPort
from quire.programs.sandbox import messages as m
from quire.programs.services.network import HttpReply, Network


class ProcessNetwork(Network):
    """HTTP through a guest's process. ``order`` sends a request there; ``answered`` takes its
    answer."""

    def __init__(self, order: Callable[[m.Fetch], None]) -> None:
        self._order = order
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[m.Fetched | m.FetchFailed]] = {}

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """See ``Network.request``."""
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        given = None if headers is None else dict(headers)
        assert method in ("GET", "POST")
        self._order(m.Fetch(number, "GET" if method == "GET" else "POST", url, content, given))
        try:
            event = await answer
        finally:
            del self._pending[number]
        if isinstance(event, m.FetchFailed):
            raise from_record(event.error)
        return HttpReply.made(event.text, event.status, event.headers, event.body)

    def answered(self, event: m.Fetched | m.FetchFailed) -> None:
        answer = self._pending.get(event.request)
        if answer is not None and not answer.done():
            answer.set_result(event)


class GuestRequests:
    """The requests of one incarnation of a guest, recorded through ``port``. ``order``: see
    ``ProcessNetwork``; ``tell`` sends the guest events."""

    def __init__(
        self,
        port: ReplayPort,
        order: Callable[[m.Fetch], None],
        tell: Callable[[m.GuestEvents], None],
    ) -> None:
        self._process = ProcessNetwork(order)
        self._network: RecordedNetwork = port.network(self._process)
        self._tell = tell
        self._under_way: set[asyncio.Task[None]] = set()
        self.answered = self._process.answered

    def start(self, call: m.Fetch) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_out(call))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _carry_out(self, call: m.Fetch) -> None:
        """Answer in the step in which the answer has come, as its order is recorded."""
        event: m.GuestEvents
        try:
            reply = await self._network.request(
                call.method, call.url, content=call.body, headers=call.headers
            )
        except QuireError as exc:
            event = m.FetchFailed(call.request, exc.record())
        else:
            event = m.Fetched(
                call.request, reply.status, dict(reply.headers), str(reply), reply.body
            )
        self._tell(event)

    def close(self) -> None:
        """Cancel all requests: the guest has ended."""
        for task in self._under_way:
            task.cancel()
