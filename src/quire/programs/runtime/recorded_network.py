"""HTTP of a restartable program: recorded responses are returned when the program is run again.

Must not know why a program is run again, nor how a request is made.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import InvalidArgument
from quire.programs.runtime.arrivals import ArrivalOrder
from quire.programs.runtime.replay_log import Questions, RecordedQuestion, frozen_arguments
from quire.programs.services.network import HttpReply, HttpStream, Network


class RecordedNetwork(Network):
    """HTTP with responses recorded in ``asked``: a request with a recorded response is not
    repeated."""

    def __init__(
        self, network: Network, asked: list[RecordedQuestion], arrivals: ArrivalOrder
    ) -> None:
        self._network = network
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
        reply: HttpReply = await self._questions.ask(
            what,
            lambda: self._network.request(method, url, content=content, headers=headers),
        )
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
        raise InvalidArgument(
            f"{method} {url}: a restartable program cannot stream a response: use http_get or "
            "http_post, or leave restartable=True out"
        )
