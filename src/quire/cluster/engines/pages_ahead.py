"""Sends the pages of texts from one engine to another before they are needed there.

Owns what happens when they cannot be sent: the other engine computes them. Must not know whose
texts they are.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable

import msgspec

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.request import COMPLETIONS, RawHeaders, Request
from quire.core.errors import QuireError

logger = logging.getLogger(__name__)

_HEADERS: RawHeaders = [(b"content-type", b"application/json")]


class PromptPrefix(msgspec.Struct, frozen=True):
    """A prefix of a prompt: ``tokens`` of ``model`` that fill whole pages, from the first token
    on."""

    model: str | None
    tokens: list[int]


async def send_ahead(
    texts: Iterable[PromptPrefix],
    source: Engine,
    target: Engine,
    limit_s: float,
    headers: RawHeaders = _HEADERS,
) -> int:
    """Have ``source`` send what the prefix cache of ``target`` lacks of ``texts``; return how many
    tokens have arrived within ``limit_s``. ``headers``: those of the client whose texts they
    are."""
    num_sent = 0
    try:
        async with asyncio.timeout(limit_s):
            for text in texts:
                num_sent += await _sent(text, source, target, headers)
    except TimeoutError:
        logger.warning(
            "pages of %s are not all at %s within %g s: the rest is computed there",
            source.name,
            target.name,
            limit_s,
        )
    return num_sent


async def _sent(text: PromptPrefix, source: Engine, target: Engine, headers: RawHeaders) -> int:
    body = msgspec.json.encode({"model": text.model, "prompt": text.tokens})
    name = f"ahead-{uuid.uuid4().hex}"
    request = Request("POST", COMPLETIONS, headers, body, name)
    try:
        received = await target.prep_recv(request, len(text.tokens))
        if received.matched_len >= received.end:
            return 0
        sent = await source.remote_send(
            request, received, begin=received.matched_len, end=received.end
        )
        await target.settle(request, received)
        return sent.num_tokens
    except QuireError as exc:
        logger.warning(
            "pages go not from %s to %s and are computed there: %s", source.name, target.name, exc
        )
        return 0
    finally:
        request.work.end()
