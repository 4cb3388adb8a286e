"""A study of a virtual cluster: requests, routed by a strategy, until all have ended.

Owns the path of one request through the router: it is read and routed, and its answer is read to
the end. The same study always gives the same outcomes. A virtual router does not retry requests at
other nodes: nodes are never lost, and a refused request counts as failed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from math import inf, isfinite

import msgspec

from quire.cluster.engines.interfaces import Route
from quire.cluster.engines.strategy_errors import said_of
from quire.cluster.engines.trial import why_no_answer
from quire.cluster.requests.request import COMPLETIONS, Request
from quire.cluster.routing.strategy import StrategySource, load
from quire.cluster.simulation.figures import ClusterSummary, RequestOutcome, summarize_requests
from quire.cluster.simulation.requests import RequestLoad, RequestPlan
from quire.cluster.simulation.virtual_fleet import VirtualFleet
from quire.core.errors import ConfigError, QuireError
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.engines import MODEL, EngineSpec
from quire.simulation.exchange import LinkCost
from quire.simulation.progress import Progress, RunProgress

_HEADERS = [(b"content-type", b"application/json")]


@dataclass(frozen=True, slots=True)
class ClusterStudy:
    """What is simulated, without the strategy. ``engine``: the engine of each node; ``call_s``: the
    time from the router to a node and back, added to the time of ``engine``'s messages.

    Raises:
        ConfigError: the figures do not describe a cluster.
    """

    load: RequestLoad
    num_nodes: int = 2
    engine: EngineSpec = field(default_factory=EngineSpec)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    link: LinkCost = field(default_factory=LinkCost)
    call_s: float = 0.001

    def __post_init__(self) -> None:
        if self.num_nodes < 1:
            raise ConfigError(f"num_nodes is {self.num_nodes}: choose at least 1")
        if self.engine.num_engines != 1:
            raise ConfigError(
                f"{self.engine.num_engines} engines of a node: virtual nodes have one each"
            )
        if not (isfinite(self.call_s) and self.call_s >= 0):
            raise ConfigError(f"a call takes {self.call_s} s: choose 0 or more")

    def capacity(self) -> float:
        """Return the estimated number of requests a second that the nodes can serve if each serves
        whole requests."""
        return self.num_nodes * self.engine.capacity(self.load.programs())


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    strategy: StrategySource
    summary: ClusterSummary
    outcomes: tuple[RequestOutcome, ...]


def examine_cluster(
    study: ClusterStudy,
    strategy: StrategySource,
    *,
    progress: Progress | None = None,
    check: bool = False,
) -> ClusterFinding:
    """Play ``study`` with ``strategy``. ``check``: verify all invariants after every event.

    Raises:
        InvalidArgument: the strategy cannot be loaded, or waits for something outside.
    """
    route = asyncio.run(load(strategy)).route
    fleet = VirtualFleet(
        study.num_nodes, study.engine, study.scheduler, study.link, study.call_s, check=check
    )
    run = _Run(study, fleet, route, progress)
    outcomes = tuple(fleet.loop.run(run.all()))
    figures = [engine.virtual.figures for engine in fleet.engines]
    summary = summarize_requests(
        outcomes,
        sum(one.num_prefilled_tokens for one in figures),
        sum(one.num_cached_tokens for one in figures),
        fleet.network.num_bytes,
    )
    return ClusterFinding(strategy, summary, outcomes)


class _Run:
    def __init__(
        self, study: ClusterStudy, fleet: VirtualFleet, route: Route, progress: Progress | None
    ) -> None:
        self._plans = study.load.drawn()
        self._fleet = fleet
        self._route = route
        self._progress = progress
        self._num_over = 0

    async def all(self) -> list[RequestOutcome]:
        watching = asyncio.create_task(self._fleet.watch())
        loop, tasks = self._fleet.loop, []
        for number, plan in enumerate(self._plans):
            await asyncio.sleep(plan.at_s - loop.time())
            tasks.append(asyncio.create_task(self._serve(number, plan)))
        outcomes = [await task for task in tasks]
        await self._settled()
        watching.cancel()
        return outcomes

    async def _settled(self) -> None:
        """Wait for leases that end in the background."""
        await asyncio.sleep(1.0)

    async def _serve(self, number: int, plan: RequestPlan) -> RequestOutcome:
        loop = self._fleet.loop
        request = _request(number, plan)
        first_s, ended_s, engine, error = inf, inf, None, None
        try:
            answer = await self._route(request, self._fleet.engines)
            error = why_no_answer(answer)
            if error is None:
                request.work.end(kept=answer)
                engine, piece = answer.engine, await answer.read()
                read_s = loop.time()
                while piece:
                    piece = await answer.read()
                first_s, ended_s = read_s, loop.time()
        except QuireError as exc:
            error = exc.message
        except Exception as exc:  # whatever a strategy raises fails its request alone
            error = said_of(exc)
        finally:
            request.work.end()
        self._num_over += 1
        if self._progress is not None:
            over, num = self._num_over, len(self._plans)
            self._progress(RunProgress(loop.time(), over, num, over, num))
        return RequestOutcome(
            number=number,
            arrived_s=plan.at_s,
            first_s=first_s,
            ended_s=ended_s,
            num_prompt=len(plan.prompt),
            num_output=plan.num_output,
            prefix=plan.prefix,
            engine=engine,
            error=error,
        )


def _request(number: int, plan: RequestPlan) -> Request:
    fields = {"model": MODEL, "prompt": plan.prompt, "max_tokens": plan.num_output, "stream": True}
    body = msgspec.json.encode(fields)
    return Request("POST", COMPLETIONS, _HEADERS, body, f"request-{number}")
