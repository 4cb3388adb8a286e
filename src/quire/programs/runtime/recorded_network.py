"""HTTP of a restartable program: recorded responses are returned when the program is run again.

Must not know why a program is run again, nor how a request is made.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import InvalidArgument, RequestInterrupted
from quire.programs.runtime.arrivals import ArrivalOrder
from quire.programs.runtime.replay_log import (
    Keep,
    Questions,
    RecordedQuestion,
    frozen_arguments,
    no_wait,
)
from quire.programs.services.network import HttpReply, HttpStream, Network

_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""Methods that have the same effect however often a request is made (RFC 9110, 9.2.2)."""


def _has_key(headers: Mapping[str, str] | None) -> bool:
    """Whether the other host knows a repeated request by its key."""
    return any(name.lower() == "idempotency-key" for name in headers or ())


def _interrupted(method: str, url: str) -> RequestInterrupted:
    return RequestInterrupted(
        f"{method} {url}: the program began again before the answer came, so the request may have "
        "been carried out: ask the host, or make it again; with a header Idempotency-Key it is "
        "made again by itself"
    )


class RecordedNetwork(Network):
    """HTTP with responses recorded in ``asked``: a request with a recorded response is not
    repeated. One that had no answer is repeated if that changes nothing more at the other host
    (``_REPEATABLE``, or an idempotency key); for any other the program gets ``RequestInterrupted``.
    Such a request is made when ``keep`` has returned: a router that begins the program again knows
    of it."""

    def __init__(
        self,
        network: Network,
        asked: list[RecordedQuestion],
        arrivals: ArrivalOrder,
        keep: Keep = no_wait,
    ) -> None:
        self._network = network
        self._keep = keep
        self._questions = Questions(asked, "request", arrivals)

    def end(self) -> None:
        """See ``Questions.end``."""
        self._questions.end()

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """See ``Network.request``."""
        what = (f"{method} {url}", content, frozen_arguments(headers))
        is_repeatable = method in _REPEATABLE or _has_key(headers)

        async def carry_out() -> HttpReply:
            if not is_repeatable:
                await self._keep()
            return await self._network.request(method, url, content=content, headers=headers)

        interrupted = None if is_repeatable else _interrupted(method, url)
        reply: HttpReply = await self._questions.ask(what, carry_out, interrupted)
        return reply

    async def open(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpStream:
        """Raise ``InvalidArgument``: streamed responses are not recorded."""
        raise _unstreamed(method, url)


class WholeAnswers(Network):
    """``network`` without streamed responses, for a program whose answers the node records."""

    def __init__(self, network: Network) -> None:
        self.request = network.request  # type: ignore[method-assign]

    async def open(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpStream:
        """See ``RecordedNetwork.open``."""
        raise _unstreamed(method, url)


def _unstreamed(method: str, url: str) -> InvalidArgument:
    return InvalidArgument(
        f"{method} {url}: a restartable program cannot stream a response: use http_get or "
        "http_post, or leave restartable=True out"
    )
