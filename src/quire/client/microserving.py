"""``Microserving``: the three calls by which K and V move between engines, on one node.

A router is written with these: ``prep_recv`` on the node that is to receive, ``remote_send`` on the
node that has or computes the K and V, ``start_generate`` on the node that is to answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from quire.client.wire import (
    FOR_EVER,
    TIMEOUT,
    answer_of,
    key_headers,
    node_url,
    streamed,
    unreachable,
)
from quire.core.exchange import CLUSTER_KEY_HEADER

Prompt = str | Sequence[int]
"""A text, or token ids."""


class Microserving:
    """The microserving calls of the node at ``url``, as a member of its cluster. An async context
    manager; belongs to one event loop.

    ``cluster_key``: the key in the node's ``--cluster-key-file``; ``api_key``: the tenant's. Every
    method raises an error response as an exception of ``quire.core.errors``, and ``EngineLost`` if
    no node answers.
    """

    def __init__(self, url: str, cluster_key: str, api_key: str | None = None) -> None:
        """Make a client, which connects at the first request.

        Raises:
            ConfigError: ``url`` is no HTTP address.
        """
        self._url = node_url(url)
        headers = {**key_headers(api_key), CLUSTER_KEY_HEADER: cluster_key}
        self._http = httpx.AsyncClient(
            base_url=f"{self._url}/v1/microserving", headers=headers, timeout=TIMEOUT
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Leases stay until they end."""
        await self._http.aclose()

    async def prep_recv(self, prompt: Prompt, end: int = -1, **fields: Any) -> dict[str, Any]:
        """Prepare to receive the K and V of ``prompt[:end]``. Returns ``kv_addr_info``,
        ``matched_len`` (how many tokens are there already), ``num_tokens`` (how many are to come),
        ``end``, ``expires_in_s`` and ``rank``.

        ``fields``: ``model``, ``images``, ``ttl_s``, ``request_id`` and those of sessions.
        """
        return await self._call(
            "POST", "/prep_recv", {"prompt": _sent(prompt), "end": end} | fields
        )

    async def remote_send(
        self, prompt: Prompt, kv_addr_info: str, begin: int, end: int = -1, **fields: Any
    ) -> dict[str, Any]:
        """Send the K and V of ``prompt[begin:end]`` to the lease of ``kv_addr_info``; what the node
        does not have is computed. Returns ``num_tokens``, ``num_bytes`` and ``elapsed_s`` when
        everything has arrived.

        ``fields``: ``model``, ``images``, ``recv_rank``, ``request_id`` and those of sessions.
        """
        body = {"prompt": _sent(prompt), "kv_addr_info": kv_addr_info, "begin": begin, "end": end}
        return await self._call("POST", "/remote_send", body | fields)

    def start_generate(
        self,
        prompt: Prompt,
        begin: int = 0,
        kv_addr_info: str | None = None,
        *,
        num_generated: int = 0,
        **fields: Any,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Compute ``prompt[begin:]`` and generate; yield the chunks of a streamed completion. The
        tokens before ``begin`` come from the lease, or from the prefix cache.

        ``num_generated``: how many of the prompt's last tokens were sampled before. ``fields``:
        ``images``, ``request_id`` and all of ``/v1/completions``. If the connection was lost, the
        same call with the same ``request_id`` yields the same answer from its beginning.
        """
        body: dict[str, Any] = {"prompt": _sent(prompt), "begin": begin}
        body |= {"num_generated": num_generated, "kv_addr_info": kv_addr_info}
        body |= {**fields, "stream": True}
        return streamed(self._http, self._url, "/start_generate", body)

    async def renew(self, kv_addr_info: str, ttl_s: float) -> dict[str, Any]:
        """Let the lease end ``ttl_s`` seconds from now. Returns a new ``kv_addr_info``, and
        ``expires_in_s``."""
        body = {"kv_addr_info": kv_addr_info, "ttl_s": ttl_s}
        return await self._call("POST", "/leases/renew", body)

    async def cancel(self, kv_addr_info: str, *, when_arrived: bool = False) -> None:
        """End the lease, in whatever state it is."""
        body = {"kv_addr_info": kv_addr_info, "when_arrived": when_arrived}
        await self._call("DELETE", "/leases", body)

    async def pin(
        self, prompt: Prompt, price: float, ttl_s: float, **fields: Any
    ) -> dict[str, Any]:
        """Have what the node has cached of ``prompt`` evicted after everything that has a lower
        ``price``, for ``ttl_s`` seconds; 0 takes the price back. Returns ``num_tokens``, the number
        of tokens that have it: those that are cached, up to the share for prices."""
        body = {"prompt": _sent(prompt), "price": price, "ttl_s": ttl_s}
        return await self._call("POST", "/pin", body | fields)

    async def engines(self) -> list[dict[str, Any]]:
        """Return the node's engines: the kind of their K and V, their free memory, and their
        load."""
        return list((await self._call("GET", "/engines"))["engines"])

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        timeout = FOR_EVER if path == "/remote_send" else TIMEOUT
        try:
            answer = await self._http.request(method, path, json=body, timeout=timeout)
        except httpx.TransportError as exc:
            raise unreachable(self._url, exc) from exc
        return answer_of(self._url, answer)


def _sent(prompt: Prompt) -> str | list[int]:
    return prompt if isinstance(prompt, str) else list(prompt)
