"""Watches one node: probes its health, and asks for its models and figures.

Owns when a node is asked. Must not know what follows from its state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from quire.cluster.nodes.complaints import Complaints
from quire.cluster.nodes.node import NodeFigures, RoutedNode
from quire.core.errors import UNREADABLE, EngineLost

logger = logging.getLogger(__name__)

_MAX_BYTES = 4 << 20
_READY = "ok"
_DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """When a node is asked. It is probed every ``interval_s``; a probe without an answer within
    ``timeout_s`` fails. Its models are read when it starts and every ``models_s``."""

    interval_s: float = 1.0
    timeout_s: float = 3.0
    models_s: float = 30.0


class _Row(msgspec.Struct):
    """The figures of one engine, of the answer of a node."""

    epoch: int
    running: int
    waiting: int
    num_blocks: int
    free_blocks: int
    token_bytes: int = 0
    prompt_token_s: float | None = None


class _Model(msgspec.Struct):
    """One model of the list of a node."""

    id: str


class _Unhealthy(EngineLost):
    """The node answers that it has failed; its running exchanges are left to end as they do."""


class NodeWatch:
    """Probes ``node``. ``cluster_headers`` are needed to read its figures; without the cluster's
    key there are none."""

    def __init__(
        self,
        node: RoutedNode,
        times: WatchTimes,
        cluster_headers: Mapping[str, str] | None = None,
    ) -> None:
        self._node = node
        self._times = times
        self._cluster = [
            (name.encode(), value.encode()) for name, value in (cluster_headers or {}).items()
        ]
        self._models_until_s = 0.0
        self._suspicion = asyncio.Event()
        self._complaints = Complaints(f"node {node.name} tells no figures")

    def suspect(self) -> None:
        """Have the node probed now: a request has lost it."""
        self._suspicion.set()

    async def run(self) -> None:
        """Probe until cancelled; the first probe follows after one interval."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.interval_s):
                    await self._suspicion.wait()
            self._suspicion.clear()
            await self.probe()

    async def probe(self) -> None:
        """Probe once, and take the node's state and figures from its answer."""
        node, before = self._node, self._node.liveness.state
        unready = node.unready_models
        asked_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._times.timeout_s):
                await self._ask()
        except (EngineLost, TimeoutError, *UNREADABLE) as exc:
            reason = str(exc) or f"no answer to /health within {self._times.timeout_s:g} s"
            if node.liveness.failed(reason):
                self._models_until_s = 0.0
                if not isinstance(exc, _Unhealthy):
                    # the connections of a silent node may stay open for ever, so silent exchanges
                    # end; a node that is only too busy to answer probes goes on with its streams
                    error = EngineLost(f"node {node.name} {node.liveness.absence}")
                    node.pool.fail(error, silent_since_s=asked_s)
        if node.liveness.state != before:
            logger.log(
                logging.INFO if node.liveness.state == "ready" else logging.WARNING,
                "node %s is %s%s",
                node.name,
                node.liveness.state,
                f": {node.liveness.reason}" if node.liveness.reason else "",
            )
        if node.liveness.state != before or node.unready_models != unready:
            node.on_change()

    async def _ask(self) -> None:
        node = self._node
        status, health = await self._get("/health")
        models = msgspec.convert(health.get("models", {}), dict[str, bool])
        said, detail = str(health.get("status")), str(health.get("detail", ""))
        serves_some = said != _DRAINING and any(models.values())
        node.serves_none = bool(models) and not any(models.values())
        self._note_unready(frozenset(one for one, can in models.items() if not can), detail)
        if status != 200 and not serves_some:
            raise _Unhealthy(f"/health is {status}: {detail}")
        is_ready = said == _READY or serves_some
        now_s = asyncio.get_running_loop().time()
        if is_ready and now_s >= self._models_until_s:
            status, listed = await self._get("/v1/models")
            if status == 200:
                found = msgspec.convert(listed.get("data", ()), list[_Model])
                served = tuple(one.id for one in found)
                node.figures = replace(node.figures, models=served)
                self._models_until_s = now_s + self._times.models_s
        if is_ready and self._cluster:
            await self._ask_figures()
        node.liveness.answered(is_ready=is_ready, reason=f"it is {said}")

    def _note_unready(self, models: frozenset[str], detail: str) -> None:
        """Note which models no engine of the node can serve; the others get work as before."""
        node = self._node
        if models == node.unready_models:
            return
        node.unready_models = models
        if models:
            names = ", ".join(sorted(models))
            logger.warning("node %s cannot serve %s now: %s", node.name, names, detail)
        else:
            logger.info("node %s serves all of its models again", node.name)

    async def _ask_figures(self) -> None:
        status, told = await self._get("/v1/microserving/engines", self._cluster)
        if status != 200:
            self._complaints.tell(f"/v1/microserving/engines is {status}: {_message(told)}")
            return
        self._complaints.settle()
        engines = msgspec.convert(told.get("engines", ()), list[_Row])
        self._node.told(
            NodeFigures(
                self._node.figures.models,
                num_running=sum(one.running for one in engines),
                num_waiting=sum(one.waiting for one in engines),
                num_blocks=sum(one.num_blocks for one in engines),
                num_free_blocks=sum(one.free_blocks for one in engines),
                epoch=max((one.epoch for one in engines), default=0),
                token_bytes=max((one.token_bytes for one in engines), default=0),
                prompt_token_s=max((one.prompt_token_s or 0.0 for one in engines), default=0.0)
                or None,
            )
        )

    async def _get(
        self, target: str, headers: list[tuple[bytes, bytes]] | None = None
    ) -> tuple[int, dict[str, Any]]:
        with await self._node.ask("GET", target, headers or ()) as exchange:
            head = await exchange.head()
            body = await exchange.read_all(_MAX_BYTES)
        try:
            return head.status, msgspec.json.decode(body, type=dict[str, Any])
        except UNREADABLE:
            return head.status, {}


def _message(answer: Mapping[str, Any]) -> str:
    error = answer.get("error")
    return str(error.get("message")) if isinstance(error, dict) else ""
