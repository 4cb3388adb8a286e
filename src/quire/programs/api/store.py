"""Trait Store: keys, values and blobs of the tenant. Served by the node, without control."""

from __future__ import annotations

import base64
import json
from typing import Any

from quire.core.errors import InvalidArgument
from quire.core.traits import Trait
from quire.programs.api.queued import TraitFunctions

DEFAULT_STORE = "default"


class Store(TraitFunctions):
    trait = Trait.STORE

    async def store_put(
        self, key: str, value: Any, *, store: str = DEFAULT_STORE, ttl_s: float | None = None
    ) -> None:
        """Keep ``value``, any JSON value but null, under ``key`` for the programs of the tenant.

        ``store``: a namespace; a sandboxed program names those that it uses in its manifest.
        ``ttl_s``: seconds after which it is gone, by the node's clock (None: never). With a data
        directory (``quire serve --data-dir``) the node keeps it over restarts.

        Raises:
            InvalidArgument: not JSON, null, over 1 MiB, or a key that is no printable text of at
                most 512 bytes.
            Forbidden: the manifest of this (sandboxed) program does not name the store.
            QuotaExceeded: the tenant's stores hold too much.
        """
        await self._issuer.call("store.put", store=store, key=key, value=_json(value), ttl_s=ttl_s)

    async def store_get(self, key: str, default: Any = None, *, store: str = DEFAULT_STORE) -> Any:
        """The value under ``key``, ``default`` without one."""
        text = await self._issuer.call("store.get", store=store, key=key)
        return default if text is None else json.loads(text)

    async def store_delete(self, key: str, *, store: str = DEFAULT_STORE) -> bool:
        """Forget ``key``; whether it was there."""
        deleted: bool = await self._issuer.call("store.delete", kind="value", store=store, key=key)
        return deleted

    async def store_list(
        self, prefix: str = "", *, store: str = DEFAULT_STORE, after: str = "", limit: int = 1000
    ) -> list[str]:
        """Keys that begin with ``prefix``, in order, ``limit`` (at most 10,000) at a time.

        ``after``: the last key of the list before.
        """
        keys: list[str] = await self._issuer.call(
            "store.list", kind="value", store=store, prefix=prefix, after=after, limit=limit
        )
        return keys

    async def store_compare_and_set(
        self,
        key: str,
        expected: Any,
        value: Any,
        *,
        store: str = DEFAULT_STORE,
        ttl_s: float | None = None,
    ) -> bool:
        """Set ``key`` to ``value`` if it is ``expected`` now, in one step; whether it was.

        ``expected=None``: if there is no such key. ``value=None``: delete it. Values are equal if
        their JSON is, whatever the order of their names; 1 and 1.0 differ.
        """
        done: bool = await self._issuer.call(
            "store.compare_and_set",
            store=store,
            key=key,
            expected=None if expected is None else _json(expected),
            value=None if value is None else _json(value),
            ttl_s=ttl_s,
        )
        return done

    async def blob_put(
        self, key: str, content: bytes, *, store: str = DEFAULT_STORE, ttl_s: float | None = None
    ) -> None:
        """Keep bytes: 64 MiB at most, for a sandboxed program 6 MiB. Errors as with ``store_put``.

        Blobs and values have keys of their own.
        """
        if not isinstance(content, bytes | bytearray | memoryview):
            raise InvalidArgument(f"blob_put: a blob is bytes, not {type(content).__name__}")
        await self._issuer.call(
            "blob.put", store=store, key=key, content=bytes(content), ttl_s=ttl_s
        )

    async def blob_get(self, key: str, *, store: str = DEFAULT_STORE) -> bytes | None:
        """The bytes under ``key``, ``None`` without any."""
        content = await self._issuer.call("blob.get", store=store, key=key)
        # a sandboxed program's answers are JSON, which says bytes as base64
        return base64.b64decode(content) if isinstance(content, str) else content

    async def blob_delete(self, key: str, *, store: str = DEFAULT_STORE) -> bool:
        """Forget the blob; whether it was there."""
        deleted: bool = await self._issuer.call("store.delete", kind="blob", store=store, key=key)
        return deleted

    async def blob_list(
        self, prefix: str = "", *, store: str = DEFAULT_STORE, after: str = "", limit: int = 1000
    ) -> list[str]:
        """Keys of blobs; see ``store_list``."""
        keys: list[str] = await self._issuer.call(
            "store.list", kind="blob", store=store, prefix=prefix, after=after, limit=limit
        )
        return keys


def _json(value: Any) -> str:
    if value is None:
        raise InvalidArgument("null cannot be stored: it means that there is no value")
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidArgument(f"the value is not JSON: {exc}") from exc
