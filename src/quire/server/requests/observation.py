"""One generating request as its client saw it: its metrics and its log line.

Owns the times of a request's life (first token, each token, the end) and writes exactly one JSON
line for it. Must not know how chunks are formatted or delivered.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from quire.core.errors import QuireError
from quire.core.ids import ModelId, TenantId
from quire.programs.builtin import ChoiceChunk
from quire.server.requests.identity import CallIdentity
from quire.server.series.metrics import RequestMetrics

logger = logging.getLogger("quire.requests")

Outcome = Literal["finished", "aborted", "failed"]


@dataclass(frozen=True, slots=True)
class RequestLabels:
    """The properties of a request that are known at its start. ``session`` is the node's public id
    for it."""

    request_id: str
    route: str
    tenant: TenantId
    model: ModelId
    session: str
    identity: CallIdentity
    stream: bool
    num_prompt_tokens: int


class RequestObserver:
    """Follows one request. ``now_s`` is a monotonic clock in seconds."""

    def __init__(
        self,
        labels: RequestLabels,
        metrics: RequestMetrics,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._labels = labels
        self._metrics = metrics
        self._now_s = now_s
        self._started_s = now_s()
        self._first_s: float | None = None
        self._finish_reasons: Counter[str] = Counter()
        self.num_completion_tokens = 0
        self.num_cached_tokens = 0
        self._ended = False

    def on_chunk(self, chunk: ChoiceChunk) -> None:
        """Note that a chunk of any choice has arrived."""
        self.num_cached_tokens += chunk.num_cached_tokens
        if chunk.finish_reason is not None:
            self._finish_reasons[chunk.finish_reason] += 1
        if not chunk.token_ids:
            return
        self.num_completion_tokens += len(chunk.token_ids)
        if self._first_s is None:
            self._first_s = self._now_s()

    def end(
        self,
        outcome: Outcome,
        error: QuireError | None = None,
        reason: str = "",
        *,
        tokens_known: bool = True,
    ) -> None:
        """Note that the request is over. Idempotent: the first call counts.

        ``tokens_known``: the chunks have told all that was generated; without it the log line
        leaves the number open.
        """
        if self._ended:
            return
        self._ended = True
        elapsed_s = self._now_s() - self._started_s
        num_tokens = self.num_completion_tokens if tokens_known else None
        self._metrics.observe_end(
            self._labels.model,
            self._labels.route,
            outcome,
            num_prompt_tokens=self._labels.num_prompt_tokens,
            num_cached=self.num_cached_tokens,
            finish_reasons=self._finish_reasons,
        )
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", json.dumps(self._line(outcome, num_tokens, elapsed_s, error, reason)))

    def _line(
        self,
        outcome: Outcome,
        num_tokens: int | None,
        elapsed_s: float,
        error: QuireError | None,
        reason: str,
    ) -> dict[str, object]:
        labels, identity = self._labels, self._labels.identity
        first_s = None if self._first_s is None else round(self._first_s - self._started_s, 6)
        return {
            "event": "request",
            "outcome": outcome,
            "request_id": labels.request_id,
            "route": labels.route,
            "tenant": labels.tenant,
            "model": labels.model,
            "program": labels.session,
            "client_id": identity.client_id,
            "thread": identity.thread,
            "parent": identity.parent or identity.parent_thread,
            "hint": identity.hint,
            "priority": identity.priority,
            "stream": labels.stream,
            "prompt_tokens": labels.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "completion_tokens": num_tokens,
            "finish_reasons": dict(self._finish_reasons),
            "ttft_s": first_s,
            "elapsed_s": round(elapsed_s, 6),
            "error": error.code if error is not None else None,
            "reason": error.message if error is not None else reason or None,
        }
