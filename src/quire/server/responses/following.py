"""Sends a background response to a client that follows it; its disconnect does not affect the
response.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from quire.server.answers.event_stream import EventStream


class FollowedResponse(EventStream):
    """Sends the events of ``run`` (``BackgroundRun.follow``) as they are made; see ``EventStream``
    for ``write_timeout_s``."""

    def __init__(
        self,
        run: AsyncGenerator[bytes, None],
        *,
        write_timeout_s: float,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(write_timeout_s, headers)
        self._run = run

    def events(self) -> AsyncGenerator[bytes, None]:
        return self._run
