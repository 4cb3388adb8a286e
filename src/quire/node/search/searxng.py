"""``SearxngSearch``: the JSON answers of a SearXNG server (or its ancestor searx) as results.

Owns the bounds of what a server's answer may be. It is reached at the operator's address alone: no
query and no answer names another one, and addresses in results are never fetched. Errors go to
tenants, who need not know that address; the log has it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx

from quire.core.errors import (
    ConfigError,
    EngineFault,
    EngineLost,
    InvalidArgument,
    ProgramError,
)
from quire.node.fault_log import FaultLog
from quire.programs.search import SearchResult
from quire.programs.search.engine import MAX_ADDRESS_CHARS, MAX_TEXT_CHARS, MAX_TITLE_CHARS
from quire.programs.services.network import HttpReply, Network, NetworkPolicy, new_client

logger = logging.getLogger(__name__)

TIMEOUT_S = 15.0
MAX_ANSWER_BYTES = 4 << 20
MAX_PAGES = 4
"""The most pages that are requested for one query, if a page has fewer results than are wanted."""
MAX_AT_ONCE = 8
"""The most requests to the server at the same time."""
Row = dict[str, Any]
"""One result as the server sends it."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_OPERATORS = "!?:<&"
"""Before a word these choose engines, languages or time limits of the server, or leave it."""
_LATER = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


class _Answer(NamedTuple):
    """A page of results. ``silent``: the server's engines that have not answered, and why."""

    rows: list[Row]
    silent: str


class SearxngSearch:
    """See ``SearchEngine``. ``address``: that of the server, as a browser opens it; a user and
    password in it are sent as basic authentication.

    Raises:
        ConfigError: not an address.
    """

    name = "searxng"
    at_once = MAX_AT_ONCE

    def __init__(self, address: str, client: httpx.AsyncClient | None = None) -> None:
        try:
            url = httpx.URL(address)
        except httpx.InvalidURL as exc:
            raise ConfigError(f"--search {address!r} is not a URL: {exc}") from exc
        if not url.host or url.query or url.fragment:
            raise ConfigError(
                f"--search {_shown(url)}: give the address of the server alone, such as "
                "http://127.0.0.1:8888"
            )
        self._faults = FaultLog(logger, f"the search server {_shown(url)}")
        self._url = url.copy_with(path=url.path.rstrip("/") + "/search")
        self._client = client or new_client()
        policy = NetworkPolicy(
            hosts=(url.host,),
            timeout_s=TIMEOUT_S,
            max_body_bytes=MAX_ANSWER_BYTES,
            max_redirects=0,
        )
        self._network = Network(self._client, policy)

    async def search(self, query: str, top_k: int) -> list[SearchResult]:
        found: dict[tuple[str, str], SearchResult] = {}
        asked = plain_query(query)
        if not asked:
            return []
        for page in range(1, MAX_PAGES + 1):
            before = len(found)
            answer = await self._page(asked, page)
            for result in _results(answer.rows, first=before):
                found.setdefault((result.address, result.text), result)
            if answer.silent and not found:
                raise self._lost(
                    f"finds nothing, and engines of it do not answer ({answer.silent}): try again, "
                    "or look at its log"
                )
            if len(found) >= top_k or len(found) == before:
                break
        return list(found.values())[:top_k]

    async def _page(self, query: str, page: int) -> _Answer:
        params = {"q": query, "format": "json", "pageno": str(page)}
        asked = self._url.copy_merge_params(params)
        reply = await self._reply(str(asked))
        self._check(reply)
        answer = await asyncio.to_thread(self._decoded, reply.body)
        self._faults.works()
        return answer

    async def _reply(self, url: str) -> HttpReply:
        try:
            return await self._network.request("GET", url, headers={"accept": "application/json"})
        except ProgramError as exc:
            cause = exc.__cause__
            if cause is None:
                raise self._fault(
                    "redirects, or sends what cannot be decompressed: give the address of a "
                    "SearXNG server to --search, or the one that it redirects to"
                ) from exc
            is_late = isinstance(cause, TimeoutError)
            why = f"no answer within {TIMEOUT_S:g} s" if is_late else "no connection to it"
            raise self._lost(
                f"cannot be used now ({why}): check that it runs and can be reached, then try "
                "again; the node's log says more",
                why if is_late else str(cause),
                waited_s=TIMEOUT_S if is_late else 0.0,
            ) from exc
        except InvalidArgument as exc:
            raise self._fault(
                f"answers more than {MAX_ANSWER_BYTES} bytes, or in no known encoding: give the "
                "address of a SearXNG server to --search"
            ) from exc

    def _check(self, reply: HttpReply) -> None:
        status = reply.status
        if status in _LATER or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise self._lost(f"answers {status}: try again, or look at its log")
        if status == HTTPStatus.FORBIDDEN:
            raise self._fault(
                "answers 403: name json among its search.formats in settings.yml, and let this "
                "node through its limiter"
            )
        if status != HTTPStatus.OK:
            raise self._fault(f"answers {status}: give its address to --search, with its path")

    def _decoded(self, body: bytes) -> _Answer:
        try:
            # not msgspec: half a surrogate pair in one result must not damage the others
            answer = json.loads(body)
            rows = answer["results"]
            silent = answer.get("unresponsive_engines") or []
            if not isinstance(rows, list) or not isinstance(silent, list):
                raise TypeError("results and unresponsive_engines are lists")
        except (ValueError, TypeError, KeyError, RecursionError) as exc:
            raise self._fault(
                f"does not answer with search results in JSON ({type(exc).__name__}: {exc}): give "
                "the address of a SearXNG server to --search, and name json among its "
                "search.formats"
            ) from exc
        told = _plain(", ".join(filter(None, map(_written, silent))), MAX_TITLE_CHARS)
        return _Answer([row for row in rows if isinstance(row, dict)], told)

    def _fault(self, text: str) -> EngineFault:
        self._faults.fails(text)
        return EngineFault(f"the search server {text}")

    def _lost(self, text: str, why: str = "", waited_s: float = 0.0) -> EngineLost:
        self._faults.fails(why or text)
        return EngineLost(f"the search server {text}", waited_s=waited_s)

    async def close(self) -> None:
        await self._client.aclose()


def plain_query(query: str) -> str:
    """``query`` in one line, without what SearXNG would read as a command of its user."""
    words = (word.lstrip(_OPERATORS) for word in _CONTROL.sub(" ", query).split())
    return " ".join(word for word in words if word)


def _results(rows: Iterable[Row], first: int) -> Iterable[SearchResult]:
    """The results of the rows that have a text. Without a score, earlier ones are better.
    ``first``: how many results came before."""
    for place, row in enumerate(rows, first + 1):
        text = _plain(row.get("content"), MAX_TEXT_CHARS)
        title = _plain(row.get("title"), MAX_TITLE_CHARS)
        if text or title:
            address = _plain(row.get("url"), MAX_ADDRESS_CHARS)
            yield SearchResult(title, address, text or title, _score(row.get("score"), place))


def _written(silent: Any) -> str:
    """One engine that has not answered: mostly its name and the reason."""
    parts = silent if isinstance(silent, list) else [silent]
    return ": ".join(one for one in parts if isinstance(one, str))


def _score(given: Any, place: int) -> float:
    if isinstance(given, int | float) and not isinstance(given, bool):
        with suppress(OverflowError):  # an integer may have any number of digits
            if math.isfinite(given):
                return float(given)
    return 1 / place


def _plain(given: Any, most: int) -> str:
    """``given`` as a text that can be shown and encoded; empty if it is no text."""
    if not isinstance(given, str):
        return ""
    return _CONTROL.sub(" ", given[: 2 * most]).strip()[:most]


def _shown(url: httpx.URL) -> str:
    """The address without user and password."""
    return str(url.copy_with(username=None, password=None) if url.userinfo else url)
