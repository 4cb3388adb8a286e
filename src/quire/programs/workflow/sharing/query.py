"""``Sharing``: the pure primitives of one query, of which equal ones run once.

Owns what a result is known by: the digest of all that it depends on. Must not know what is pure;
runners do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from quire.core.errors import QuireError
from quire.programs.api import Api
from quire.programs.workflow.primitives import Primitive

_MAX_KEY_BYTES = 16 << 20


class Sharing:
    """``how``: of the primitives that were not carried out, because an equal one was: ``kept``, or
    ``in flight``."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.how: dict[str, str] = {}

    async def once(
        self, primitive: Primitive, depends: Any, compute: Callable[[], Awaitable[Any]]
    ) -> Any:
        """The result of an equal primitive of the tenant, or of ``compute``. ``depends``: all that
        the result depends on, as JSON values; what has no JSON is not shared.

        Raises:
            Exception: what ``compute`` raises; then another one that waits computes.
        """
        key = _digest(depends)
        if key is None:
            return await compute()
        how, value = await self._api.issuer.call("shared.begin", key=key)
        if how != "own":
            self.how[primitive.id] = how
            return _DECODER.decode(value)
        try:
            made = await compute()
            content = _encoded(made)
        except BaseException:
            await self._tell("shared.fail", key=key)
            raise
        if content is None:
            await self._tell("shared.fail", key=key)
        else:
            await self._tell("shared.end", key=key, value=content, num_bytes=len(content))
        return made

    async def identity(self, function: Callable[..., Any]) -> int | None:
        """A number that stands for ``function`` as long as it lives, and for no other one ever;
        None if it cannot have one."""
        number: int | None = await self._api.issuer.call("shared.function", function=function)
        return number

    async def _tell(self, name: str, **arguments: Any) -> None:
        try:
            await self._api.issuer.call(name, **arguments)
        except QuireError:  # the program has ended, and what it was computing with it
            return


_DECODER = msgspec.json.Decoder()


def _digest(depends: Any) -> bytes | None:
    try:
        content = msgspec.json.encode(depends, order="sorted")
    except (TypeError, ValueError, UnicodeError):
        return None
    return hashlib.sha256(content).digest() if len(content) <= _MAX_KEY_BYTES else None


def _encoded(value: Any) -> bytes | None:
    """None if it would come back as something else."""
    try:
        content = msgspec.json.encode(value)
        return content if _DECODER.decode(content) == value else None
    except (TypeError, ValueError, UnicodeError):
        return None
