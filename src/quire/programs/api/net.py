"""Trait Net: HTTP requests of a program. Served by the runtime, under its network policy."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.errors import Forbidden
from quire.core.traits import Trait
from quire.programs.api.issuer import Issuer
from quire.programs.api.queued import TraitFunctions
from quire.programs.services.network import HttpReply, Network


class Net(TraitFunctions):
    trait = Trait.NET

    def __init__(self, issuer: Issuer, network: Network | None = None) -> None:
        super().__init__(issuer)
        self._network = network

    async def http_get(self, url: str, headers: Mapping[str, str] | None = None) -> HttpReply:
        """GET ``url``. Any status is an answer; see ``HttpReply``.

        Raises:
            Forbidden: the policy does not allow the host, or the program has no network.
            InvalidArgument: not an http(s) URL, or an answer over the body limit.
            ProgramError: the request could not be made (connection, timeout).
        """
        return await self._allowed().request("GET", url, headers=headers)

    async def http_post(
        self, url: str, body: str | bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpReply:
        """POST ``body`` to ``url``; errors as with ``http_get``."""
        content = body.encode() if isinstance(body, str) else body
        return await self._allowed().request("POST", url, content=content, headers=headers)

    def _allowed(self) -> Network:
        if self._network is None:
            raise Forbidden("this program has no network: launch it with a network policy")
        return self._network


__all__ = ["Net"]
