"""Trait Store: keys, values and blobs of the tenant. Served by the node, without control."""

from __future__ import annotations

import base64
import json
from typing import Any

from quire.core.errors import InvalidArgument
from quire.core.traits import Trait
from quire.programs.api.queued import TraitFunctions

DEFAULT_STORE = "default"


class StoreFunctions(TraitFunctions):
    trait = Trait.STORE

    async def store_put(
        self, key: str, value: Any, *, store: str = DEFAULT_STORE, ttl_s: float | None = None
    ) -> None:
        """Store ``value``, any JSON value but null, under ``key`` for the programs of the tenant.

        ``store``: a namespace; the manifest names those that a program uses. ``ttl_s``: seconds
        after which the value is removed, by the node's clock (None: never). With a data directory
        (``quire serve --data-dir``) values survive a restart of the node.

        Raises:
            InvalidArgument: not JSON, null, over 1 MiB, or a key that is not printable text of at
                most 512 bytes.
            Forbidden: the manifest of this program does not name the store.
            QuotaExceeded: the tenant's stores hold too much.
        """
        await self._issuer.ask("store.put", store=store, key=key, value=_json(value), ttl_s=ttl_s)

    async def store_get(self, key: str, default: Any = None, *, store: str = DEFAULT_STORE) -> Any:
        """The value under ``key``, or ``default``."""
        text = await self._issuer.ask("store.get", store=store, key=key)
        return default if text is None else json.loads(text)

    async def store_delete(self, key: str, *, store: str = DEFAULT_STORE) -> bool:
        """Remove ``key``; returns whether it existed."""
        deleted: bool = await self._issuer.ask("store.delete", kind="value", store=store, key=key)
        return deleted

    async def store_list(
        self, prefix: str = "", *, store: str = DEFAULT_STORE, after: str = "", limit: int = 1000
    ) -> list[str]:
        """Keys that begin with ``prefix``, sorted, ``limit`` (at most 10,000) at a time.

        ``after``: the last key of the preceding list.
        """
        keys: list[str] = await self._issuer.ask(
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
        """Set ``key`` to ``value`` if its value is ``expected``, atomically; returns whether it was
        set.

        ``expected=None``: only if there is no such key. ``value=None``: delete the key. Values are
        equal if their JSON is, in any order of names; 1 and 1.0 differ.
        """
        done: bool = await self._issuer.ask(
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
        """Store bytes, at most 64 MiB (6 MiB from a sandboxed program). Errors as for
        ``store_put``.

        Blobs and values have separate keys.
        """
        if not isinstance(content, bytes | bytearray | memoryview):
            raise InvalidArgument(f"blob_put: a blob is bytes, not {type(content).__name__}")
        await self._issuer.ask(
            "blob.put", store=store, key=key, content=bytes(content), ttl_s=ttl_s
        )

    async def blob_get(self, key: str, *, store: str = DEFAULT_STORE) -> bytes | None:
        """The bytes under ``key``, or ``None``."""
        content = await self._issuer.ask("blob.get", store=store, key=key)
        # answers to a sandboxed program are JSON, with bytes as base64
        return base64.b64decode(content) if isinstance(content, str) else content

    async def blob_delete(self, key: str, *, store: str = DEFAULT_STORE) -> bool:
        """Remove the blob; returns whether it existed."""
        deleted: bool = await self._issuer.ask("store.delete", kind="blob", store=store, key=key)
        return deleted

    async def blob_list(
        self, prefix: str = "", *, store: str = DEFAULT_STORE, after: str = "", limit: int = 1000
    ) -> list[str]:
        """Keys of blobs; parameters as for ``store_list``."""
        keys: list[str] = await self._issuer.ask(
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
