"""``Sharing``: shares the pure primitives of one query with equal ones of its tenant.

Owns the key of a result: the digest of everything that the result depends on. Must not know which
primitives are pure; the runners know it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from quire.core.errors import QuireError
from quire.programs.api import Api
from quire.programs.workflow.graphs.primitives import Primitive

_MAX_KEY_BYTES = 16 << 20


class Sharing:
    """``how``: the primitives that took the result of an equal one, which was ``kept`` or
    ``in flight``."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.how: dict[str, str] = {}

    async def once(
        self, primitive: Primitive, depends: Any, compute: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Return the result of an equal primitive of the tenant, or of ``compute``. ``depends``:
        all that the result depends on; if JSON cannot represent it, the result is not shared.

        Raises:
            Exception: what ``compute`` raises; then one of the waiting callers computes.
        """
        key = _digest(depends)
        if key is None:
            return await compute()
        how, value = await self._api.issuer.ask("shared.begin", key=key)
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
        """Return a number for this ``function`` that no other gets, even after the function is
        gone, or None if the function cannot have one."""
        number: int | None = await self._api.issuer.ask("shared.function", function=function)
        return number

    async def _tell(self, name: str, **arguments: Any) -> None:
        try:
            await self._api.issuer.ask(name, **arguments)
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
    """Encode ``value``, or return None if decoding would give a different value."""
    try:
        content = msgspec.json.encode(value)
        return content if _DECODER.decode(content) == value else None
    except (TypeError, ValueError, UnicodeError):
        return None
