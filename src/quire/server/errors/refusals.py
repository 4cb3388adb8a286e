"""Writes one line of the log for each request that was answered with an error and has no
``RequestObserver``, and counts those that were refused before any work began.

The client learns the reason from the answer; the operator would otherwise see nothing. A request
whose program has begun and failed was not refused. Must not know why a request may be refused.
"""

from __future__ import annotations

import json
import logging
from typing import Protocol

from starlette.types import Scope

logger = logging.getLogger("quire.requests")

_CLIENT_HAS_LEFT = 499
_MAX_PATH_CHARS = 200
_MAX_REASON_CHARS = 2000


def note(scope: Scope, code: str | None, message: str) -> None:
    """Note the error with which the request is about to be answered."""
    scope["state"]["refusal"] = code, message


def mark_begun(scope: Scope) -> None:
    """Note that the request has an observer from now on, which logs its end."""
    scope["state"]["has_begun"] = True


def mark_launched(scope: Scope, program: str) -> None:
    """Note that the program of the request runs: an error from now on is its failure."""
    scope["state"]["program"] = program


def mark_usual(scope: Scope) -> None:
    """Note that an error status answers what its caller asks again and again, and is no news."""
    scope["state"]["is_usual"] = True


class RefusalCounter(Protocol):
    """Counts a refusal; ``code`` is the stable name of the error, if it has one."""

    def observe_refusal(self, status: int, code: str | None) -> None: ...


def tell_refusal(scope: Scope, status: int, counter: RefusalCounter) -> None:
    """Log that the request was answered with the error status ``status``, unless that is usual, and
    count it if it was refused."""
    state = scope["state"]
    if state.get("has_begun") or state.get("is_usual"):
        return
    code, reason = state.get("refusal", (None, None))
    if "program" not in state:
        counter.observe_refusal(status, code)
    if logger.isEnabledFor(logging.INFO):
        _log(scope, status, code, reason)


def _log(scope: Scope, status: int, code: str | None, reason: str | None) -> None:
    state = scope["state"]
    client = scope.get("client")
    program = state.get("program")
    has_left = status == _CLIENT_HAS_LEFT
    line = {
        "event": "request",
        "outcome": "refused" if program is None else "aborted" if has_left else "failed",
        "request_id": state["request_id"],
        "route": scope["path"][:_MAX_PATH_CHARS],
        "method": scope.get("method"),
        "client": client[0] if client else None,
        "tenant": state.get("tenant"),
        "program": program,
        "status": status,
        "error": code,
        "reason": None if reason is None else reason[:_MAX_REASON_CHARS],
    }
    logger.info("%s", json.dumps(line))
