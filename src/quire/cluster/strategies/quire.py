"""Routes by cost: each request goes where its first token comes soonest and delays others least.

The engine that has the pages answers, if it has time. Otherwise the pages are sent to an engine
that has time, if the transfer takes less than computing them again; else that engine computes them
again. What an engine owes and what a token costs are reported by its node; what a transfer costs is
learnt from earlier ones. While a client runs a tool, the pages of its program are sent to where the
program then goes on soonest.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from quire.cluster.engines.interfaces import Engine, LocatedPrompt, RemoteSendResult
from quire.cluster.engines.pages_ahead import PromptPrefix, send_ahead
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request
from quire.cluster.strategies.choices import least_used_of
from quire.cluster.strategies.computing import ComputingEngines
from quire.cluster.strategies.handing_over import handed_over
from quire.cluster.strategies.owed import OwedTokens
from quire.core.errors import EngineLost, InvalidArgument, QuireError

_MAX_HOLDERS = 8
"""How many holders of a prompt's longest beginnings are compared, beside the engine that owes
least."""

_AHEAD_S = 30.0
"""Time limit of a transfer for which no request waits."""

_DEFAULT_TOKEN_S = 1e-4
_CHARS_PER_TOKEN = 4
_SMOOTHING = 0.2
_FORGETTING = 0.01
"""With each request for which no pages are sent, the estimated time of calls moves by this share
back to its first value: while it is too long, no pages are sent, and so it would never be
corrected."""


class _Profile(msgspec.Struct):
    """The file that ``quire profile`` writes."""

    cost: dict[str, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a request is computed: ``num_computed`` tokens of the prompt at ``engine``, after the
    first ``brought`` tokens have arrived from ``source``, if there is one."""

    engine: Engine
    cost_s: float
    num_computed: int
    source: Engine | None = None
    brought: int = 0


@dataclass
class Quire:
    """``decode_tokens``: an unfinished answer delays others as much as so many tokens of a prompt.
    ``bytes_per_s`` and ``call_s`` (the time of a transfer's calls without its bytes) are first
    values; both are then learnt from transfers. ``profile``: a file of ``quire profile``, for
    engines that have measured nothing yet."""

    decode_tokens: int = 64
    bytes_per_s: float = 1e9
    call_s: float = 0.01
    profile: str = ""
    owed: OwedTokens = field(default_factory=OwedTokens, init=False)
    computing: ComputingEngines = field(default_factory=ComputingEngines, init=False)
    routes_sessions = True

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0:
            raise InvalidArgument(f"bytes_per_s is {self.bytes_per_s}: choose more than 0")
        self._first_call_s = self.call_s
        self._token_s = self._profiled_token_s() if self.profile else _DEFAULT_TOKEN_S

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
        located = await least_used_of(engines).locate(request)
        if located is None:
            engine = min(engines, key=self._num_owed)
            with self.owed.owing(engine, len(request.prefix) // _CHARS_PER_TOKEN):
                return await engine.send(request)
        plan = self.plan(located, engines, request.home)
        if plan.source is None:
            self.call_s += _FORGETTING * (self._first_call_s - self.call_s)
        with (
            self.owed.owing(plan.engine, plan.num_computed),
            self.computing.at(plan.engine.name, located.keys),
        ):
            if plan.source is not None:
                try:
                    return await handed_over(
                        request, plan.source, plan.engine, plan.brought, self._learn
                    )
                except EngineLost:
                    raise
                except QuireError:  # the engines do not fit, or the pages are gone: compute them
                    request.work.end()
            return await plan.engine.send(request)

    async def idle(self, request: Request, engines: Sequence[Engine]) -> None:
        """Send the pages of ``request`` to where its program goes on soonest, if that pays: its
        client runs a tool, and comes back with the same beginning. A client that comes back before
        the end of the transfer finds what has arrived by then."""
        located = await least_used_of(engines).locate(request)
        plan = None if located is None else self.plan_ahead(located, engines)
        if located is None or plan is None or plan.source is None:
            return
        text = PromptPrefix(request.model, located.tokens[: plan.brought])
        await send_ahead([text], plan.source, plan.engine, _AHEAD_S, request.headers)

    def plan_ahead(self, located: LocatedPrompt, engines: Sequence[Engine]) -> Plan | None:
        """Return a plan to send a prompt's pages to the engine that owes least, if that shortens
        the wait of the next request by more than the transfer takes; None if the pages are there
        already, or should stay."""
        there = located.num_matched.longest(_MAX_HOLDERS)
        idlest, holders = self._scanned(engines, there)
        source = max(holders, key=lambda one: there[one.name], default=None)
        if source is None or source is idlest or not source.token_bytes:
            return None
        end = there[source.name]
        num_sent = end - located.num_matched.get(idlest.name, 0)
        if num_sent <= 0:
            return None
        stays_s = self._compute_s(source, self._num_owed(source))
        goes_s = self._compute_s(idlest, self._num_owed(idlest))
        if stays_s - goes_s <= self._transfer_s(source, num_sent):
            return None
        return Plan(idlest, goes_s, len(located.tokens) - end, source, end)

    # -- the decision ------------------------------------------------------------------------------

    def plan(
        self, located: LocatedPrompt, engines: Sequence[Engine], home: str | None = None
    ) -> Plan:
        """Return the plan that costs the least time; among equals the one at the session's
        ``home``, then the first."""
        there = located.num_matched.longest(_MAX_HOLDERS)
        coming = self.computing.matched(located.keys)
        idlest, holders = self._scanned(engines, {*there, *coming, home})
        matched = {
            engine.name: self._matched(engine, located, coming) for engine in (*holders, idlest)
        }
        plans = [self._alone(engine, located, matched) for engine in (*holders, idlest)]
        # only the longest beginning is sent, and only by an engine that has it
        best = max(holders, key=lambda one: there.get(one.name, 0), default=None)
        if best is not None and best.name in there:
            for engine in (*holders, idlest):
                plan = self._brought(engine, best, located, matched)
                if plan is not None:
                    plans.append(plan)
        return min(plans, key=lambda plan: (plan.cost_s, plan.engine.name != home))

    def _scanned(
        self, engines: Sequence[Engine], names: Container[str | None]
    ) -> tuple[Engine, list[Engine]]:
        """Return the engine that owes least, and the engines with these names, in one pass over
        thousands."""
        idlest, least, named = engines[0], math.inf, []
        for engine in engines:
            num_owed = self._num_owed(engine)
            if num_owed < least:
                idlest, least = engine, num_owed
            if engine.name in names:
                named.append(engine)
        return idlest, named

    def _matched(self, engine: Engine, located: LocatedPrompt, coming: Mapping[str, int]) -> int:
        """Return how many tokens ``engine`` has or will soon have; the last one is always
        computed."""
        num_coming = coming.get(engine.name, 0) * located.page_size
        num_there = located.num_matched.get(engine.name, 0)
        return min(max(num_coming, num_there), len(located.tokens) - 1)

    def _alone(self, engine: Engine, located: LocatedPrompt, matched: Mapping[str, int]) -> Plan:
        """Return the plan in which ``engine`` computes what it lacks."""
        num_computed = len(located.tokens) - matched[engine.name]
        cost_s = self._compute_s(engine, self._num_owed(engine))
        return Plan(engine, cost_s + self._work_s(engine, num_computed), num_computed)

    def _brought(
        self, engine: Engine, source: Engine, located: LocatedPrompt, matched: Mapping[str, int]
    ) -> Plan | None:
        """Return the plan in which ``source`` sends what it has and ``engine`` computes the rest;
        None if that is of no use."""
        end = min(located.num_matched.get(source.name, 0), len(located.tokens) - 1)
        num_sent = end - matched[engine.name]
        if num_sent <= 0 or not source.token_bytes:
            return None
        transfer_s = self._transfer_s(source, num_sent)
        num_computed = len(located.tokens) - end
        # while the pages come the engine works on what it owes
        begin_s = max(transfer_s, self._compute_s(engine, self._num_owed(engine)))
        cost_s = begin_s + self._work_s(engine, num_computed)
        return Plan(engine, cost_s, num_computed, source, end)

    # -- costs -------------------------------------------------------------------------------------

    def _num_owed(self, engine: Engine) -> int:
        """Return how much work ``engine`` owes, in tokens of prompts."""
        return self.owed.get(engine.name, 0) + self.decode_tokens * engine.load

    def _transfer_s(self, source: Engine, num_tokens: int) -> float:
        return self.call_s + num_tokens * source.token_bytes / self.bytes_per_s

    def _work_s(self, engine: Engine, num_tokens: int) -> float:
        """Return the time that the request and those after it wait while its tokens are
        computed."""
        return 2 * self._compute_s(engine, num_tokens)

    def _compute_s(self, engine: Engine, num_tokens: int) -> float:
        """Return how long ``engine`` computes so many tokens of prompts."""
        return num_tokens * (engine.prompt_token_s or self._token_s)

    def _learn(self, sent: RemoteSendResult) -> None:
        """Learn ``bytes_per_s`` from transfers of at least a mebibyte, and ``call_s`` from all: the
        time beside that of the bytes is mostly the wait of both engines for their running
        message."""
        if sent.num_bytes >= 1 << 20 and sent.elapsed_s > 0:
            speed = sent.num_bytes / sent.elapsed_s
            self.bytes_per_s += _SMOOTHING * (speed - self.bytes_per_s)
        if sent.num_bytes and sent.call_s:
            self.call_s += _SMOOTHING * (max(0.0, sent.call_s - sent.elapsed_s) - self.call_s)

    def _profiled_token_s(self) -> float:
        try:
            profile = msgspec.json.decode(Path(self.profile).read_bytes(), type=_Profile)
            return profile.cost["prompt_token_s"]
        except (OSError, KeyError, msgspec.MsgspecError) as exc:
            raise InvalidArgument(
                f"profile {self.profile!r} is no file of 'quire profile': {exc}"
            ) from exc
